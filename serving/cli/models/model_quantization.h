#ifndef AQT_SERVING_CLI_MODELS_MODEL_QUANTIZATION_H_
#define AQT_SERVING_CLI_MODELS_MODEL_QUANTIZATION_H_

// How commands that run a model quantize it: --preset, --config, --calibration.

#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/flags/run_command.h"
#include "serving/cli/programs/model_preset.h"

namespace CLI {
class App;
}

namespace aqt::serving {

// Adds these options to the command. A preset is one of `aqt convert` (w8a8_dynamic, ...), or one of inject.proto
// (int8_all, ...).
void AddModelQuantization(CLI::App& command, Flags& flags);

// What the options say about the model in flags.input. The errors of OpenModelPreset, and those of reading the
// configuration.
absl::StatusOr<ModelQuantization> OpenModelQuantization(const Flags& flags, const io::FileSystem& fs,
                                                        const Console& console);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_MODELS_MODEL_QUANTIZATION_H_
