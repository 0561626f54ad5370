#include "serving/cli/command.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "aqt/core/machine/target_name.h"
#include "aqt/core/machine/verbose.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/draw/draw.h"
#include "aqt/graph/program.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/ops/contraction/draw_numerics.h"
#include "serving/cli/effective_config.h"
#include "serving/convert/carried_files.h"
#include "serving/convert/convert.h"
#include "serving/convert/convert_job.h"
#include "serving/convert/inspect.h"
#include "serving/convert/verify.h"
#include "serving/plan/convert_config.h"
#include "serving/plan/plan.h"
#include "serving/plan/recipe.h"
#include "serving/plan/whole_checkpoint.h"
#include "serving/tools/command_line.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/parallel.h"
#include "serving/tools/progress.h"
#include "serving/tools/text.h"
#include "serving/tools/version.h"

namespace aqt::serving {
namespace {

constexpr char kFooter[] = R"(Exit codes:
  0  done                       1  verify: a threshold is missed or tensors disagree
  2  command line or config     3  input damaged, or values that cannot be quantized
  4  file missing, in the way,  5  legal, but not supported
     or not writable; too     130  interrupted
     little memory, no threads

A first session:
  aqt inspect model/
  aqt plan    model/ --preset w8a8_dynamic
  aqt convert model/ model-w8a8/ --preset w8a8_dynamic
  aqt verify  model/ model-w8a8/ --min-snr 30)";

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
  aqt convert model/ out/ --preset fp8_dynamic --exclude 'checkpoint-*/' --exclude '*.pt')";

constexpr char kVerifyExamples[] = R"(Examples:
  aqt verify model/ model-w8a8/
  aqt verify model/ model-w8a8/ --min-snr 30 --min-row-snr 20)";

constexpr char kExplainExamples[] = R"(Examples:
  aqt explain model/ model.layers.0.mlp.up_proj --preset w8a8_dynamic
  aqt explain model/ lm_head.weight --config my.textproto)";

constexpr char kConfigExamples[] = R"(Examples:
  aqt config dot_general                        # the presets
  aqt config dot_general config_v4              # one of them, whole
  aqt config inject my.textproto                # checked, with every base filled in
  aqt config inject int8_all --program model.txt   # what it would do to a program)";

constexpr char kProgramExamples[] = R"(Examples:
  aqt program model.aqtprog > model.txt
  aqt program model.aqtprog --draw svg --depth 2 > model.svg
  aqt program model.aqtprog --draw dot | dot -Tpdf > model.pdf)";

// The arguments of all subcommands.
struct Flags {
  std::string input, output, tensor, kind, program, draw;
  std::string preset, config, scheme_from, rules, non_finite;
  std::string calibration, max_shard_size;
  std::string progress = "auto";
  int jobs = 1;
  bool strict = false, force = false, json = false, stats = false, print_config = false;
  std::optional<double> min_snr, min_row_snr, min_group_snr;
  std::optional<int> depth;
  std::vector<std::string> exclude;
};

int DefaultJobs() { return std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 8); }

void AddRecipeFlags(CLI::App& app, Flags& flags) {
  auto* group = app.add_option_group("what to quantize, and how");
  group->add_option("--preset", flags.preset, absl::StrCat("one of ", absl::StrJoin(ConvertPresetNames(), ", ")))
      ->type_name("NAME");
  group->add_option("--config", flags.config, "a textproto (configs/convert.proto)")->type_name("FILE");
  group->add_option("--scheme-from", flags.scheme_from, "quantize like the model with this config.json")
      ->type_name("CONFIG.JSON");
  app.add_option("--rules", flags.rules, "arithmetic of weights: compressed_tensors or aqt")
      ->check(CLI::IsMember({"compressed_tensors", "aqt"}))
      ->type_name("NAME");
  app.add_flag("--strict", flags.strict, "a rule or ignore entry without effect is an error");
}

void AddExclude(CLI::App& app, Flags& flags, const char* what) {
  app.add_option("--exclude", flags.exclude,
                 absl::StrCat(what, " ('*.pth', 'checkpoint-*/', 'original/*'); may be given several times"))
      ->allow_extra_args(false)
      ->type_name("GLOB");
}

