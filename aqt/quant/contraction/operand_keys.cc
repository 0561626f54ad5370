#include "aqt/quant/contraction/operand_keys.h"

#include <cstdint>

namespace aqt {

Key SplitOperandKey(Key key, int pass, Side side, PrngLayout layout) {
  return SplitKey(SplitKey(key, 3, pass, layout), 2, static_cast<int64_t>(side), layout);
}

OperandKeys SplitContextKey(Key key, PrngLayout layout) {
  const auto operand = [&](int pass, Side side) { return SplitOperandKey(key, pass, side, layout); };
  return {operand(0, Side::kLhs), operand(0, Side::kRhs), operand(1, Side::kLhs),
          operand(1, Side::kRhs), operand(2, Side::kLhs), operand(2, Side::kRhs)};
}

}  // namespace aqt
