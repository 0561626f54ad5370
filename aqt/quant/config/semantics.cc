#include "aqt/quant/config/semantics.h"

#include <algorithm>
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
    {"divide_by_scale", &Compat::divide_by_scale, /*is_of_qwix=*/true},
    {"small_scales_are_one", &Compat::small_scales_are_one, /*is_of_qwix=*/true},
    {"integers_reach_lowest", &Compat::integers_reach_lowest, /*is_of_qwix=*/true},
    {"clip_gradient_at_bound", &Compat::clip_gradient_at_bound, /*is_of_qwix=*/true},
    {"noise_sum_stays_f32", &Compat::noise_sum_stays_f32, /*is_of_qwix=*/true},
    {"abs_mean_counts_zeros", &Compat::abs_mean_counts_zeros, /*is_of_qwix=*/true},
    {"fp8_scales_in_tensor_dtype", &Compat::fp8_scales_in_tensor_dtype, /*is_of_qwix=*/true},
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
  Compat compat;
  for (const CompatField& field : kCompatFields) compat.*field.member = !field.is_of_qwix;
  return compat;
}

Compat Compat::Qwix() {
  Compat compat;
  for (const CompatField& field : kCompatFields) compat.*field.member = field.is_of_qwix;
  return compat;
}

bool Compat::ChangesQuantization() const {
  return std::any_of(std::begin(kCompatFields), std::end(kCompatFields),
                     [&](const CompatField& field) { return field.is_of_qwix && this->*field.member; });
}

absl::Span<const CompatField> CompatFields() { return kCompatFields; }

}  // namespace aqt
