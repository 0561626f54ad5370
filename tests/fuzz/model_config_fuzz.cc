// Input: a config.json. If it can be read, a quantization_config that is set in it is read back, and setting it again
// changes nothing. If not, setting one is refused.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "serving/formats/quantization_config.h"

namespace serving = aqt::serving;

namespace {

serving::QuantizationConfig Given() {
  serving::QuantizationConfig config;
  config.groups.push_back({.name = "group_0", .targets = {"Linear"}, .scheme = {}});
  config.ignore = {"lm_head"};
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string json(reinterpret_cast<const char*>(data), size);
  static const auto* const given = new serving::QuantizationConfig(Given());
  const absl::StatusOr<serving::ModelConfig> model = serving::ParseModelConfig(json);
  const absl::StatusOr<std::string> written = serving::SetQuantizationConfig(json, *given);
  if (!model.ok()) {
    AQT_CHECK(json.empty() || !written.ok());
    return 0;
  }
  AQT_CHECK(written.ok());
  const absl::StatusOr<serving::ModelConfig> again = serving::ParseModelConfig(*written);
  AQT_CHECK(again.ok() && again->quantization_config.has_value());
  AQT_CHECK(again->tie_word_embeddings == model->tie_word_embeddings &&
            again->facts.has_output_head == model->facts.has_output_head);
  const absl::StatusOr<serving::QuantizationConfig> read =
      serving::ParseQuantizationConfig(*again->quantization_config);
  AQT_CHECK(read.ok() && *read == *given);
  const absl::StatusOr<std::string> twice = serving::SetQuantizationConfig(*written, *given);
  AQT_CHECK(twice.ok() && *twice == *written);
  return 0;
}
