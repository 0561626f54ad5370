#ifndef AQT_TESTS_SYSTEMS_CHECK_COMPARE_VALUES_H_
#define AQT_TESTS_SYSTEMS_CHECK_COMPARE_VALUES_H_

// The pass rules of recorded cases.
//
// An element passes if |got - want| <= atol + rtol * |want| in f64; NaN only where NaN is stored, an infinity only
// where the same one is. Dtypes and shapes must match; a scaled value must come back scaled, a plain one plain; lists
// and dicts with the same lengths and keys. Bools and integers must be equal.
//
// `tolerance`: atol and rtol for all; a field with an output's name replaces all of it for that output; `scale`, if it
// is no output, replaces it for all tensors of scales. max_flips_fraction lets this part of an output's elements miss
// by one step of flip_step; final_mean_rtol and final_mean_last compare the mean of the last rows; accept_factor and
// accept_base replace atol and rtol: element i is base_i times one of the factors, base_i = 2^-config.k[i].

#include <optional>
#include <string>

#include "tests/systems_check/system_case.h"

namespace aqt::systems {

// The first thing that is wrong with computed outputs; null if they pass. InvalidArgument in words for a tolerance with
// an unknown field.
std::optional<std::string> CompareOutputs(const SystemValue::Dict& got, const SystemCase& system_case);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_COMPARE_VALUES_H_