void AddJobs(CLI::App& app, Flags& flags) {
  app.add_option("--jobs,-j", flags.jobs, absl::StrCat("threads, 1 to ", kMaxJobs, "; results do not depend on them"))
      ->check(CLI::Range(1, kMaxJobs))
      ->type_name("N")
      ->capture_default_str();
}

RecipeSource ToRecipeSource(const Flags& flags) {
  RecipeSource source;
  source.preset = flags.preset;
  source.config_file = flags.config;
  source.scheme_from = flags.scheme_from;
  if (!flags.rules.empty())
    source.weight_rules = flags.rules == "aqt" ? WeightRules::kAqt : WeightRules::kCompressedTensors;
  if (!flags.non_finite.empty()) source.keep_non_finite = flags.non_finite == "keep";
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

// An empty value, such as that of an unset shell variable, must not turn a flag off.
absl::Status CheckNotEmpty(const CLI::App& command) {
  const auto is_empty = [](const std::string& value) { return value.empty(); };
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    const std::vector<std::string>& values = option->results();
    if (std::none_of(values.begin(), values.end(), is_empty)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option->get_name(), " is empty; give it a value, or leave it out if it is optional"));
  }
  for (const CLI::App* group : command.get_subcommands({})) AQT_RETURN_IF_ERROR(CheckNotEmpty(*group));
  return absl::OkStatus();
}

// The recipe's text. The text of --scheme-from cannot express some flags.
absl::StatusOr<std::string> ConfigText(const Recipe& recipe, const Flags& flags) {
  if (!recipe.like.has_value()) return recipe.Text();
  if (flags.rules.empty() && flags.non_finite.empty()) return absl::StrCat(recipe.Text(), "\n");
  return absl::InvalidArgumentError(absl::StrCat("a quantization_config cannot say --",
                                                 flags.rules.empty() ? "non-finite" : "rules",
                                                 "; print it without that flag, and give the flag to convert"));
}

// Lines in which names can neither move a terminal's cursor nor break its display.
std::string PrintableText(absl::string_view text) {
  return absl::StrJoin(absl::StrSplit(text, '\n'), "\n",
                       [](std::string* out, absl::string_view line) { absl::StrAppend(out, io::PrintableLine(line)); });
}

absl::Status NeedPath(absl::string_view name, const std::string& value) {
  return value.empty() ? absl::InvalidArgumentError(absl::StrCat(name, " is missing")) : absl::OkStatus();
}

// Headers may be large, too: an interrupt while they are read ends the command afterwards.
absl::StatusOr<io::Checkpoint> OpenCheckpoint(const std::string& path, const io::FileSystem& fs, const Console& console,
                                              const io::CheckpointOptions& options = {}) {
  absl::StatusOr<io::Checkpoint> checkpoint = io::Checkpoint::Open(fs, path, options);
  AQT_RETURN_IF_ERROR(CheckCancelled(console.interrupted));
  return checkpoint;
}

absl::Status RunInspect(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, OpenCheckpoint(flags.input, fs, console));
  InspectOptions options;
  options.stats = flags.stats;
  options.cancelled = console.interrupted;
  AQT_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(fs, checkpoint));
  AQT_ASSIGN_OR_RETURN(InspectReport report, Inspect(checkpoint, model, options));
  report.other_files = checkpoint.other_files();
  if (flags.json) {
    console.out << InspectToJson(report);
  } else {
    PrintInspect(report, console.out);
  }
  return absl::OkStatus();
}

