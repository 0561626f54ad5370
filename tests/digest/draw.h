#ifndef AQT_TESTS_DIGEST_DRAW_H_
#define AQT_TESTS_DIGEST_DRAW_H_

// Random configurations, shapes and data for the digest.
//
// Not shared with the property tests: their generators learn new fields, while a draw here must stay what it is for as
// long as its digest is committed. A new feature gets new groups (cases.h). For the same reason there is nothing of
// <random> here, whose distributions differ between standard libraries, and no two draws stand in one expression
// without a fixed order.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/testing/random.h"

namespace aqt::digest {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  uint64_t Bits() { return random_.Next(); }
  int64_t Below(int64_t n) { return random_.Below(n); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  double Uniform(double low, double high) { return random_.Uniform(low, high); }
  template <class T>
  T Pick(std::initializer_list<T> values) {
    return *(values.begin() + Below(static_cast<int64_t>(values.size())));
  }
  template <class List>
  void Shuffle(List& list) {
    for (int64_t i = static_cast<int64_t>(list.size()) - 1; i > 0; --i) std::swap(list[i], list[Below(i + 1)]);
  }

 private:
  testing::Random random_;
};

// Which configurations to draw.
struct Style {
  bool integers = false;  // products of two integers, accumulated in s32
  bool state = false;     // calibrations with state among the others
};

// ---- configurations: legal more often than not

Numerics DrawNumerics(Draw& draw);
Calibration DrawCalibration(Draw& draw, const Style& style);
TensorConfig DrawTensor(Draw& draw, const Style& style);
// With both gradients, for operands of these ranks.
DotGeneralConfig DrawConfig(Draw& draw, const Style& style, const DotDims& dims, int64_t lhs_rank, int64_t rhs_rank);
// One of the configurations that users know by name.
DotGeneralConfig DrawNamedConfig(Draw& draw);
// A configuration of a ragged contraction.
DotGeneralConfig DrawRaggedConfig(Draw& draw);

// An arithmetic and a Compat; the layout of keys stays the default one.
Semantics DrawSemantics(Draw& draw);
DType DrawDType(Draw& draw);

// ---- shapes

struct DotShapes {
  Shape lhs, rhs;
  DotDims dims;
};
DotShapes DrawDotShapes(Draw& draw);
// A matrix product beyond the sizes at which the kernels cut their work into tiles, blocks and tasks for threads.
DotShapes DrawLargeDotShapes(Draw& draw);
// What fits these shapes.
DotTiling DrawTiling(Draw& draw, const DotShapes& shapes);
void AddLocalAqt(Draw& draw, const DotShapes& shapes, DotGeneralConfig& config);

struct Convolution {
  DotGeneralRawConfig config;
  ConvDims dims;
  Shape lhs, rhs;
};
Convolution DrawConvolution(Draw& draw);

struct Equation {
  std::string text;
  Shape lhs, rhs;
};
Equation DrawEquation(Draw& draw);

// ---- data

// About normal, of an ordinary, tiny or huge scale, with zeros, subnormal numbers, NaN and infinities here and there.
Array DrawData(Draw& draw, DType dtype, const Shape& shape);

}  // namespace aqt::digest

#endif  // AQT_TESTS_DIGEST_DRAW_H_
