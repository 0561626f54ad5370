#include "serving/cli/checkpoints/checkpoint_commands.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/checkpoint.h"
#include "serving/cli/checkpoints/convert_summary.h"
#include "serving/cli/checkpoints/diff_command.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/flags/shared_flags.h"
#include "serving/cli/flags/suggest.h"
#include "serving/compare/inspect.h"
#include "serving/compare/verify.h"
#include "serving/convert/carried_files.h"
#include "serving/convert/convert.h"
#include "serving/convert/convert_job.h"
#include "serving/convert/model_input.h"
#include "serving/convert/plan_input.h"
#include "serving/gguf/gguf_job.h"
#include "serving/plan/convert_config.h"
#include "serving/plan/plan.h"
#include "serving/plan/recipe.h"
#include "serving/plan/whole_checkpoint.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

constexpr char kInspectExamples[] = R"(Examples:
  aqt inspect model/
  aqt inspect model/model-00001-of-00002.safetensors --stats
  aqt inspect model/ --json | jq '.dtypes')";

constexpr char kPlanExamples[] = R"(Examples:
  aqt plan model/ --preset w4a16_g128
  aqt plan model/ --config my.textproto --strict
  aqt plan model/ --scheme-from other-model/config.json --json
  aqt plan --preset w8a8_dynamic --print-effective-config > my.textproto)";

constexpr char kConvertExamples[] = R"(Examples:
  aqt convert model/ model-w8a8/ --preset w8a8_dynamic
  aqt convert fc.safetensors fc-int4.safetensors --preset w4a16_g32
  aqt convert model/ out/ --scheme-from other-model/config.json
  aqt convert model/ out/ --preset w8a8_static --calibration ranges.safetensors
  aqt convert model/ out/ --config my.textproto --max-shard-size 5GB --jobs 8 --force
  aqt convert model/ out/ --preset fp8_dynamic --exclude 'checkpoint-*/' --exclude '*.pt'
  aqt convert model-F16.gguf model-Q4_K.gguf --preset gguf_q4_k)";

constexpr char kDequantizeExamples[] = R"(Examples:
  aqt dequantize model-awq/ model/ --dtype bf16
  aqt dequantize deepseek-fp8/ model/ --dtype bf16 --max-shard-size 5GB --jobs 8)";

constexpr char kVerifyExamples[] = R"(Examples:
  aqt verify model/ model-w8a8/
  aqt verify model/ model-w8a8/ --min-snr 30 --min-row-snr 20)";

constexpr char kExplainExamples[] = R"(Examples:
  aqt explain model/ model.layers.0.mlp.up_proj --preset w8a8_dynamic
  aqt explain model/ lm_head.weight --config my.textproto)";

void AddExperts(CLI::App& app, Flags& flags, const char* what) {
  app.add_option("--experts", flags.experts, what)->check(CLI::IsMember({"auto", "split", "keep"}))->type_name("WHAT");
}

void AddRecipeFlags(CLI::App& app, Flags& flags) {
  auto* group = app.add_option_group("what to quantize, and how");
  group->add_option("--preset", flags.preset, absl::StrCat("one of ", absl::StrJoin(ConvertPresetNames(), ", ")))
      ->check(Suggest(ConvertPresetNames()))
      ->type_name("NAME");
  group->add_option("--config", flags.config, "a textproto (configs/convert.proto)")->type_name("FILE");
  group->add_option("--scheme-from", flags.scheme_from, "quantize like the model with this config.json")
      ->type_name("CONFIG.JSON");
  app.add_option("--rules", flags.rules, "arithmetic of weights: compressed_tensors or aqt")
      ->check(CLI::IsMember({"compressed_tensors", "aqt"}))
      ->type_name("NAME");
  AddExperts(
      app, flags,
      "tensors with all experts of a layer: split them into one weight per expert, keep them, or auto (default): "
      "split them if one is quantized");
  app.add_flag("--strict", flags.strict, "fail if a rule or an ignore entry has no effect");
}

void AddExclude(CLI::App& app, Flags& flags, const char* what) {
  app.add_option("--exclude", flags.exclude,
                 absl::StrCat(what, " ('*.pth', 'checkpoint-*/', 'original/*'); may be given several times"))
      ->allow_extra_args(false)
      ->type_name("GLOB");
}

