#include "tests/systems_check/systems_compat.h"

namespace aqt::systems {

SystemsCompat SystemsCompat::Original() {
  SystemsCompat compat;
  for (const SystemsSwitch& one : SystemsSwitches()) one.of(compat) = true;
  return compat;
}

absl::Span<const SystemsSwitch> SystemsSwitches() {
  static constexpr SystemsSwitch kSwitches[] = {
      {"select_divides_by_zero_scale", "values whose scales are all 0 are 0, not NaN",
       [](SystemsCompat& c) -> bool& { return c.scalify.select_divides_by_zero_scale; }},
      {"exp_keeps_zero", "exp of 0 is 1", [](SystemsCompat& c) -> bool& { return c.scalify.exp_keeps_zero; }},
      {"min_max_compare_raw_data", "an operand with the scale 0 is 0, whatever its data",
       [](SystemsCompat& c) -> bool& { return c.scalify.min_max_compare_raw_data; }},
      {"missing_rules_are_errors", "each operation has a rule",
       [](SystemsCompat& c) -> bool& { return c.scalify.missing_rules_are_errors; }},
      {"dot_has_one_contracting_axis", "any contraction is scaled",
       [](SystemsCompat& c) -> bool& { return c.scalify.dot_has_one_contracting_axis; }},
      {"plain_arrays_do_not_mix", "a plain array has the scale 1",
       [](SystemsCompat& c) -> bool& { return c.scalify.plain_arrays_do_not_mix; }},
      {"degenerate_scales", "a scale is finite, and loses no value",
       [](SystemsCompat& c) -> bool& { return c.scalify.degenerate_scales; }},
      {"dropped_under_grad", "a rounding of the forward pass stays where the value is differentiated",
       [](SystemsCompat& c) -> bool& { return c.dropped_under_grad; }},
      {"subnormals_are_zero", "a subnormal scaler keeps its value",
       [](SystemsCompat& c) -> bool& { return c.subnormals_are_zero; }},
      {"all_zero_amax_flips_scale", "a history of zeros keeps the scale",
       [](SystemsCompat& c) -> bool& { return c.fp8.all_zero_amax_flips_scale; }},
      {"nan_amax_flips_scale", "a history with NaN keeps the scale",
       [](SystemsCompat& c) -> bool& { return c.fp8.nan_amax_flips_scale; }},
      {"tiny_scale_is_zero", "a scale stays within the normal numbers",
       [](SystemsCompat& c) -> bool& { return c.fp8.tiny_scale_is_zero; }}};
  return kSwitches;
}

}  // namespace aqt::systems
