#ifndef AQT_TESTS_GOLDEN_CHECK_PARSE_CONFIG_H_
#define AQT_TESTS_GOLDEN_CHECK_PARSE_CONFIG_H_

// The configuration of a case: from the JSON of the manifest to the library's structs.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "tests/golden_check/golden_case.h"

namespace aqt::golden {

// `inputs` are the inputs of the case: some configurations refer to them. Unimplemented for an unknown feature, kind or
// field; InvalidArgument if one is missing or has the wrong type.
absl::StatusOr<CaseConfig> ParseConfig(absl::string_view feature, const nlohmann::ordered_json& config,
                                       const Tensors& inputs);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_PARSE_CONFIG_H_
