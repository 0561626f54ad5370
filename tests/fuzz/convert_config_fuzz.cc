// Input: a textproto of aqt.config.Convert, a recipe of the converter. An error names a place in the text. An accepted
// configuration is unchanged when written and read again, and decides on any weight.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/families/module_roles.h"
#include "serving/plan/convert_config.h"
#include "serving/plan/rules.h"
#include "tests/fuzz/text_error.h"

namespace serving = aqt::serving;
using aqt::io::FileDType;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<serving::ConvertConfig> config = serving::ParseConvertConfig(text, "t");
  if (!config.ok()) {
    aqt::fuzz::CheckTextError(config.status(), text);
    return 0;
  }
  const absl::StatusOr<serving::ConvertConfig> again = serving::ParseConvertConfig(config->text, "merged");
  AQT_CHECK(again.ok());
  AQT_CHECK(again->text == config->text && again->rules == config->rules && again->ignore == config->ignore);
  AQT_CHECK(again->default_ignore == config->default_ignore && again->weight_rules == config->weight_rules &&
            again->keep_non_finite == config->keep_non_finite);

  static const auto* const roles = new serving::ModuleRoles();
  absl::StatusOr<serving::RuleSet> rules = serving::RuleSet::FromConfig(*config, *roles);
  const bool for_gguf = std::any_of(config->rules.begin(), config->rules.end(),
                                    [](const serving::ConfigRule& rule) { return rule.gguf.has_value(); });
  AQT_CHECK(rules.ok() != for_gguf);
  if (for_gguf) return 0;
  static const auto* const tensors = new std::vector<aqt::io::TensorSpec>{
      {"model.layers.0.mlp.up_proj.weight", FileDType::kBF16, {64, 128}},
      {"model.embed_tokens.weight", FileDType::kF32, {10, 50}},
      {"lm_head.weight", FileDType::kF16, {0, 8}},
      {"conv.weight", FileDType::kF32, {4, 3, 3, 3}},
      {"norm.weight", FileDType::kF32, {64}},
      {".weight", FileDType::kI8, {2, 2}},
  };
  for (const aqt::io::TensorSpec& tensor : *tensors) {
    std::vector<std::string> trace;
    const absl::StatusOr<serving::Decision> decision = rules->Decide(tensor, /*tied=*/size % 2 == 0, &trace);
    AQT_CHECK(decision.ok() || absl::IsInvalidArgument(decision.status()) || absl::IsUnimplemented(decision.status()));
    AQT_CHECK(!decision.ok() || !decision->scheme.has_value() || serving::Validate(*decision->scheme).ok());
  }
  AQT_CHECK(rules->Unused().size() <= config->rules.size() + config->ignore.size());
  return 0;
}
