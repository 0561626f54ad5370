#include "aqt/quant/runtime.h"

namespace aqt {

absl::string_view ToString(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kXlaCompatible: return "ARITHMETIC_XLA_COMPATIBLE";
    case Arithmetic::kIeee: return "ARITHMETIC_IEEE";
  }
  return "?";
}

Compat Compat::Original() {
  return {.mid_scales_on_original_operands = true, .read_unseen_calibration = true, .einsum_keeps_mid_alphas = true};
}

}  // namespace aqt
