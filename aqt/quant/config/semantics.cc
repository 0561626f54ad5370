#include "aqt/quant/config/semantics.h"

#include <iterator>

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
    {"weight_only_in_float", &Compat::weight_only_in_float},
    {"einsum_sums_in_dtype", &Compat::einsum_sums_in_dtype},
};
static_assert(sizeof(Compat) == std::size(kCompatFields), "a field of Compat has no name here");

}  // namespace

absl::string_view ToString(WeightOnly weight_only) {
  switch (weight_only) {
    case WeightOnly::kDigits: return "WEIGHT_ONLY_DIGITS";
    case WeightOnly::kFloat: return "WEIGHT_ONLY_FLOAT";
  }
  return "?";
}

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

}  // namespace aqt
