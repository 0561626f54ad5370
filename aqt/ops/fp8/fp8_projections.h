#ifndef AQT_OPS_FP8_FP8_PROJECTIONS_H_
#define AQT_OPS_FP8_FP8_PROJECTIONS_H_

// The projections of a transformer, each made of one Fp8Dot. Leading axes of x ("...") become rows, all other axes of a
// tensor are flattened, and the flattened matrices are quantized with one scale per tensor. The kernel and the bias are
// converted to x's dtype, in which everything is computed.

#include <optional>
#include <source_location>

#include "aqt/graph/value.h"
#include "aqt/ops/fp8/fp8_dot.h"

namespace aqt::ops {

// y [rows, n] + bias [n]. An f32 bias is rounded to bf16 first, and so is its gradient, the sum over the rows.
Value Fp8AddBias(const Value& y, const Value& bias,
                 const std::source_location& where = std::source_location::current());

// ...K,KN->...N; bias [N]. InvalidArgument, here and below, for shapes that do not fit and for an x of rank 1.
Value Fp8Projection(const Value& x, const Value& kernel, const std::optional<Value>& bias, const Fp8DotState& state,
                    const Fp8DotOptions& options = {},
                    const std::source_location& where = std::source_location::current());

// ...D,KDNH->K...NH; bias [K,N,H]: query, key and value (K = 3) at once.
Value Fp8QkvCombinedProjection(const Value& x, const Value& kernel, const std::optional<Value>& bias,
                               const Fp8DotState& state, const Fp8DotOptions& options = {},
                               const std::source_location& where = std::source_location::current());

// ...D,DNH->...NH; bias [N,H].
Value Fp8QkvProjection(const Value& x, const Value& kernel, const std::optional<Value>& bias, const Fp8DotState& state,
                       const Fp8DotOptions& options = {},
                       const std::source_location& where = std::source_location::current());

// The layout of an output projection's kernel.
enum class Fp8OutputKernel { kNHD, kDNH };
// ...NH,NHD->...D, or with kDNH ...NH,DNH->...D; bias [D].
Value Fp8AttentionOutputProjection(const Value& x, const Value& kernel, const std::optional<Value>& bias,
                                   Fp8OutputKernel layout, const Fp8DotState& state, const Fp8DotOptions& options = {},
                                   const std::source_location& where = std::source_location::current());

}  // namespace aqt::ops

#endif  // AQT_OPS_FP8_FP8_PROJECTIONS_H_
