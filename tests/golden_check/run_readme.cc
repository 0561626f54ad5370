// The hand-written product of AQT's README.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/numerics/numerics.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {
namespace {

absl::Status CheckMatrix(const Array& x, const std::string& what) {
  if (x.dtype() == DType::kF32 && x.shape().rank() == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", x.aval().ToString(), ", expected an f32 matrix"));
}

// One row or column of scales, broadcast to [rows, cols].
ArrayRef Broadcast(const Array& scale, int64_t rows, int64_t cols) {
  const bool per_row = scale.shape()[1] == 1;
  return {DType::kF32, {rows, cols}, per_row ? Strides{1, 0} : Strides{0, 1}, scale.data()};
}

// bound / max|x| along `axis`, kept with extent 1.
Array HandWrittenScale(const Array& x, int64_t axis, double bound) {
  const int64_t cols = x.shape()[1];
  ArrayBuilder builder(DType::kF32, axis == 1 ? Shape{x.shape()[0], 1} : Shape{1, cols});
  const absl::Span<float> scale = builder.Mutable<float>();
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    float& max = scale[axis == 1 ? i / cols : i % cols];
    max = std::max(max, std::fabs(x.View<float>()[i]));
  }
  for (float& s : scale) s = static_cast<float>(bound) / s;
  return std::move(builder).Build();
}

// f(a, b) for each element of two arrays of one shape.
template <class F>
Array Combine(const ArrayRef& a, const ArrayRef& b, F&& f) {
  ArrayBuilder builder(DType::kF32, a.shape);
  float* out = builder.Mutable<float>().data();
  ForEachIndex(a.shape, a.strides, b.strides,
               [&](int64_t i, int64_t j) { *out++ = f(a.As<float>()[i], b.As<float>()[j]); });
  return std::move(builder).Build();
}

}  // namespace

// As users wrote it without a library: the scales are computed here; clipping, rounding and the product are the
// library's.
absl::StatusOr<Tensors> Run(const HandWrittenMatMulConfig& config, const Tensors& inputs, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const Array a, Input(inputs, "a"));
  AQT_ASSIGN_OR_RETURN(const Array w, Input(inputs, "w"));
  AQT_RETURN_IF_ERROR(CheckMatrix(a, "a"));
  AQT_RETURN_IF_ERROR(CheckMatrix(w, "w"));
  const auto multiply = [](float x, float y) { return x * y; };
  const Array a_s = HandWrittenScale(a, 1, config.bound), w_s = HandWrittenScale(w, 0, config.bound);
  const Array scaled_a = Combine(a, Broadcast(a_s, a.shape()[0], a.shape()[1]), multiply);
  const Array scaled_w = Combine(w, Broadcast(w_s, w.shape()[0], w.shape()[1]), multiply);
  AQT_ASSIGN_OR_RETURN(const Array qa, NumericsForward(config.numerics, scaled_a, {}));
  AQT_ASSIGN_OR_RETURN(const Array qw, NumericsForward(config.numerics, scaled_w, {}));
  // Sums of integers below 2^24 are exact in f32.
  AQT_ASSIGN_OR_RETURN(const Array product, QuantizedDotGeneral({}, Cast(qa, DType::kF32), Cast(qw, DType::kF32),
                                                                MatMulDims(), {}, {.semantics = semantics}));
  const int64_t rows = product.shape()[0], cols = product.shape()[1];
  const Array scales = Combine(Broadcast(a_s, rows, cols), Broadcast(w_s, rows, cols), multiply);
  AQT_ASSIGN_OR_RETURN(Array float_out, QuantizedDotGeneral({}, a, w, MatMulDims(), {}, {.semantics = semantics}));
  return Tensors{{"a_s", a_s},
                 {"w_s", w_s},
                 {"qa", qa},
                 {"qw", qw},
                 {"float_out", std::move(float_out)},
                 {"out", Combine(product, scales, [](float x, float y) { return x / y; })}};
}

}  // namespace aqt::golden