absl::Status RunPlan(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const Recipe recipe, LoadRecipe(fs, ToRecipeSource(flags)));
  if (flags.print_config) {
    AQT_ASSIGN_OR_RETURN(const std::string text, ConfigText(recipe, flags));
    console.out << text;
    return absl::OkStatus();
  }
  AQT_RETURN_IF_ERROR(NeedPath("IN", flags.input));
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, OpenCheckpoint(flags.input, fs, console));
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> warnings, CheckWhole(fs, checkpoint));
  AQT_ASSIGN_OR_RETURN(const CarriedFiles files, FilesToCarry(checkpoint, flags.exclude));
  AQT_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(fs, checkpoint));
  PlanOptions options;
  AQT_ASSIGN_OR_RETURN(options.max_shard_bytes, MaxShardBytes(flags));
  options.keep_shards = checkpoint.is_sharded();
  if (checkpoint.is_folder()) options.stem = checkpoint.stem();
  AQT_ASSIGN_OR_RETURN(Plan plan, MakePlan(checkpoint, model, recipe, options));
  plan.warnings.insert(plan.warnings.begin(), warnings.begin(), warnings.end());
  if (checkpoint.is_folder() && files.config_file.empty()) plan.warnings.push_back(kNoConfigWarning);
  if (flags.json) {
    console.out << PlanToJson(plan);
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(const std::vector<CarriedSize> sizes, CarriedSizes(fs, files));
  PrintPlan(plan, console.out);
  if (const std::string carried = DescribeCarried(files, sizes); !carried.empty()) {
    console.out << "to be copied: " << carried << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunConfig(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  if (!flags.program.empty() && (flags.kind != "inject" || flags.input.empty())) {
    return absl::InvalidArgumentError(
        "--program says what an inject configuration would do: use it as in `aqt config inject SOURCE --program FILE`");
  }
  if (flags.input.empty()) {
    console.out << absl::StrJoin(PresetNames(flags.kind), "\n") << "\n";
    return absl::OkStatus();
  }
  if (!flags.program.empty()) {
    std::vector<std::string> unmatched;
    AQT_ASSIGN_OR_RETURN(const std::string report, InjectionReport(fs, flags.input, flags.program, &unmatched));
    console.out << PrintableText(report);
    if (unmatched.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        absl::StrJoin(unmatched, ", "), " hit nothing, which is an error unless the configuration has strict: false"));
  }
  AQT_ASSIGN_OR_RETURN(const std::string text, EffectiveConfig(fs, flags.kind, flags.input));
  console.out << text;
  return absl::OkStatus();
}

absl::Status RunExplain(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const Recipe recipe, LoadRecipe(fs, ToRecipeSource(flags)));
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint checkpoint, OpenCheckpoint(flags.input, fs, console));
  AQT_RETURN_IF_ERROR(CheckWhole(fs, checkpoint).status());
  AQT_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(fs, checkpoint));
  AQT_ASSIGN_OR_RETURN(const std::string text, Explain(checkpoint, model, recipe, flags.tensor));
  console.out << text;
  return absl::OkStatus();
}

absl::Status RunProgram(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  if (flags.depth.has_value() && flags.draw.empty()) {
    return absl::InvalidArgumentError("--depth folds scopes of a drawing; give --draw svg or --draw dot, too");
  }
  AQT_ASSIGN_OR_RETURN(const Program program, ReadProgram(fs, flags.input));
  const DrawOptions options{.depth = flags.depth, .paint = ops::PaintNumerics};
  console.out << PrintableText(flags.draw.empty()    ? ToText(program)
                               : flags.draw == "svg" ? DrawSvg(program, options)
                                                     : DrawDot(program, options));
  return absl::OkStatus();
}

// The peak since this program began. getrusage's ru_maxrss starts with that of the parent process.
int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view kib = line;
    int64_t number;
    if (absl::ConsumePrefix(&kib, "VmHWM:") && absl::ConsumeSuffix(&kib, "kB") && absl::SimpleAtoi(kib, &number)) {
      return number * 1024;
    }
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

