#ifndef AQT_GRAPH_OP_H_
#define AQT_GRAPH_OP_H_

// The operations that an equation of a program can hold: a closed set of small structs, and composites.
//
// Operands of one operation have equal dtypes and shapes unless stated otherwise; nothing is broadcast or converted
// implicitly here (ops:: in basic_ops.h inserts the equations). Arithmetic dtypes are f16, bf16, f32, f64 and s32; for
// NaN, wrapping and rounding see kernels/elementwise/elementwise.h, reduce.h and contraction.h.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/composite.h"
#include "aqt/kernels/elementwise/elementwise_kind.h"
#include "aqt/kernels/move/pad.h"
#include "aqt/kernels/reduce/reduce_kind.h"

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
// The result is bool.
struct CompareOp {
  kernels::CompareKind kind;
  bool operator==(const CompareOp&) const = default;
};
// (pred bool, on_true, on_false), all of one shape; any dtype.
struct SelectOp {
  bool operator==(const SelectOp&) const = default;
};
// From any dtype to any other; rounds once, like ConvertElement with Overflow::kIeee.
struct CastOp {
  DType dtype;
  bool operator==(const CastOp&) const = default;
};
// The bits of each element, read as another dtype of equal width. Not for bool: not all of its bit patterns are legal.
struct BitcastOp {
  DType dtype;
  bool operator==(const BitcastOp&) const = default;
};
// (low, x, high): min(max(x, low), high), elementwise.
struct ClampOp {
  bool operator==(const ClampOp&) const = default;
};
// Whether x is neither infinite nor NaN; the result is bool.
struct IsFiniteOp {
  bool operator==(const IsFiniteOp&) const = default;
};
// x^exponent, by repeated multiplication; s32 needs exponent >= 0.
struct IntegerPowOp {
  int64_t exponent;
  bool operator==(const IntegerPowOp&) const = default;
};
// Floats rounded to fewer bits, in the same dtype.
struct ReducePrecisionOp {
  kernels::Precision precision;
  bool operator==(const ReducePrecisionOp&) const = default;
};
// Axes ascending. With keepdims the reduced axes are kept with extent 1.
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
// The same elements, in row-major order.
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
// Adds elements of one value along each axis: `interior` between neighbours (>= 0), then `low` before and `high` after.
// A negative `low` or `high` removes that many elements. The value is rounded to the dtype; an integer type must hold
// it exactly.
struct PadOp {
  PerAxis low, high, interior;
  double value = 0;
  bool operator==(const PadOp&) const = default;
};
// The elements of each of these axes in reverse order; axes ascending.
struct ReverseOp {
  Axes axes;
  bool operator==(const ReverseOp&) const = default;
};
// No operand. Each element is its index along `axis`, rounded to the dtype (any but bool).
struct IotaOp {
  DType dtype;
  Shape shape;
  int64_t axis;
  bool operator==(const IotaOp&) const = default;
};
// The s32 index along `axis` of the first maximum or minimum, or of the first NaN if there is one; without the axis.
struct ArgReduceOp {
  kernels::ArgKind kind;
  int64_t axis;
  bool operator==(const ArgReduceOp&) const = default;
};
// Sums of the elements up to and including each one along `axis`; with `reverse`, from each one on.
struct CumulativeSumOp {
  int64_t axis;
  bool reverse = false;
  bool operator==(const CumulativeSumOp&) const = default;
};
// (x, indices s32): slices of x along `axis`, selected by index; the axes of `indices` replace `axis`. Indices are
// clamped to the valid range.
struct TakeOp {
  int64_t axis;
  bool operator==(const TakeOp&) const = default;
};
// (indices s32, updates): the sum of the updates by index; `axis` with `extent` replaces the axes of `indices`. The
// counterpart of TakeOp, with indices clamped the same way. kernels/move/gather.h states the order of sums.
struct ScatterAddOp {
  int64_t axis;
  int64_t extent;
  bool operator==(const ScatterAddOp&) const = default;
};
// Windows at every stride-th position of each axis. The axis is first padded by `low` and `high` elements, which no
// window counts. window and stride >= 1, 0 <= low, high < window.
struct WindowDims {
  PerAxis window, stride, low, high;
  bool operator==(const WindowDims&) const = default;
};
// The sum, maximum or minimum of each window; products are refused.
struct ReduceWindowOp {
  kernels::ReduceKind kind;
  WindowDims dims;
  bool operator==(const ReduceWindowOp&) const = default;
};
// The row-major index in the operand, s32, of the first maximum or minimum of each window, or of the first NaN if there
// is one.
struct ArgReduceWindowOp {
  kernels::ArgKind kind;
  WindowDims dims;
  bool operator==(const ArgReduceWindowOp&) const = default;
};
// (key u32[2]: words hi, lo): 32 random bits for each element, u32: RandomBits(key, ...) of core/rng.h, partitionable,
// indexed by row-major position.
struct RandomBitsOp {
  Shape shape;
  bool operator==(const RandomBitsOp&) const = default;
};
// One or more operands whose shapes may differ only in the extent of `axis`.
struct ConcatenateOp {
  int64_t axis;
  bool operator==(const ConcatenateOp&) const = default;
};
// (lhs, rhs). Floats, both f16, bf16, f32 or f64, are summed in f32 (f64 in f64), then rounded to `out`, one of these.
// Integers (s2 .. s32, which may differ) are exact modulo 2^32; `out` is s32.
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
  bool operator==(const CompositeOp& other) const;  // the same object, or equal fields (composite_fields.h)
};

using Op = std::variant<UnaryOp, BinaryOp, CompareOp, SelectOp, CastOp, BitcastOp, ClampOp, IsFiniteOp, IntegerPowOp,
                        ReducePrecisionOp, ReduceOp, BroadcastOp, ReshapeOp, TransposeOp, SliceOp, PadOp, ReverseOp,
                        IotaOp, ArgReduceOp, CumulativeSumOp, TakeOp, ScatterAddOp, ReduceWindowOp, ArgReduceWindowOp,
                        RandomBitsOp, ConcatenateOp, DotGeneralOp, StopGradientOp, CompositeOp>;

// Joins lambdas, one per alternative, for std::visit. Without a catch-all it stops compiling when an operation is
// added, which shows where a new operation must be handled.
template <class... Fs>
struct Overload : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overload(Fs...) -> Overload<Fs...>;

// "add", "reduce_sum", "dot_general", ...; a composite's Name().
std::string OpName(const Op& op);
// The parameters as text, e.g. "axes=[1], keepdims"; "" if there are none.
std::string OpAttributes(const Op& op);
int NumOutputs(const Op& op);

// The PadAxis of `axis`, with operand extent `size` and result extent `padded`; without strides.
kernels::PadAxis PadAxisOf(const PadOp& op, int64_t axis, int64_t size, int64_t padded);

// The outputs' avals. InvalidArgument if the number, dtypes or shapes of the operands do not fit. The message names
// them; the caller adds the operation and the scope.
absl::StatusOr<std::vector<Aval>> InferOp(const Op& op, absl::Span<const Aval> operands);

}  // namespace aqt

#endif  // AQT_GRAPH_OP_H_
