#include "serving/cli/models/model_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "aqt/core/status_macros.h"
#include "aqt/io/mapped_files.h"
#include "aqt/io/printable.h"
#include "serving/cli/flags/shared_flags.h"
#include "serving/cli/models/model_quantization.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/read_progress.h"

namespace aqt::serving {

void AddModel(CLI::App& command, Flags& flags) {
  command.add_option("DIR", flags.input, "the folder of a text encoder: config.json, weights, tokenizer")->required();
  AddModelQuantization(command, flags);
  command
      .add_option("--threads", flags.threads,
                  "threads that compute, 1 to 1024; 0: one for each CPU. The results do not depend on it")
      ->check(CLI::Range(0, 1024))
      ->type_name("N")
      ->capture_default_str();
  AddProgress(command, flags);
}

absl::StatusOr<OpenedModel> OpenModel(const Flags& flags, const io::FileSystem& fs, Tables tables,
                                      const Console& console) {
  const std::unique_ptr<Progress> progress = ProgressMaker(flags, console)(BytesToRead(fs, flags.input));
  const ReadProgress counted(fs, *progress, console.interrupted);
  AQT_ASSIGN_OR_RETURN(ModelQuantization quantization, OpenModelQuantization(flags, counted, console));
  TextEngineOptions options;
  options.config = quantization.config;
  options.given = quantization.weights();
  options.engine.threads = flags.threads;
  // process.cc says what happens if a mapped file is cut off meanwhile.
  const io::MappedFiles mapped(counted);
  const io::FileSystem& files = tables == Tables::kMapped ? static_cast<const io::FileSystem&>(mapped) : counted;
  absl::StatusOr<std::unique_ptr<TextEngine>> engine = TextEngine::Open(files, flags.input, options);
  AQT_RETURN_IF_ERROR(CheckCancelled(console.interrupted));
  AQT_RETURN_IF_ERROR(engine.status());
  OpenedModel model = {*std::move(engine), {}, std::move(quantization.warnings)};
  model.config = model.engine->model().Rules(std::move(quantization.config));
  const std::vector<std::string>& notes = model.engine->model().notes();
  model.warnings.insert(model.warnings.end(), notes.begin(), notes.end());
  return model;
}

void PrintWarnings(const std::vector<std::string>& warnings, const Console& console) {
  for (const std::string& warning : warnings) console.err << "warning: " << io::PrintableLine(warning) << "\n";
}

}  // namespace aqt::serving