absl::Status RunConvert(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  if (flags.print_config) {
    AQT_ASSIGN_OR_RETURN(const Recipe recipe, LoadRecipe(fs, ToRecipeSource(flags)));
    AQT_ASSIGN_OR_RETURN(const std::string text, ConfigText(recipe, flags));
    console.out << text;
    return absl::OkStatus();
  }
  AQT_RETURN_IF_ERROR(NeedPath("IN", flags.input));
  AQT_RETURN_IF_ERROR(NeedPath("OUT", flags.output));
  ConvertJob job;
  job.input = flags.input;
  job.output = flags.output;
  job.recipe = ToRecipeSource(flags);
  job.calibration = flags.calibration;
  job.exclude = flags.exclude;
  job.force = flags.force;
  job.jobs = flags.jobs;
  AQT_ASSIGN_OR_RETURN(job.max_shard_bytes, MaxShardBytes(flags));
  job.cancelled = console.interrupted;
  const bool bar = flags.progress == "always" || (flags.progress == "auto" && console.err_is_terminal);
  const ProgressStyle style = flags.progress == "never" ? ProgressStyle::kNone
                              : bar                     ? ProgressStyle::kBar
                                                        : ProgressStyle::kLines;
  job.make_progress = [&](int64_t bytes) { return std::make_unique<Progress>(style, bytes, console.err); };

  const auto start = std::chrono::steady_clock::now();
  AQT_ASSIGN_OR_RETURN(const ConvertReport report, RunConvertJob(fs, job));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const std::string& warning : report.warnings) console.err << "warning: " << io::PrintableLine(warning) << "\n";
  console.out << io::PrintableLine(flags.output) << ": " << report.num_quantized << " of " << report.num_tensors
              << " tensors quantized, " << HumanBytes(report.old_bytes) << " -> " << HumanBytes(report.new_bytes)
              << ", "
              << absl::StrFormat("%.2f s, %.0f MB/s, peak memory ", seconds,
                                 static_cast<double>(report.old_bytes) / seconds / 1e6)
              << HumanBytes(PeakResidentBytes()) << "\n";
  if (!report.carried.empty()) {
    console.out << "copied: " << report.carried << (flags.exclude.empty() ? "; --exclude GLOB leaves files out" : "")
                << "\n";
  }
  return absl::OkStatus();
}

absl::Status SetThreshold(absl::string_view flag, const std::optional<double>& given, double& threshold) {
  if (!given.has_value()) return absl::OkStatus();
  if (std::isnan(*given)) return absl::InvalidArgumentError(absl::StrCat(flag, " nan; expected a number of decibels"));
  threshold = *given;
  return absl::OkStatus();
}

// Prints the results; kQuality if there is a problem.
absl::StatusOr<ExitCode> RunVerify(const Flags& flags, const io::FileSystem& fs, const Console& console) {
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint input,
                       OpenCheckpoint(flags.input, fs, console, {.leave_out = flags.output}));
  AQT_ASSIGN_OR_RETURN(const io::Checkpoint output, OpenCheckpoint(flags.output, fs, console));
  VerifyOptions options;
  options.jobs = flags.jobs;
  options.cancelled = console.interrupted;
  AQT_RETURN_IF_ERROR(SetThreshold("--min-snr", flags.min_snr, options.min_snr_db));
  AQT_RETURN_IF_ERROR(SetThreshold("--min-row-snr", flags.min_row_snr, options.min_row_snr_db));
  AQT_RETURN_IF_ERROR(SetThreshold("--min-group-snr", flags.min_group_snr, options.min_group_snr_db));
  AQT_ASSIGN_OR_RETURN(const CarriedFiles files, FilesToCarry(input, flags.exclude));
  AQT_ASSIGN_OR_RETURN(const VerifyReport report, Verify(fs, input, files, output, options));
  if (flags.json) {
    console.out << VerifyToJson(report);
  } else {
    PrintVerify(report, console.out);
  }
  for (const std::string& warning : report.warnings) console.err << "warning: " << io::PrintableLine(warning) << "\n";
  for (const std::string& problem : report.problems) console.err << "error: " << io::PrintableLine(problem) << "\n";
  return report.problems.empty() ? ExitCode::kOk : ExitCode::kQuality;
}

ExitCode Report(const absl::Status& status, const Console& console) {
  if (!status.ok()) console.err << "error: " << io::PrintableLine(status.message()) << "\n";
  return ExitCodeOf(status);
}

std::string VersionText() {
  return absl::StrCat(
      "aqt ", kVersion, "\nSIMD target: ", kernels::ToString(kernels::BestTarget()), " (supported: ",
      absl::StrJoin(kernels::SupportedTargets(), ", ",
                    [](std::string* out, kernels::Target t) { absl::StrAppend(out, kernels::ToString(t)); }),
      ")\n");
}

CLI::App* AddInspect(CLI::App& app, Flags& flags) {
  CLI::App* inspect = app.add_subcommand("inspect", "show what is in a checkpoint")->footer(kInspectExamples);
  inspect->add_option("IN", flags.input, "a .safetensors file or a folder")->required();
  inspect->add_flag("--json", flags.json, "print JSON");
  inspect->add_flag("--stats", flags.stats, "read the tensors: smallest and largest value, NaNs");
  return inspect;
}

