#ifndef AQT_CORE_DOT_DIMS_H_
#define AQT_CORE_DOT_DIMS_H_

// Dimension numbers of a general contraction of two arrays, and the axis arithmetic derived from them.
//
// Each axis of an operand is contracting (paired with an axis of the other operand and summed over), batch (paired and
// kept) or remaining. The output has the batch axes in the order of lhs_batch, then the remaining axes of lhs, then
// those of rhs, both in ascending order:
//   DotDims{.lhs_contracting = {1}, .rhs_contracting = {0}}   [M,K] x [K,N] -> [M,N]

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/shape.h"

namespace aqt {

// The dimension numbers of a dot_general.
struct DotDims {
  Axes lhs_contracting = {}, rhs_contracting = {};  // of equal length, paired by position
  Axes lhs_batch = {}, rhs_batch = {};              // of equal length, paired by position

  bool operator==(const DotDims&) const = default;
  std::string ToString() const;  // "(([1],[0]),([],[]))"
  // The same contraction with the operands swapped.
  DotDims Swapped() const { return {rhs_contracting, lhs_contracting, rhs_batch, lhs_batch}; }
};
std::ostream& operator<<(std::ostream& os, const DotDims& dims);

// The dimension numbers of a plain matrix product of two rank-2 arrays.
inline DotDims MatMulDims() { return {.lhs_contracting = {1}, .rhs_contracting = {0}}; }

// InvalidArgument, naming the operand, axes and shapes, unless the paired lists have equal lengths, each axis is in 0
// .. rank-1 and appears at most once per operand, and paired extents are equal.
absl::Status ValidateDotDims(const DotDims& dims, const Shape& lhs, const Shape& rhs);

// The axes in 0 .. rank-1 that are in neither list, in ascending order.
Axes RemainingAxes(int64_t rank, absl::Span<const int64_t> contracting, absl::Span<const int64_t> batch);

// The shape of the output; `dims` must be valid.
Shape DotOutputShape(const DotDims& dims, const Shape& lhs, const Shape& rhs);

// An operand of a contraction.
enum class Side : uint8_t { kLhs, kRhs };
// The other operand.
inline Side Other(Side side) { return side == Side::kLhs ? Side::kRhs : Side::kLhs; }
std::ostream& operator<<(std::ostream& os, Side side);  // "lhs", "rhs"

// The contraction that computes the gradient of operand `wrt`. Its lhs is the output gradient g and its rhs is the
// other operand y. Axis i of the product is axis `to_operand[i]` of operand `wrt`.
struct BackwardDotDims {
  DotDims dims;
  Axes to_operand;
};
// The contraction for the gradient of operand `wrt`; `dims` must be valid.
BackwardDotDims MakeBackwardDotDims(const DotDims& dims, int64_t lhs_rank, int64_t rhs_rank, Side wrt);

}  // namespace aqt

#endif  // AQT_CORE_DOT_DIMS_H_
