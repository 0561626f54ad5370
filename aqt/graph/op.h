#ifndef AQT_GRAPH_OP_H_
#define AQT_GRAPH_OP_H_

// The operations that an equation of a program can hold: a closed set of small structs, and composites.
//
// Operands of one operation have equal dtypes and shapes unless said otherwise; nothing is broadcast or converted
// implicitly here (ops:: in basic_ops.h inserts the equations). Arithmetic dtypes: f16, bf16, f32, f64, s32; what their
// kernels do with NaN, wrapping and rounding: kernels/elementwise.h, reduce.h, contraction.h.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/composite.h"
#include "aqt/kernels/elementwise.h"
#include "aqt/kernels/reduce.h"

namespace aqt {

// One number per axis.
using PerAxis = absl::InlinedVector<int64_t, kInlineRank>;

struct UnaryOp {
  kernels::UnaryKind kind;
  bool operator==(const UnaryOp&) const = default;
};
struct BinaryOp {
  kernels::BinaryKind kind;
  bool operator==(const BinaryOp&) const = default;
};
// Gives bool.
struct CompareOp {
  kernels::CompareKind kind;
  bool operator==(const CompareOp&) const = default;
};
// (pred bool, on_true, on_false), all of one shape; any dtype.
struct SelectOp {
  bool operator==(const SelectOp&) const = default;
};
// Any dtype to any; rounds once, as ConvertElement with Overflow::kIeee.
struct CastOp {
  DType dtype;
  bool operator==(const CastOp&) const = default;
};
// Axes ascending. With keepdims the reduced axes stay with extent 1.
struct ReduceOp {
  kernels::ReduceKind kind;
  Axes axes;
  bool keepdims = false;
  bool operator==(const ReduceOp&) const = default;
};
// Axis i of the operand becomes axis axes[i] of `shape`, stretched where the operand's extent is 1; axes ascending.
struct BroadcastOp {
  Shape shape;
  Axes axes;
  bool operator==(const BroadcastOp&) const = default;
};
// As many elements, row-major.
struct ReshapeOp {
  Shape shape;
  bool operator==(const ReshapeOp&) const = default;
};
// Axis i of the result is axis permutation[i] of the operand.
struct TransposeOp {
  Axes permutation;
  bool operator==(const TransposeOp&) const = default;
};
// Elements start, start + stride, ... below limit, for each axis; 0 <= start <= limit <= extent, stride >= 1.
struct SliceOp {
  PerAxis start, limit, stride;
  bool operator==(const SliceOp&) const = default;
};
// Zeros: `low` before, `high` behind, `interior` between neighbours, for each axis; none negative.
struct PadOp {
  PerAxis low, high, interior;
  bool operator==(const PadOp&) const = default;
};
// One or more operands that differ in the extent of `axis` at most.
struct ConcatenateOp {
  int64_t axis;
  bool operator==(const ConcatenateOp&) const = default;
};
// (lhs, rhs). Both f16, bf16, f32 or f64: summed in f32 (f64: f64), then rounded to `out`, one of these.
// Integers (s2 .. s32, may differ): exact modulo 2^32, `out` is s32.
struct DotGeneralOp {
  DotDims dims;
  DType out;
  bool operator==(const DotGeneralOp&) const = default;
};
// The operand; no gradient flows back.
struct StopGradientOp {
  bool operator==(const StopGradientOp&) const = default;
};
struct CompositeOp {
  std::shared_ptr<const Composite> impl;
  bool operator==(const CompositeOp&) const = default;  // the same object
};

using Op = std::variant<UnaryOp, BinaryOp, CompareOp, SelectOp, CastOp, ReduceOp, BroadcastOp, ReshapeOp, TransposeOp,
                        SliceOp, PadOp, ConcatenateOp, DotGeneralOp, StopGradientOp, CompositeOp>;

// Joins lambdas, one for each alternative, for std::visit. A table without a catch-all stops compiling when an
// operation is added: that is how one finds what a new operation must decide.
template <class... Fs>
struct Overload : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overload(Fs...) -> Overload<Fs...>;

// "add", "reduce_sum", "dot_general", ...; of a composite its Name().
std::string OpName(const Op& op);
// The parameters as text, e.g. "axes=[1], keepdims"; "" when there are none.
std::string OpAttributes(const Op& op);
int NumOutputs(const Op& op);

// The outputs' avals. InvalidArgument when the operands' number, dtypes or shapes do not fit; the message names them,
// but neither operation nor scope: the caller knows these.
absl::StatusOr<std::vector<Aval>> InferOp(const Op& op, absl::Span<const Aval> operands);

}  // namespace aqt

#endif  // AQT_GRAPH_OP_H_