CLI::App* AddPlan(CLI::App& app, Flags& flags) {
  CLI::App* plan =
      app.add_subcommand("plan", "show what convert would do; reads headers, writes nothing")->footer(kPlanExamples);
  plan->add_option("IN", flags.input, "a .safetensors file or a folder");
  AddRecipeFlags(*plan, flags);
  plan->add_flag("--json", flags.json, "print JSON");
  plan->add_option("--max-shard-size", flags.max_shard_size, "as for convert")->type_name("SIZE");
  AddExclude(*plan, flags, "as for convert: files that it does not copy");
  plan->add_flag("--print-effective-config", flags.print_config,
                 "print the configuration with its base filled in, and stop");
  return plan;
}

CLI::App* AddConvert(CLI::App& app, Flags& flags) {
  CLI::App* convert = app.add_subcommand("convert", "write a quantized checkpoint")->footer(kConvertExamples);
  convert->add_option("IN", flags.input, "a .safetensors file or a folder");
  convert->add_option("OUT", flags.output, "a .safetensors file or a folder, which appears complete or not at all");
  AddRecipeFlags(*convert, flags);
  convert->add_option("--calibration", flags.calibration, "ranges of activations, for static schemes")
      ->type_name("FILE");
  convert
      ->add_option("--non-finite", flags.non_finite,
                   "weights with NaN or infinity: error (default), or keep them in floating point")
      ->check(CLI::IsMember({"error", "keep"}))
      ->type_name("WHAT");
  convert
      ->add_option("--max-shard-size", flags.max_shard_size,
                   "split the output into files of at most this size (5GB, 2GiB)")
      ->type_name("SIZE");
  AddExclude(*convert, flags, "files beside the weights that are not copied");
  convert->add_flag("--force", flags.force, "replace an existing output");
  AddJobs(*convert, flags);
  convert
      ->add_option("--progress", flags.progress,
                   "auto (a bar on a terminal, else a line now and then), always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN");
  convert->add_flag("--print-effective-config", flags.print_config,
                    "print the configuration with its base filled in, and stop");
  return convert;
}

CLI::App* AddVerify(CLI::App& app, Flags& flags) {
  CLI::App* verify =
      app.add_subcommand("verify", "compare a quantized checkpoint with its original")->footer(kVerifyExamples);
  verify->add_option("IN", flags.input, "the original")->required();
  verify->add_option("OUT", flags.output, "the quantized one")->required();
  verify->add_option("--min-snr", flags.min_snr, "fail if a weight's signal-to-noise ratio is lower")->type_name("DB");
  verify->add_option("--min-row-snr", flags.min_row_snr, "fail if that of a row is lower")->type_name("DB");
  verify->add_option("--min-group-snr", flags.min_group_snr, "fail if that of a group or block is lower")
      ->type_name("DB");
  AddExclude(*verify, flags, "files of IN that OUT may lack");
  verify->add_flag("--json", flags.json, "print JSON");
  AddJobs(*verify, flags);
  return verify;
}

CLI::App* AddExplain(CLI::App& app, Flags& flags) {
  CLI::App* explain =
      app.add_subcommand("explain", "show why a tensor is or is not quantized")->footer(kExplainExamples);
  explain->add_option("IN", flags.input, "a .safetensors file or a folder")->required();
  explain->add_option("TENSOR", flags.tensor, "name of a tensor or of its module")->required();
  AddRecipeFlags(*explain, flags);
  return explain;
}

CLI::App* AddConfig(CLI::App& app, Flags& flags) {
  CLI::App* config =
      app.add_subcommand("config", "check a configuration and print it in full")->footer(kConfigExamples);
  config->add_option("KIND", flags.kind, absl::StrCat("one of ", absl::StrJoin(ConfigKinds(), ", ")))
      ->check(CLI::IsMember(ConfigKinds()))
      ->required();
  config->add_option("SOURCE", flags.input, "a preset or a textproto; without one, the presets are listed");
  config->add_option(
      "--program", flags.program,
      "inject only: a saved program (SaveProgram) or its text (ToText); show what the rules would do to it");
  return config;
}

