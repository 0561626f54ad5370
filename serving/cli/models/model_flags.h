#ifndef AQT_SERVING_CLI_MODELS_MODEL_FLAGS_H_
#define AQT_SERVING_CLI_MODELS_MODEL_FLAGS_H_

// What the commands that run a model share: its folder, how it is quantized, threads.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "aqt/transforms/quantize/inject.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/flags/run_command.h"
#include "serving/engine/text_engine.h"

namespace aqt::serving {

// DIR, the options of model_quantization.h, --threads and --progress.
void AddModel(CLI::App& command, Flags& flags);

struct OpenedModel {
  std::unique_ptr<TextEngine> engine;
  InjectConfig config;  // how its products are quantized
  std::vector<std::string> warnings;
};
// How tables in float32 are opened (docs/models.md): mapped, they take memory only for the rows that are used, and each
// of those rows takes longer.
enum class Tables { kRead, kMapped };
// Opens the folder as an engine, as the flags say. Shows the progress of reading, and ends when the user interrupts.
absl::StatusOr<OpenedModel> OpenModel(const Flags& flags, const io::FileSystem& fs, Tables tables,
                                      const Console& console);

// Writes the warnings on standard error.
void PrintWarnings(const std::vector<std::string>& warnings, const Console& console);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_MODELS_MODEL_FLAGS_H_
