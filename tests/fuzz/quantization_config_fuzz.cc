// Input: the JSON of a quantization_config. An accepted one is unchanged when written and read again, and its rules
// decide on any weight.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/families/module_roles.h"
#include "serving/formats/quantization_config.h"
#include "serving/formats/scheme.h"
#include "serving/plan/rules.h"

namespace serving = aqt::serving;
using aqt::io::FileDType;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view json(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<serving::QuantizationConfig> config = serving::ParseQuantizationConfig(json);
  if (!config.ok()) {
    AQT_CHECK(absl::IsInvalidArgument(config.status()) || absl::IsUnimplemented(config.status()));
    AQT_CHECK(!config.status().message().empty());
    return 0;
  }
  for (const serving::ConfigGroup& group : config->groups) AQT_CHECK(serving::Validate(group.scheme).ok());
  const absl::StatusOr<serving::QuantizationConfig> again =
      serving::ParseQuantizationConfig(serving::QuantizationConfigToJson(*config));
  AQT_CHECK(again.ok() && *again == *config);

  static const auto* const roles = new serving::ModuleRoles();
  absl::StatusOr<serving::RuleSet> rules =
      serving::RuleSet::FromQuantizationConfig(*config, *roles, [size](absl::string_view) { return size % 3 == 0; });
  if (!rules.ok()) {  // an unknown class or an unsupported pattern
    AQT_CHECK(absl::IsInvalidArgument(rules.status()) || absl::IsUnimplemented(rules.status()));
    return 0;
  }
  static const auto* const tensors = new std::vector<aqt::io::TensorSpec>{
      {"model.layers.0.mlp.up_proj.weight", FileDType::kBF16, {64, 128}},
      {"lm_head.weight", FileDType::kF16, {6, 50}},
      {"norm.weight", FileDType::kF32, {64}},
  };
  for (const aqt::io::TensorSpec& tensor : *tensors) {
    const absl::StatusOr<serving::Decision> decision = rules->Decide(tensor, /*tied=*/size % 2 == 0);
    AQT_CHECK(decision.ok() || absl::IsInvalidArgument(decision.status()) || absl::IsUnimplemented(decision.status()));
  }
  return 0;
}
