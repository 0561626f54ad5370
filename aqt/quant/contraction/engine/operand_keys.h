#ifndef AQT_QUANT_CONTRACTION_ENGINE_OPERAND_KEYS_H_
#define AQT_QUANT_CONTRACTION_ENGINE_OPERAND_KEYS_H_

#include <cstdint>

#include "aqt/core/dot_dims.h"
#include "aqt/core/rng.h"

namespace aqt {

// The keys of the six operands of a contraction and its gradients: split(key, 3) gives fwd, dlhs, drhs; each
// split(., 2) gives lhs, rhs.
struct OperandKeys {
  Key fwd_lhs, fwd_rhs, dlhs_lhs, dlhs_rhs, drhs_lhs, drhs_rhs;
  bool operator==(const OperandKeys&) const = default;

  // `pass` is 0 for fwd, 1 for dlhs, 2 for drhs.
  const Key& Of(int pass, Side side) const {
    const bool is_lhs = side == Side::kLhs;
    if (pass == 0) return is_lhs ? fwd_lhs : fwd_rhs;
    if (pass == 1) return is_lhs ? dlhs_lhs : dlhs_rhs;
    return is_lhs ? drhs_lhs : drhs_rhs;
  }
};
// One of these keys; `pass` is 0 for fwd, 1 for dlhs, 2 for drhs.
inline Key SplitOperandKey(Key key, int pass, Side side, PrngLayout layout = PrngLayout::kPartitionable) {
  return SplitKey(SplitKey(key, 3, pass, layout), 2, static_cast<int64_t>(side), layout);
}
inline OperandKeys SplitContextKey(Key key, PrngLayout layout = PrngLayout::kPartitionable) {
  const auto operand = [&](int pass, Side side) { return SplitOperandKey(key, pass, side, layout); };
  return {operand(0, Side::kLhs), operand(0, Side::kRhs), operand(1, Side::kLhs),
          operand(1, Side::kRhs), operand(2, Side::kLhs), operand(2, Side::kRhs)};
}

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_ENGINE_OPERAND_KEYS_H_
