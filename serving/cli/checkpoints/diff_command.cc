#include "serving/cli/checkpoints/diff_command.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/flags/shared_flags.h"
#include "serving/compare/diff.h"
#include "serving/compare/diff_files.h"
#include "serving/convert/model_input.h"
#include "serving/tools/exit_code.h"

namespace aqt::serving {
namespace {

constexpr char kExamples[] = R"(Examples:
  aqt diff model/ finetuned/
  aqt diff model.safetensors copy.safetensors --bitwise
  aqt diff model/ model-w8a8/ --dequantize --json | jq '.different[].snr_db')";

// kQuality if there is a difference.
absl::StatusOr<ExitCode> RunDiff(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  if (flags.bitwise && flags.dequantize) {
    return absl::InvalidArgumentError(
        "--bitwise compares what is stored, and --dequantize what it means; leave out one");
  }
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint a, OpenCheckpoint(flags.input, fs, console, flags));
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint b, OpenCheckpoint(flags.output, fs, console, flags));
  AQT_ASSIGN_OR_RETURN(const ModelInput input_a, ModelInput::Open(fs, a, {.dequantize = flags.dequantize}));
  AQT_ASSIGN_OR_RETURN(const ModelInput input_b, ModelInput::Open(fs, b, {.dequantize = flags.dequantize}));
  DiffOptions options;
  options.bitwise = flags.bitwise;
  options.ignore_dtypes = flags.dequantize;
  options.jobs = flags.jobs;
  options.cancelled = console.interrupted;
  options.make_progress = ProgressMaker(flags, console);
  AQT_ASSIGN_OR_RETURN(DiffReport report, Diff(input_a.tensors(), input_b.tensors(), options));
  AQT_RETURN_IF_ERROR(DiffFiles(fs, a, b, /*ignore_quantization=*/flags.dequantize, console.interrupted, report));
  for (const ModelInput* input : {&input_a, &input_b}) {
    const std::vector<std::string> notes = input->Notes();
    report.notes.insert(report.notes.end(), notes.begin(), notes.end());
  }
  if (flags.json) {
    console.out << DiffToJson(report);
  } else {
    PrintDiff(report, console.out);
  }
  return report.same() ? ExitCode::kOk : ExitCode::kQuality;
}

CLI::App* AddDiff(CLI::App& app, Flags& flags) {
  CLI::App* diff = app.add_subcommand("diff", "compare two checkpoints, tensor by tensor")->footer(kExamples);
  diff->add_option("A", flags.input, kInputHelp)->required();
  diff->add_option("B", flags.output, kInputHelp)->required();
  diff->add_flag("--bitwise", flags.bitwise, "compare bytes, not numbers: -0 differs from +0");
  diff->add_flag("--dequantize", flags.dequantize,
                 "compare the values of quantized weights, in f32; other dtypes are no difference");
  AddInputFiles(*diff, flags);
  AddJson(*diff, flags);
  AddJobs(*diff, flags);
  AddProgress(*diff, flags);
  return diff;
}

}  // namespace

Command DiffCommand() { return {AddDiff, RunDiff}; }

}  // namespace aqt::serving