RecipeSource ToRecipeSource(const Flags& flags) {
  RecipeSource source;
  source.preset = flags.preset;
  source.config_file = flags.config;
  source.scheme_from = flags.scheme_from;
  if (!flags.rules.empty())
    source.weight_rules = flags.rules == "aqt" ? WeightRules::kAqt : WeightRules::kCompressedTensors;
  if (!flags.non_finite.empty()) source.keep_non_finite = flags.non_finite == "keep";
  if (!flags.experts.empty()) {
    source.experts = flags.experts == "auto"    ? Experts::kAuto
                     : flags.experts == "split" ? Experts::kSplit
                                                : Experts::kKeep;
  }
  source.strict = flags.strict;
  return source;
}

absl::StatusOr<int64_t> MaxShardBytes(const Flags& flags) {
  if (flags.max_shard_size.empty()) return 0;
  const std::optional<int64_t> bytes = ParseBytes(flags.max_shard_size);
  if (bytes.has_value()) return *bytes;
  return absl::InvalidArgumentError(
      absl::StrCat("--max-shard-size ", flags.max_shard_size, " is not a valid size; examples are 5GB, 500MB, 2GiB"));
}

// The recipe's text. The text of --scheme-from cannot express some flags.
absl::StatusOr<std::string> ConfigText(const Recipe& recipe, const Flags& flags) {
  if (!recipe.like.has_value()) return recipe.Text();
  const char* const flag = !flags.rules.empty()        ? "rules"
                           : !flags.non_finite.empty() ? "non-finite"
                           : !flags.experts.empty()    ? "experts"
                                                       : nullptr;
  if (flag == nullptr) return absl::StrCat(recipe.Text(), "\n");
  return absl::InvalidArgumentError(absl::StrCat("a quantization_config cannot express --", flag,
                                                 "; print it without that flag, and pass the flag to convert"));
}

absl::Status NeedPath(absl::string_view name, const std::string& value) {
  return value.empty() ? absl::InvalidArgumentError(absl::StrCat(name, " is missing")) : absl::OkStatus();
}

// Says how the weights of an input are quantized that is not of compressed-tensors.
void DescribeQuantizedInput(const io::FileSystem& fs, const io::Checkpoint& checkpoint, InspectReport& report) {
  if (!report.quantization.empty() && !absl::StartsWith(report.quantization, kNotUnderstood)) return;
  const absl::StatusOr<ModelInput> input = ModelInput::Open(fs, checkpoint, {.dequantize = true});
  if (!input.ok()) {
    report.quantization = absl::StrCat(kNotUnderstood, input.status().message());
  } else if (input->num_dequantized() > 0) {
    report.quantization = absl::StrCat(input->stored_as(), "; ", input->num_dequantized(), " weights");
    const std::vector<std::string> notes = input->Notes();
    report.warnings.insert(report.warnings.end(), notes.begin(), notes.end());
  }
}

absl::StatusOr<ExitCode> RunInspect(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, OpenCheckpoint(flags.input, fs, console, flags));
  InspectOptions options;
  options.stats = flags.stats;
  options.cancelled = console.interrupted;
  AQT_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(fs, checkpoint));
  AQT_ASSIGN_OR_RETURN(InspectReport report, Inspect(checkpoint, model, options));
  report.other_files = checkpoint.other_files();
  DescribeQuantizedInput(fs, checkpoint, report);
  if (flags.json) {
    console.out << InspectToJson(report);
  } else {
    PrintInspect(report, console.out);
  }
  return ExitCode::kOk;
}

InputOptions MakeInputOptions(bool dequantize, const Recipe& recipe) {
  InputOptions options;
  options.dequantize = dequantize;
  if (recipe.config.has_value()) options.families = recipe.config->families;
  return options;
}

