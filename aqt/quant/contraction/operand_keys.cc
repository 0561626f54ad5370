#include "aqt/quant/contraction/operand_keys.h"

#include <cstdint>

namespace aqt {

OperandKeys SplitContextKey(Key key, PrngLayout layout) {
  const auto operand = [&](int64_t pass, int64_t side) {
    return SplitKey(SplitKey(key, 3, pass, layout), 2, side, layout);
  };
  return {operand(0, 0), operand(0, 1), operand(1, 0), operand(1, 1), operand(2, 0), operand(2, 1)};
}

}  // namespace aqt
