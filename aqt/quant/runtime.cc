#include "aqt/quant/runtime.h"

#include "absl/strings/str_cat.h"

namespace aqt {

absl::string_view ToString(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kXlaCompatible: return "ARITHMETIC_XLA_COMPATIBLE";
    case Arithmetic::kIeee: return "ARITHMETIC_IEEE";
  }
  return "?";
}

Compat Compat::Original() {
  return {.mid_scales_on_original_operands = true,
          .read_unseen_calibration = true,
          .einsum_keeps_mid_alphas = true,
          .conv_integer_gradient_is_zero = true};
}

absl::Status Validate(const Runtime& runtime) {
  if (!runtime.target.has_value() || kernels::IsSupported(*runtime.target)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Runtime: this machine does not run the target ",
                                                 kernels::ToString(*runtime.target)));
}

}  // namespace aqt