absl::StatusOr<ExitCode> RunPlan(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const Recipe recipe, LoadRecipe(fs, ToRecipeSource(flags)));
  if (flags.print_config) {
    AQT_ASSIGN_OR_RETURN(const std::string text, ConfigText(recipe, flags));
    console.out << text;
    return ExitCode::kOk;
  }
  AQT_RETURN_IF_ERROR(NeedPath("IN", flags.input));
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, OpenCheckpoint(flags.input, fs, console, flags));
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> warnings, CheckWhole(fs, checkpoint));
  AQT_ASSIGN_OR_RETURN(CarriedFiles files, FilesToCarry(checkpoint, flags.exclude));
  AQT_ASSIGN_OR_RETURN(ModelInput input,
                       ModelInput::Open(fs, checkpoint, MakeInputOptions(flags.allow_requantize, recipe)));
  input.LeaveOutFiles(files);
  CheckpointPlanOptions options;
  AQT_ASSIGN_OR_RETURN(options.max_shard_bytes, MaxShardBytes(flags));
  options.keep_shards = checkpoint.is_sharded();
  if (checkpoint.is_folder()) options.stem = checkpoint.stem();
  AQT_ASSIGN_OR_RETURN(Plan plan, PlanInput(input, recipe, options));
  plan.warnings.insert(plan.warnings.begin(), warnings.begin(), warnings.end());
  const std::vector<std::string> input_warnings = input.RequantizeWarnings();
  plan.warnings.insert(plan.warnings.end(), input_warnings.begin(), input_warnings.end());
  if (checkpoint.is_folder() && files.config_file.empty()) plan.warnings.push_back(kNoConfigWarning);
  AQT_ASSIGN_OR_RETURN(const std::vector<CopiedFile> copied, CopiedFiles(fs, files));
  if (flags.json) {
    console.out << PlanToJson(plan, copied);
    return ExitCode::kOk;
  }
  PrintPlan(plan, console.out);
  if (const std::string carried = DescribeCarried(copied); !carried.empty()) {
    console.out << "to be copied: " << carried << "\n";
  }
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunExplain(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const Recipe recipe, LoadRecipe(fs, ToRecipeSource(flags)));
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, OpenCheckpoint(flags.input, fs, console, flags));
  AQT_RETURN_IF_ERROR(CheckWhole(fs, checkpoint).status());
  AQT_ASSIGN_OR_RETURN(ModelInput input,
                       ModelInput::Open(fs, checkpoint, MakeInputOptions(flags.allow_requantize, recipe)));
  AQT_ASSIGN_OR_RETURN(const Explanation explanation, ExplainInput(input, recipe, flags.tensor));
  if (flags.json) {
    console.out << ExplanationToJson(explanation);
  } else {
    PrintExplanation(explanation, console.out);
  }
  return ExitCode::kOk;
}

// From GGUF to GGUF.
absl::StatusOr<ExitCode> RunConvertGguf(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  const bool unused = !flags.calibration.empty() || !flags.max_shard_size.empty() || !flags.exclude.empty() ||
                      !flags.rules.empty() || !flags.experts.empty() || !flags.raw_dtype.empty();
  if (unused) {
    return absl::InvalidArgumentError(
        "--calibration, --max-shard-size, --exclude, --rules, --experts and --dtype have no meaning for a GGUF file as "
        "OUT; leave them out");
  }
  GgufJob job;
  job.input = flags.input;
  job.output = flags.output;
  job.recipe = ToRecipeSource(flags);
  job.allow_requantize = flags.allow_requantize;
  job.force = flags.force;
  job.jobs = flags.jobs;
  job.cancelled = console.interrupted;
  job.make_progress = ProgressMaker(flags, console);
  const auto start = std::chrono::steady_clock::now();
  AQT_ASSIGN_OR_RETURN(const GgufReport report, RunGgufJob(fs, job));
  for (const std::string& warning : report.warnings) console.err << "warning: " << io::PrintableLine(warning) << "\n";
  if (flags.json) {
    ConvertJob convert_job;
    convert_job.output = flags.output;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    console.out << ConvertSummaryToJson(convert_job, ToConvertReport(report), seconds);
    return ExitCode::kOk;
  }
  console.out << io::PrintableLine(flags.output) << ": " << report.num_changed << " of " << report.num_tensors
              << " tensors changed, " << HumanBytes(report.old_bytes) << " -> " << HumanBytes(report.new_bytes) << "\n";
  return ExitCode::kOk;
}

// Runs a job with the flags that converting and dequantizing share, and reports what was done.
absl::StatusOr<ExitCode> RunJob(const Flags& flags, ConvertJob job, const io::FileSystem& fs, const Console& console) {
  job.input = flags.input;
  job.output = flags.output;
  job.gguf_names = GgufNames(flags);
  job.exclude = flags.exclude;
  job.force = flags.force;
  job.jobs = flags.jobs;
  AQT_ASSIGN_OR_RETURN(job.max_shard_bytes, MaxShardBytes(flags));
  job.cancelled = console.interrupted;
  job.make_progress = ProgressMaker(flags, console);

  const auto start = std::chrono::steady_clock::now();
  AQT_ASSIGN_OR_RETURN(const ConvertReport report, RunConvertJob(fs, job));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const std::string& warning : report.warnings) console.err << "warning: " << io::PrintableLine(warning) << "\n";
  if (flags.json) {
    console.out << ConvertSummaryToJson(job, report, seconds);
  } else {
    PrintConvertSummary(job, report, seconds, console.out);
  }
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunConvert(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  if (flags.print_config) {
    AQT_ASSIGN_OR_RETURN(const Recipe recipe, LoadRecipe(fs, ToRecipeSource(flags)));
    AQT_ASSIGN_OR_RETURN(const std::string text, ConfigText(recipe, flags));
    console.out << text;
    return ExitCode::kOk;
  }
  AQT_RETURN_IF_ERROR(NeedPath("IN", flags.input));
  AQT_RETURN_IF_ERROR(NeedPath("OUT", flags.output));
  if (IsGgufName(flags.output)) return RunConvertGguf(flags, fs, console);
  ConvertJob job;
  job.raw_dtype = RawDType(flags);
  job.recipe = ToRecipeSource(flags);
  job.calibration = flags.calibration;
  job.allow_requantize = flags.allow_requantize;
  return RunJob(flags, std::move(job), fs, console);
}

