#ifndef AQT_SERVING_CLI_MODEL_QUANTIZATION_H_
#define AQT_SERVING_CLI_MODEL_QUANTIZATION_H_

// How commands that run a model quantize it: --preset, --config, --calibration.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "aqt/models/folder_weights.h"
#include "aqt/transforms/quantize/inject.h"
#include "serving/cli/flags.h"
#include "serving/cli/run_command.h"
#include "serving/convert/quantized_source.h"

namespace CLI {
class App;
}

namespace aqt::serving {

// Adds these options to the command. A preset is one of `aqt convert` (w8a8_dynamic, ...), or one of inject.proto
// (int8_all, ...).
void AddModelQuantization(CLI::App& command, Flags& flags);

// Arguments of models::ModelFromFolder and EncoderModel::Serve.
struct ModelQuantization {
  InjectConfig config;
  std::unique_ptr<QuantizedSource> source;    // null: the weights of the folder
  std::optional<models::GivenWeights> given;  // of `source`
  std::vector<std::string> warnings;

  const models::GivenWeights* weights() const { return given.has_value() ? &*given : nullptr; }
};
// What the options say about the model in flags.input. The errors of QuantizedSource::Open; those of reading the
// configuration; InvalidArgument for a calibration without a preset of `aqt convert`.
absl::StatusOr<ModelQuantization> OpenModelQuantization(const Flags& flags, const io::FileSystem& fs,
                                                        const Console& console);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_MODEL_QUANTIZATION_H_
