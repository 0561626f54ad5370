#include "aqt/quant/contraction/product_types.h"

#include <tuple>

#include "aqt/core/check.h"

namespace aqt::internal {
namespace {

// Greatest exponent, bits of precision, least exponent (of the smallest subnormal; 0 for integers).
struct Range {
  int max_exponent, precision, min_exponent;
};

Range RangeOf(DType dtype) {
  switch (dtype) {
    case DType::kE4M3FN: return {8, 4, -9};
    case DType::kE5M2: return {15, 3, -16};
    case DType::kF16: return {15, 11, -24};
    case DType::kBF16: return {127, 8, -133};
    case DType::kF32: return {127, 24, -149};
    default: break;
  }
  AQT_DCHECK(IsInteger(dtype));
  // -2^(bits - 1) is a power of two.
  return {BitWidth(dtype) - 1, BitWidth(dtype) - 1, 0};
}

DType Larger(DType a, DType b) {
  const auto rank = [](DType dtype) {
    const Range range = RangeOf(dtype);
    return std::make_tuple(IsFloat(dtype), range.max_exponent, range.precision);
  };
  return rank(a) >= rank(b) ? a : b;
}

}  // namespace

ProductTypes ProductTypesOf(DType lhs, DType rhs, std::optional<DType> accumulator) {
  ProductTypes types;
  types.product = accumulator.value_or(Larger(lhs, rhs));
  if (!IsFloat(types.product)) return types;
  types.converts_operands = lhs != rhs || (lhs == DType::kF16 && types.product == DType::kBF16);
  types.rounds_to_bf16_first = lhs == DType::kBF16 && rhs == DType::kBF16 && types.product == DType::kF16;
  return types;
}

bool HoldsAllOf(DType to, DType from) {
  const Range wide = RangeOf(to), narrow = RangeOf(from);
  return wide.max_exponent >= narrow.max_exponent && wide.precision >= narrow.precision &&
         wide.min_exponent <= narrow.min_exponent;
}

}  // namespace aqt::internal
