#ifndef AQT_CORE_CHECKED_EXTENTS_H_
#define AQT_CORE_CHECKED_EXTENTS_H_

// Overflow-checked arithmetic on extents from untrusted input. No sum or product may wrap around to a value that looks
// valid.

#include <cstdint>

#include "absl/status/status.h"
#include "aqt/core/check.h"
#include "aqt/core/shape.h"

namespace aqt {

// InvalidArgument, naming the shape, if an extent is negative or the product of the nonzero extents times 8 bytes (the
// widest dtype) exceeds 2^63 - 1. For a shape that passes, the element count, the byte count, the strides and the
// products of any subset of extents do not overflow.
absl::Status CheckShape(const Shape& shape);

// An int64 that tracks whether any sum, difference or product it was computed from overflowed:
//   const CheckedInt extent = CheckedInt(low) + CheckedInt(size) * stride + high;
//   if (!extent.ok()) return an error;
class CheckedInt {
 public:
  constexpr CheckedInt(int64_t value) : value_(value) {}  // NOLINT: implicit on purpose

  constexpr bool ok() const { return ok_; }
  // Aborts unless ok().
  int64_t value() const {
    AQT_CHECK(ok_);
    return value_;
  }

  friend constexpr CheckedInt operator+(CheckedInt a, CheckedInt b) {
    CheckedInt sum(0);
    sum.ok_ = !__builtin_add_overflow(a.value_, b.value_, &sum.value_) && a.ok_ && b.ok_;
    return sum;
  }
  friend constexpr CheckedInt operator-(CheckedInt a, CheckedInt b) {
    CheckedInt difference(0);
    difference.ok_ = !__builtin_sub_overflow(a.value_, b.value_, &difference.value_) && a.ok_ && b.ok_;
    return difference;
  }
  friend constexpr CheckedInt operator*(CheckedInt a, CheckedInt b) {
    CheckedInt product(0);
    product.ok_ = !__builtin_mul_overflow(a.value_, b.value_, &product.value_) && a.ok_ && b.ok_;
    return product;
  }

 private:
  int64_t value_;
  bool ok_ = true;
};

}  // namespace aqt

#endif  // AQT_CORE_CHECKED_EXTENTS_H_
