#ifndef AQT_SERVING_CLI_PROGRAMS_MODEL_PRESET_H_
#define AQT_SERVING_CLI_PROGRAMS_MODEL_PRESET_H_

// A preset as the quantization of a model that is run. It is one of `aqt convert` (w8a8_dynamic, ...), or one of
// inject.proto (int8_all, ...).

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/models/folder_weights.h"
#include "aqt/transforms/quantize/inject.h"
#include "serving/convert/quantized_source.h"

namespace aqt::serving {

// Arguments of models::ModelFromFolder and EncoderModel::Serve.
struct ModelQuantization {
  InjectConfig config;
  std::unique_ptr<QuantizedSource> source;    // null: the weights of the folder
  std::optional<models::GivenWeights> given;  // of `source`
  std::vector<std::string> warnings;

  const models::GivenWeights* weights() const { return given.has_value() ? &*given : nullptr; }
};

// Those of `aqt convert` that write safetensors.
std::vector<std::string> FolderPresets();

struct ModelPreset {
  std::string name;         // empty: none
  std::string calibration;  // a file of ranges, as for `aqt convert`; empty: none
};
// The quantization of the model in `folder`. The errors of QuantizedSource::Open; InvalidArgument for an unknown preset
// and for a calibration without a preset of `aqt convert`. `calibration_option` is what the caller calls a calibration.
absl::StatusOr<ModelQuantization> OpenModelPreset(const io::FileSystem& fs, absl::string_view folder,
                                                  const ModelPreset& preset, absl::string_view calibration_option,
                                                  const std::atomic<bool>* cancelled = nullptr);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_PROGRAMS_MODEL_PRESET_H_
