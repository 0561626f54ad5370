#ifndef AQT_TESTS_SYSTEMS_CHECK_COMPARE_VALUES_H_
#define AQT_TESTS_SYSTEMS_CHECK_COMPARE_VALUES_H_

// The pass rules of recorded cases. An element passes if |got - want| <= atol + rtol * |want| in f64. A NaN passes only
// for a NaN, an infinity only for the same one. Dtypes and shapes must match; a scaled value must be returned scaled, a
// plain one plain; lists and dicts must have the same lengths and keys. Bools and integers must be equal. `tolerance`
// has atol and rtol for all outputs. A field with an output's name replaces it for that output; `scale`, if it is not
// an output, replaces it for all tensors of scales. max_flips_fraction lets this part of an output's elements miss by
// one step of flip_step; final_mean_rtol and final_mean_last compare the mean of the last rows; accept_factor and
// accept_base replace atol and rtol: element i is base_i times one of the factors, base_i = 2^-config.k[i].

#include <optional>
#include <string>

#include "tests/systems_check/system_case.h"

namespace aqt::systems {

// The first error of the computed outputs; null if they pass. InvalidArgument, naming the field, for a tolerance with
// an unknown field.
std::optional<std::string> CompareOutputs(const SystemValue::Dict& got, const SystemCase& system_case);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_COMPARE_VALUES_H_
