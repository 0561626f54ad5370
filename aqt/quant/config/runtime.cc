#include "aqt/quant/config/runtime.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace aqt {
namespace {

constexpr CompatField kCompatFields[] = {
    {"mid_scales_on_original_operands", &Compat::mid_scales_on_original_operands},
    {"read_unseen_calibration", &Compat::read_unseen_calibration},
    {"einsum_keeps_mid_alphas", &Compat::einsum_keeps_mid_alphas},
    {"conv_integer_gradient_is_zero", &Compat::conv_integer_gradient_is_zero},
    {"conv_ignores_accumulator_dtype", &Compat::conv_ignores_accumulator_dtype},
    {"snr_rates_unrounded_scales", &Compat::snr_rates_unrounded_scales},
    {"snr_rates_in_tensor_dtype", &Compat::snr_rates_in_tensor_dtype},
};
static_assert(sizeof(Compat) == std::size(kCompatFields), "a field of Compat has no name here");

}  // namespace

absl::string_view ToString(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kXlaCompatible: return "ARITHMETIC_XLA_COMPATIBLE";
    case Arithmetic::kIeee: return "ARITHMETIC_IEEE";
  }
  return "?";
}

Compat Compat::Original() {
  Compat all;
  for (const CompatField& field : kCompatFields) all.*field.member = true;
  return all;
}

absl::Span<const CompatField> CompatFields() { return kCompatFields; }

absl::Status Validate(const Runtime& runtime) {
  if (!runtime.target.has_value() || kernels::IsSupported(*runtime.target)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Runtime: this machine does not run the target ", kernels::ToString(*runtime.target)));
}

}  // namespace aqt