CLI::App* AddProgram(CLI::App& app, Flags& flags) {
  CLI::App* program = app.add_subcommand("program", "print or draw a saved program")->footer(kProgramExamples);
  program->add_option("FILE", flags.input, "a saved program (SaveProgram)")->required();
  program
      ->add_option("--draw", flags.draw,
                   "svg, or dot for Graphviz: quantized contractions have the colour of their numerics; by default the "
                   "program's text")
      ->check(CLI::IsMember({"svg", "dot"}))
      ->type_name("FORMAT");
  program->add_option("--depth", flags.depth, "one box for each scope of N levels, such as 1 for all of \"mlp/...\"")
      ->check(CLI::Range(0, 1000))
      ->type_name("N");
  return program;
}

// Reports an error of the command line.
void ReportParseError(const CLI::App& app, const std::vector<std::string>& args, const CLI::ParseError& e,
                      const Console& console) {
  const std::vector<const CLI::App*> commands = app.get_subcommands({});
  const bool known =
      args.empty() || args[0][0] == '-' ||
      std::any_of(commands.begin(), commands.end(), [&](const CLI::App* c) { return c->get_name() == args[0]; });
  if (known) {
    console.err << "error: " << io::PrintableLine(e.what()) << "\n";
  } else {
    console.err << "error: there is no command " << io::Printable(args[0]) << "; `aqt --help` lists them\n";
  }
  if (args.empty()) console.err << app.help();
}

ExitCode Run(const std::vector<std::string>& args, const io::FileSystem& fs, const Console& console) {
  Flags flags;
  flags.jobs = DefaultJobs();
  CLI::App app("Quantizes model checkpoints (safetensors) for serving.", "aqt");
  app.footer(kFooter);
  app.require_subcommand(1);
  bool version = false;
  app.add_flag("--version", version, "print version and SIMD target")->trigger_on_parse();
  app.set_help_all_flag("--help-all", "help of all commands");

  const CLI::App* inspect = AddInspect(app, flags);
  const CLI::App* plan = AddPlan(app, flags);
  const CLI::App* convert = AddConvert(app, flags);
  AddVerify(app, flags);  // the default if no other subcommand is parsed
  const CLI::App* explain = AddExplain(app, flags);
  const CLI::App* config = AddConfig(app, flags);
  const CLI::App* program = AddProgram(app, flags);

  if (const absl::Status status = CheckFlagValues(args); !status.ok()) return Report(status, console);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::Success& e) {  // --help
    return app.exit(e, console.out, console.err) == 0 ? ExitCode::kOk : ExitCode::kUsage;
  } catch (const CLI::ParseError& e) {
    if (version && args.size() == 1) {
      console.out << VersionText();
      return ExitCode::kOk;
    }
    ReportParseError(app, args, e, console);
    return ExitCode::kUsage;
  }
  if (const absl::Status status = CheckNotEmpty(app); !status.ok()) return Report(status, console);
  if (const auto target = kernels::MaxTargetFromEnvironment(); !target.ok()) return Report(target.status(), console);
  if (const auto verbosity = kernels::VerbosityFromEnvironment(); !verbosity.ok()) {
    return Report(verbosity.status(), console);
  }
  if (inspect->parsed()) return Report(RunInspect(flags, fs, console), console);
  if (plan->parsed()) return Report(RunPlan(flags, fs, console), console);
  if (convert->parsed()) return Report(RunConvert(flags, fs, console), console);
  if (config->parsed()) return Report(RunConfig(flags, fs, console), console);
  if (program->parsed()) return Report(RunProgram(flags, fs, console), console);
  if (explain->parsed()) return Report(RunExplain(flags, fs, console), console);
  const absl::StatusOr<ExitCode> code = RunVerify(flags, fs, console);
  return code.ok() ? *code : Report(code.status(), console);
}

}  // namespace

int AqtMain(const std::vector<std::string>& args, const io::FileSystem& fs, const Console& console) {
  ExitCode code = ExitCode::kFile;
  try {
    code = Run(args, fs, console);
  } catch (const std::bad_alloc&) {  // from outside ParallelRun, which returns it as a status
    console.err << "error: " << kOutOfMemory << "\n";
  }
  console.out.flush();
  const bool reader_is_gone = console.reader_is_gone != nullptr && console.reader_is_gone();
  if (!console.out && !reader_is_gone && code == ExitCode::kOk) {
    console.err << "error: standard output cannot be written\n";
    code = ExitCode::kFile;
  }
  return static_cast<int>(code);
}

}  // namespace aqt::serving
