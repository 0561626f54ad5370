#include "serving/cli/flags/shared_flags.h"

#include <algorithm>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "serving/convert/convert.h"
#include "serving/convert/model_input.h"
#include "serving/tools/exit_code.h"

namespace aqt::serving {

void AddJobs(CLI::App& app, Flags& flags) {
  flags.jobs = std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  app.add_option("--jobs,-j", flags.jobs, absl::StrCat("threads, 1 to ", kMaxJobs, "; the results do not depend on it"))
      ->check(CLI::Range(1, kMaxJobs))
      ->type_name("N")
      ->capture_default_str();
}

void AddProgress(CLI::App& app, Flags& flags) {
  app.add_option("--progress", flags.progress,
                 "auto (a bar on a terminal, otherwise a line every ten seconds), always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN");
}

void AddJson(CLI::App& app, Flags& flags) { app.add_flag("--json", flags.json, "print JSON"); }

std::function<std::unique_ptr<Progress>(int64_t)> ProgressMaker(const Flags& flags, const Console& console) {
  const bool bar = flags.progress == "always" || (flags.progress == "auto" && console.err_is_terminal);
  const ProgressStyle style = flags.progress == "never" ? ProgressStyle::kNone
                              : bar                     ? ProgressStyle::kBar
                                                        : ProgressStyle::kLines;
  return [style, &err = console.err](int64_t bytes) { return std::make_unique<Progress>(style, bytes, err); };
}

void AddGgufNames(CLI::App& app, Flags& flags) {
  app.add_option("--gguf-names", flags.gguf_names,
                 "names of a GGUF file's tensors: those of the model in transformers, or those of the file")
      ->check(CLI::IsMember({"model", "file"}))
      ->type_name("WHICH")
      ->capture_default_str();
}

void AddInputFiles(CLI::App& app, Flags& flags) {
  AddGgufNames(app, flags);
  app.add_option("--dtype", flags.raw_dtype,
                 "the type of elements that NumPy's files do not name (|V1, |V2): bf16, f8_e4m3, f8_e5m2")
      ->check(CLI::IsMember({"bf16", "f8_e4m3", "f8_e5m2"}))
      ->type_name("NAME");
}

std::optional<io::FileDType> RawDType(const Flags& flags) {
  return io::FileDTypeFromString(absl::AsciiStrToUpper(flags.raw_dtype));
}

gguf::Names GgufNames(const Flags& flags) {
  return flags.gguf_names == "file" ? gguf::Names::kFile : gguf::Names::kModel;
}

absl::StatusOr<io::Checkpoint> OpenCheckpoint(const std::string& path, const io::FileSystem& fs, const Console& console,
                                              const Flags& flags, const std::string& leave_out) {
  InputFileOptions options;
  options.raw_dtype = RawDType(flags);
  options.leave_out = leave_out;
  options.gguf_names = GgufNames(flags);
  absl::StatusOr<io::Checkpoint> checkpoint = io::Checkpoint::Open(fs, path, InputFiles(fs, options));
  AQT_RETURN_IF_ERROR(CheckCancelled(console.interrupted));
  return checkpoint;
}

}  // namespace aqt::serving