absl::StatusOr<ExitCode> RunDequantize(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  ConvertJob job;
  job.dequantize_to = DTypeFromString(flags.dtype);
  job.recipe = ToRecipeSource(flags);
  return RunJob(flags, std::move(job), fs, console);
}

absl::Status SetThreshold(absl::string_view flag, const std::optional<double>& given, double& threshold) {
  if (!given.has_value()) return absl::OkStatus();
  if (std::isnan(*given)) return absl::InvalidArgumentError(absl::StrCat(flag, " nan is not a number of decibels"));
  threshold = *given;
  return absl::OkStatus();
}

// Prints the results; kQuality if there is a problem.
absl::StatusOr<ExitCode> RunVerify(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint input, OpenCheckpoint(flags.input, fs, console, flags, flags.output));
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint output, OpenCheckpoint(flags.output, fs, console, flags));
  VerifyOptions options;
  options.jobs = flags.jobs;
  options.cancelled = console.interrupted;
  AQT_RETURN_IF_ERROR(SetThreshold("--min-snr", flags.min_snr, options.min_snr_db));
  AQT_RETURN_IF_ERROR(SetThreshold("--min-row-snr", flags.min_row_snr, options.min_row_snr_db));
  AQT_RETURN_IF_ERROR(SetThreshold("--min-group-snr", flags.min_group_snr, options.min_group_snr_db));
  AQT_ASSIGN_OR_RETURN(CarriedFiles files, FilesToCarry(input, flags.exclude));
  Recipe recipe;
  if (!flags.config.empty()) {
    AQT_ASSIGN_OR_RETURN(recipe, LoadRecipe(fs, ToRecipeSource(flags)));
  }
  // An original that is quantized itself is read as `convert --allow-requantize` reads it.
  AQT_ASSIGN_OR_RETURN(ModelInput original, ModelInput::Open(fs, input, MakeInputOptions(true, recipe)));
  original.LeaveOutFiles(files);
  AQT_RETURN_IF_ERROR(original.SplitLike(output));
  AQT_ASSIGN_OR_RETURN(const VerifyReport report, Verify(fs, original.tensors(), files, output, options));
  if (flags.json) {
    console.out << VerifyToJson(report);
  } else {
    PrintVerify(report, console.out);
  }
  for (const std::string& warning : report.warnings) console.err << "warning: " << io::PrintableLine(warning) << "\n";
  for (const std::string& problem : report.problems) console.err << "error: " << io::PrintableLine(problem) << "\n";
  return report.problems.empty() ? ExitCode::kOk : ExitCode::kQuality;
}

CLI::App* AddInspect(CLI::App& app, Flags& flags) {
  CLI::App* inspect = app.add_subcommand("inspect", "show what is in a checkpoint")->footer(kInspectExamples);
  inspect->add_option("IN", flags.input, kInputHelp)->required();
  AddJson(*inspect, flags);
  inspect->add_flag("--stats", flags.stats, "also read the data: minimum, maximum, NaNs");
  AddInputFiles(*inspect, flags);
  return inspect;
}

CLI::App* AddPlan(CLI::App& app, Flags& flags) {
  CLI::App* plan =
      app.add_subcommand("plan", "show what convert would do; reads headers, writes nothing")->footer(kPlanExamples);
  plan->add_option("IN", flags.input, kInputHelp);
  AddRecipeFlags(*plan, flags);
  plan->add_flag("--allow-requantize", flags.allow_requantize, "as for convert");
  AddJson(*plan, flags);
  plan->add_option("--max-shard-size", flags.max_shard_size, "as for convert")->type_name("SIZE");
  AddExclude(*plan, flags, "as for convert: files not to copy");
  plan->add_flag("--print-effective-config", flags.print_config,
                 "print the configuration with its base filled in, and exit");
  AddInputFiles(*plan, flags);
  return plan;
}

