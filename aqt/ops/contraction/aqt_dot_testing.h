#ifndef AQT_OPS_CONTRACTION_AQT_DOT_TESTING_H_
#define AQT_OPS_CONTRACTION_AQT_DOT_TESTING_H_

// A contraction as a program, for the tests of aqt_dot_general.h.

#include "aqt/ops/contraction/aqt_dot_general.h"

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"

namespace aqt {

inline Array KeyArray(uint32_t seed) { return Array::Of<uint32_t>({0, seed}, {2}); }

// One contraction: configuration and operands.
struct Problem {
  Semantics semantics;
  DotGeneralConfig config;
  DotDims dims;
  Array lhs, rhs;
};

// Loss (a weighted sum, so that gradients differ between elements), output and both gradients as one program.
inline absl::StatusOr<Program> LossAndGradients(const Problem& problem) {
  absl::StatusOr<Program> loss = ::aqt::testing::TraceWith(
      [&](absl::Span<const Value> in) {
        const Value out = ops::AqtDotGeneral(in[0], in[1], problem.dims, problem.config, in[2], problem.semantics);
        const Value weights = ops::Cast(Value(::aqt::testing::RandomArray({DType::kF32, out.shape()}, 7)), out.dtype());
        return std::vector<Value>{ops::ReduceSum(out * weights), out};
      },
      {problem.lhs, problem.rhs, KeyArray(3)});
  if (!loss.ok()) return loss.status();
  return ValueAndGrad(*loss, {0, 1});
}

}  // namespace aqt

#endif  // AQT_OPS_CONTRACTION_AQT_DOT_TESTING_H_