// What all commands that write a checkpoint share.
void AddOutputFlags(CLI::App& command, Flags& flags) {
  command
      .add_option("--max-shard-size", flags.max_shard_size,
                  "split the output into files of at most this size (5GB, 2GiB)")
      ->type_name("SIZE");
  AddExclude(command, flags, "files beside the weights not to copy");
  command.add_flag("--force", flags.force, "replace an existing output");
  AddJobs(command, flags);
  AddProgress(command, flags);
  AddJson(command, flags);
}

CLI::App* AddConvert(CLI::App& app, Flags& flags) {
  CLI::App* convert = app.add_subcommand("convert", "write a quantized checkpoint")->footer(kConvertExamples);
  convert->add_option("IN", flags.input, kInputHelp);
  convert->add_option("OUT", flags.output,
                      "a .safetensors file, a folder, or a .gguf file; it appears only when it is complete");
  AddRecipeFlags(*convert, flags);
  convert->add_option("--calibration", flags.calibration, "ranges of the activations, for static schemes")
      ->type_name("FILE");
  convert
      ->add_option("--non-finite", flags.non_finite,
                   "weights with NaN or infinity: error (default), or keep them in floating point")
      ->check(CLI::IsMember({"error", "keep"}))
      ->type_name("WHAT");
  convert->add_flag("--allow-requantize", flags.allow_requantize,
                    "dequantize an input that is quantized already, and quantize it again");
  AddOutputFlags(*convert, flags);
  convert->add_flag("--print-effective-config", flags.print_config,
                    "print the configuration with its base filled in, and exit");
  AddInputFiles(*convert, flags);
  return convert;
}

CLI::App* AddDequantize(CLI::App& app, Flags& flags) {
  CLI::App* dequantize =
      app.add_subcommand("dequantize", "write a quantized checkpoint in floating point")->footer(kDequantizeExamples);
  dequantize->add_option("IN", flags.input, "a quantized checkpoint: a .safetensors file or a folder")->required();
  dequantize->add_option("OUT", flags.output, "a .safetensors file or a folder, which appears complete or not at all")
      ->required();
  dequantize
      ->add_option("--dtype", flags.dtype,
                   "of the weights that were quantized: f32 (exact), bf16 or f16 (rounded once); others keep theirs")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->type_name("DTYPE")
      ->capture_default_str();
  AddGgufNames(*dequantize, flags);
  AddExperts(*dequantize, flags,
             "tensors with all experts of a layer: split them into one weight per expert, or keep them (default)");
  AddOutputFlags(*dequantize, flags);
  return dequantize;
}

CLI::App* AddVerify(CLI::App& app, Flags& flags) {
  CLI::App* verify =
      app.add_subcommand("verify", "compare a quantized checkpoint with its original")->footer(kVerifyExamples);
  verify->add_option("IN", flags.input, "the original checkpoint")->required();
  verify->add_option("OUT", flags.output, "the quantized checkpoint")->required();
  verify->add_option("--min-snr", flags.min_snr, "fail if a weight's signal-to-noise ratio is lower")->type_name("DB");
  verify->add_option("--min-row-snr", flags.min_row_snr, "fail if the ratio of a row is lower")->type_name("DB");
  verify->add_option("--min-group-snr", flags.min_group_snr, "fail if the ratio of a group or block is lower")
      ->type_name("DB");
  verify->add_option("--config", flags.config, "the configuration of the conversion, if it has families of models")
      ->type_name("FILE");
  AddExclude(*verify, flags, "files of IN that OUT may lack");
  AddJson(*verify, flags);
  AddJobs(*verify, flags);
  AddInputFiles(*verify, flags);
  return verify;
}

CLI::App* AddExplain(CLI::App& app, Flags& flags) {
  CLI::App* explain =
      app.add_subcommand("explain", "show why a tensor is or is not quantized")->footer(kExplainExamples);
  explain->add_option("IN", flags.input, kInputHelp)->required();
  explain->add_option("TENSOR", flags.tensor, "name of a tensor or of its module")->required()->type_name("NAME");
  AddRecipeFlags(*explain, flags);
  explain->add_flag("--allow-requantize", flags.allow_requantize, "as for convert");
  AddInputFiles(*explain, flags);
  AddJson(*explain, flags);
  return explain;
}

}  // namespace

std::vector<Command> CheckpointCommands() {
  return {{AddInspect, RunInspect}, {AddPlan, RunPlan}, {AddConvert, RunConvert}, {AddDequantize, RunDequantize},
          {AddVerify, RunVerify},   DiffCommand(),      {AddExplain, RunExplain}};
}

}  // namespace aqt::serving
