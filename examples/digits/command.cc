#include "examples/digits/command.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "aqt/core/array.h"
#include "aqt/core/machine/target_name.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/machine/verbose.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/nn/train/progress.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "examples/common/parse_flags.h"
#include "examples/common/user_path.h"
#include "examples/digits/classifier.h"
#include "examples/digits/cross_validation.h"
#include "examples/digits/dataset.h"
#include "examples/digits/line_chart.h"
#include "examples/digits/program_text.h"
#include "examples/digits/served_model.h"
#include "examples/digits/training.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/text.h"

namespace digits {
namespace {

constexpr char kFooter[] =
    R"(NAME is float, int8, int4 or mixed (examples/digits/configs), or a textproto of aqt.config.Inject
(configs/inject.proto). The model is the same C++ for all of them.

Files, in OUT/NAME/: state.safetensors (to --resume), served.safetensors (to --serve); OUT/loss.svg.

Examples:
  digits --config int8
  digits --config float,int8,int4,mixed --out /tmp/digits
  digits --config int8 --programs short
  digits --config int8 --ptq
  digits --config int8 --steps 300 --out /tmp/digits; digits --config int8 --resume --out /tmp/digits
  digits --serve /tmp/digits/int8/served.safetensors
  digits --config int8 --cross-validate 5

Exit codes: 0 done, 2 command line or configuration, 3 a damaged file, 4 a file is missing or cannot be written.)";

constexpr char kShippedConfigs[] = "examples/digits/configs", kSuffix[] = ".textproto";
constexpr char kShippedData[] = "examples/digits/digits.csv";

struct Flags {
  std::vector<std::string> configs = {"int8"};
  std::string data, serve, programs = "none";
  std::string out = (std::filesystem::temp_directory_path() / "digits").string();
  TrainingOptions training;
  std::optional<int64_t> steps;
  int64_t folds = 0;
  int threads = 1;
  bool ptq = false, resume = false;
};

struct Config {
  std::string name, source;
  aqt::InjectConfig inject;
};

// Shared by the steps of a run.
struct Console {
  std::ostream& out;
  const Flags& flags;
  const aqt::io::FileSystem& fs;

  // " name text"; further lines of the text have the same indentation.
  void Step(absl::string_view name, absl::string_view text) const {
    out << absl::StrFormat("  %-8s", name)
        << absl::StrJoin(absl::StrSplit(absl::StripSuffix(text, "\n"), '\n'), "\n          ") << "\n"
        << std::flush;
  }
};

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// This example keeps no statistics between training and serving.
absl::Status CheckWithoutState(const aqt::InjectConfig& config) {
  for (size_t i = 0; i < config.rules.size(); ++i) {
    const aqt::InjectRule& rule = config.rules[i];
    if (!rule.dot_general.has_value()) continue;
    const aqt::DotGeneralConfig& dot = *rule.dot_general;
    const std::pair<const char*, const aqt::TensorConfig*> tensors[] = {
        {"fwd.lhs", &dot.fwd.lhs},   {"fwd.rhs", &dot.fwd.rhs},   {"dlhs.lhs", &dot.dlhs.lhs},
        {"dlhs.rhs", &dot.dlhs.rhs}, {"drhs.lhs", &dot.drhs.lhs}, {"drhs.rhs", &dot.drhs.rhs}};
    for (const auto& [name, tensor] : tensors) {
      if (!aqt::HasState(tensor->quantizer)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "rule ", rule.name.empty() ? absl::StrCat(i + 1) : absl::StrCat("\"", rule.name, "\""), ": ", name,
          " has a calibration with state, but this example keeps no statistics; use one without, "
          "such as abs_max"));
    }
  }
  return absl::OkStatus();
}

// `name` names a shipped configuration or a file.
absl::StatusOr<Config> ReadConfig(const aqt::io::FileSystem& fs, const std::string& name) {
  const bool is_name = !absl::StrContains(name, '/') && !absl::EndsWith(name, kSuffix);
  const std::string path = is_name ? absl::StrCat(kShippedConfigs, "/", name, kSuffix) : examples::UserPath(name);
  AQT_ASSIGN_OR_RETURN(const bool exists, aqt::io::Exists(fs, path));
  if (!exists) {
    return absl::InvalidArgumentError(
        absl::StrCat("--config ", name, ": there is no ", path,
                     "; float, int8, int4 and mixed are shipped, or give the path of a textproto"));
  }
  AQT_ASSIGN_OR_RETURN(const std::string text, aqt::io::ReadFile(fs, path, /*max_bytes=*/1 << 20));
  AQT_ASSIGN_OR_RETURN(aqt::InjectConfig inject, aqt::InjectConfigFromText(text, path));
  AQT_RETURN_IF_ERROR(aqt::Annotate(CheckWithoutState(inject), path));
  return Config{std::string(absl::StripSuffix(aqt::io::BaseName(path), kSuffix)), path, std::move(inject)};
}

// Rules that leave everything in float.
aqt::InjectConfig FloatConfig() {
  aqt::InjectConfig config;
  config.rules.push_back({.name = "float"});
  return config;
}

absl::Status EnsureFolder(const aqt::io::FileSystem& fs, const std::string& path) {
  const absl::StatusOr<aqt::io::FileInfo> info = fs.Stat(path);
  return info.ok() && info->kind == aqt::io::FileKind::kFolder ? absl::OkStatus() : fs.CreateFolder(path);
}

std::string LayersText(const Hidden& hidden) {
  return absl::StrCat(kPixels, "-", absl::StrJoin(hidden, "-"), hidden.empty() ? "" : "-", kClasses);
}

int64_t Bytes(const aqt::SlotValues& values) {
  int64_t bytes = 0;
  for (const auto& [slot, array] : values) bytes += array.aval().num_bytes();
  return bytes;
}

std::string FileText(const aqt::io::FileSystem& fs, const std::string& path) {
  const absl::StatusOr<aqt::io::FileInfo> info = fs.Stat(path);
  return absl::StrCat(path, info.ok() ? absl::StrCat(" (", aqt::serving::HumanBytes(info->size), ")") : "");
}

// The mean loss of each epoch, from the losses of its steps.
class EpochLosses {
 public:
  void Add(int64_t epoch, double loss) {
    auto& [sum, count] = sums_[epoch];
    sum += loss;
    ++count;
  }
  std::vector<std::pair<double, double>> Points() const {
    std::vector<std::pair<double, double>> points;
    for (const auto& [epoch, sum] : sums_) points.emplace_back(epoch, sum.first / sum.second);
    return points;
  }

 private:
  std::map<int64_t, std::pair<double, double>> sums_;
};

absl::Status WriteChart(const Console& console, const std::string& folder, std::string title,
                        std::vector<LineChart::Series> series) {
  const std::string path = aqt::io::JoinPath(folder, "loss.svg");
  const LineChart chart{std::move(title), "epoch", "training loss (mean over the epoch)", /*log_y=*/true,
                        std::move(series)};
  AQT_RETURN_IF_ERROR(aqt::io::WriteFile(console.fs, path, ToSvg(chart), {.overwrite = true}));
  console.out << "loss curves: " << path << "\n";
  return absl::OkStatus();
}

// One configuration: float -> injected -> trained -> frozen -> written -> loaded -> served.
class Run {
 public:
  Run(const Console& console, const Config& config, const Dataset& train, const Dataset& test)
      : console_(console), flags_(console.flags), config_(config), train_(train), test_(test) {}

  absl::Status Do() {
    console_.out << config_.name << " (" << config_.source << ")\n";
    folder_ = aqt::io::JoinPath(examples::UserPath(flags_.out), config_.name);
    AQT_RETURN_IF_ERROR(EnsureFolder(console_.fs, examples::UserPath(flags_.out)));
    AQT_RETURN_IF_ERROR(EnsureFolder(console_.fs, folder_));
    AQT_RETURN_IF_ERROR(Trace());
    AQT_RETURN_IF_ERROR(Train());
    AQT_RETURN_IF_ERROR(FreezeAndWrite());
    return LoadAndServe();
  }

  // A row of the table, and a curve.
  std::vector<std::string> Cells() const {
    return {config_.name, absl::StrFormat("%.4f", accuracy_), aqt::serving::HumanBytes(served_bytes_),
            absl::StrFormat("%.1f s", train_seconds_)};
  }
  LineChart::Series Curve() const { return {config_.name, losses_.Points()}; }

 private:
  void ShowProgram(absl::string_view name, const aqt::Program& program) const {
    if (flags_.programs == "none") return;
    console_.Step(name, flags_.programs == "short" ? ShortText(program) : aqt::ToText(program));
  }

  // The injected forward pass for this many rows.
  absl::StatusOr<aqt::Program> Injected(int64_t rows) const {
    AQT_ASSIGN_OR_RETURN(const aqt::Program source, LogitsProgram(flags_.training.hidden, rows));
    return aqt::Inject(source, config_.inject);
  }

  absl::Status Trace() const {
    AQT_ASSIGN_OR_RETURN(const aqt::Program source, LogitsProgram(flags_.training.hidden, flags_.training.batch));
    aqt::InjectReport report;
    AQT_ASSIGN_OR_RETURN(const aqt::Program injected, aqt::Inject(source, config_.inject, nullptr, &report));
    console_.Step("trace", absl::StrCat(LayersText(flags_.training.hidden), ", ", source.eqns.size(), " equations"));
    ShowProgram("", source);
    console_.Step("inject", absl::StrCat(absl::StripLeadingAsciiWhitespace(
                                absl::StrReplaceAll(report.ToString(config_.inject), {{"\n  ", "\n"}}))));
    ShowProgram("", injected);
    return absl::OkStatus();
  }

  absl::Status Train() {
    const TrainingOptions& options = flags_.training;
    AQT_ASSIGN_OR_RETURN(aqt::nn::Trainer trainer,
                         MakeTrainer(options, flags_.ptq ? FloatConfig() : config_.inject, train_.rows()));
    const std::string state = aqt::io::JoinPath(folder_, "state.safetensors");
    if (flags_.resume) {
      AQT_RETURN_IF_ERROR(trainer.Restore(console_.fs, state));
      console_.Step("resume", absl::StrCat("step ", trainer.steps(), ", from ", state));
    }
    const int64_t per_epoch = StepsPerEpoch(options, train_.rows()), all = options.epochs * per_epoch;
    const int64_t last = std::min(all, flags_.steps.value_or(all)), first = trainer.steps();
    if (first > last) {
      return absl::InvalidArgumentError(absl::StrCat(state, " is at step ", first, ", after the last one, ", last,
                                                     ": give more --epochs or --steps"));
    }
    ShowProgram("step", trainer.program());
    const auto start = std::chrono::steady_clock::now();
    const aqt::nn::ProgressLine line(last, options.batch, first);
    AQT_RETURN_IF_ERROR(TrainTo(trainer, train_, options, last, [&](int64_t steps, double loss) {
      losses_.Add((steps - 1) / per_epoch + 1, loss);
      if (steps % (2 * per_epoch) != 0 && steps != last) return;
      console_.Step("train", line.At(steps, loss));
    }));
    train_seconds_ = Seconds(start);
    AQT_RETURN_IF_ERROR(trainer.Save(console_.fs, state));
    params_ = trainer.params();
    console_.Step("", absl::StrCat(flags_.ptq ? "trained in float; " : "", "state: ", FileText(console_.fs, state)));
    return absl::OkStatus();
  }

  absl::Status FreezeAndWrite() {
    AQT_ASSIGN_OR_RETURN(const ServedModel served, Freeze(flags_.training.hidden, config_.inject, params_));
    int frozen = 0;
    for (const auto& [slot, array] : served.values) frozen += slot.kind == aqt::SlotKind::kFrozen;
    console_.Step("fold", absl::StrCat(params_.size(), " parameters (", aqt::serving::HumanBytes(Bytes(params_)),
                                       ") -> ", frozen, " frozen tensors and ", served.values.size() - frozen,
                                       " parameters (", aqt::serving::HumanBytes(Bytes(served.values)), ")"));
    path_ = aqt::io::JoinPath(folder_, "served.safetensors");
    AQT_RETURN_IF_ERROR(Write(served, console_.fs, path_));
    AQT_ASSIGN_OR_RETURN(const aqt::io::FileInfo info, console_.fs.Stat(path_));
    served_bytes_ = info.size;
    console_.Step("write", FileText(console_.fs, path_));
    return absl::OkStatus();
  }

  absl::Status LoadAndServe() {
    AQT_ASSIGN_OR_RETURN(const ServedModel served, ReadServedModel(console_.fs, path_));
    AQT_ASSIGN_OR_RETURN(const aqt::Program program, ServeProgram(served, test_.rows()));
    console_.Step("load", absl::StrCat(program.InputsOfKind(aqt::SlotKind::kFrozen).size(), " frozen and ",
                                       program.InputsOfKind(aqt::SlotKind::kParam).size(), " param inputs"));
    ShowProgram("", program);
    AQT_ASSIGN_OR_RETURN(const aqt::Array logits, Logits(program, served.values, Pixels(test_)));
    accuracy_ = Accuracy(logits, test_.labels);
    AQT_ASSIGN_OR_RETURN(const aqt::Program injected, Injected(test_.rows()));
    AQT_ASSIGN_OR_RETURN(const aqt::Array trained, Logits(injected, params_, Pixels(test_)));
    if (!BitEqual(logits, trained)) {
      return absl::InternalError("the served logits differ from those of the training's forward pass");
    }
    console_.Step("serve",
                  absl::StrFormat("accuracy on the %d test rows: %.4f; logits equal to the bit to those of training",
                                  test_.rows(), accuracy_));
    return absl::OkStatus();
  }

  const Console& console_;
  const Flags& flags_;
  const Config& config_;
  const Dataset& train_;
  const Dataset& test_;
  std::string folder_, path_;
  aqt::SlotValues params_;
  EpochLosses losses_;
  double accuracy_ = 0, train_seconds_ = 0;
  int64_t served_bytes_ = 0;
};

absl::Status RunAll(const Console& console, const std::vector<Config>& configs, const Dataset& data) {
  if (data.rows() <= kTrainRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data: ", data.rows(), " rows, expected more than the ", kTrainRows, " that train"));
  }
  const Dataset train = data.Slice(0, kTrainRows), test = data.Slice(kTrainRows, data.rows());
  aqt::serving::Table table({"config", "accuracy", "file", "training"});
  std::vector<LineChart::Series> curves;
  for (const Config& config : configs) {
    Run run(console, config, train, test);
    AQT_RETURN_IF_ERROR(aqt::Annotate(run.Do(), config.name));
    table.Add(run.Cells());
    curves.push_back(run.Curve());
  }
  if (configs.size() > 1) table.Print(console.out);
  return WriteChart(console, examples::UserPath(console.flags.out),
                    console.flags.ptq ? "Digits: training in float" : "Digits: training as each configuration says",
                    std::move(curves));
}

absl::Status RunCrossValidation(const Console& console, std::vector<Config> configs, const Dataset& data) {
  const Flags& flags = console.flags;
  // The reference configuration comes first, once.
  configs.erase(
      std::remove_if(configs.begin(), configs.end(), [](const Config& c) { return c.inject == FloatConfig(); }),
      configs.end());
  configs.insert(configs.begin(), {"float", "", FloatConfig()});
  AQT_RETURN_IF_ERROR(EnsureFolder(console.fs, examples::UserPath(flags.out)));
  console.out << absl::StrFormat("%d folds of %d rows, %s, %d epochs of batch %d\n", flags.folds, data.rows(),
                                 LayersText(flags.training.hidden), flags.training.epochs, flags.training.batch);
  std::vector<LineChart::Series> curves;
  double float_mean = 0;
  for (const Config& config : configs) {
    const auto start = std::chrono::steady_clock::now();
    console.out << absl::StrFormat("  %-8s", config.name) << std::flush;
    AQT_ASSIGN_OR_RETURN(const std::vector<FoldResult> results,
                         CrossValidate(data, flags.folds, flags.training, config.inject, [&](const FoldResult& result) {
                           console.out << absl::StrFormat("%.4f ", result.accuracy) << std::flush;
                         }));
    const Summary summary = Summarize(results);
    if (&config == &configs[0]) float_mean = summary.mean;
    console.out << absl::StrFormat(" mean %.4f, deviation %.4f", summary.mean, summary.deviation);
    if (&config != &configs[0]) console.out << absl::StrFormat(", %+.2f points", 100 * (summary.mean - float_mean));
    console.out << absl::StrFormat(", %.1f s\n", Seconds(start));
    EpochLosses losses;
    for (const FoldResult& result : results) {
      for (size_t i = 0; i < result.epoch_losses.size(); ++i)
        losses.Add(static_cast<int64_t>(i) + 1, result.epoch_losses[i]);
    }
    curves.push_back({config.name, losses.Points()});
  }
  return WriteChart(console, examples::UserPath(flags.out), absl::StrCat("Digits: mean of ", flags.folds, " folds"),
                    std::move(curves));
}

absl::Status RunServe(const Console& console, const Dataset& data) {
  const std::string path = examples::UserPath(console.flags.serve);
  AQT_ASSIGN_OR_RETURN(const ServedModel served, ReadServedModel(console.fs, path));
  const Dataset test = data.Slice(std::min(kTrainRows, data.rows()), data.rows());
  AQT_ASSIGN_OR_RETURN(const aqt::Array logits, Serve(served, Pixels(test)));
  console.out << absl::StrFormat("%s: %s, accuracy on the %d test rows: %.4f\n", path, LayersText(served.hidden),
                                 test.rows(), Accuracy(logits, test.labels));
  return absl::OkStatus();
}

absl::Status Do(const Flags& flags, const aqt::io::FileSystem& fs, std::ostream& out) {
  const Console console{out, flags, fs};
  if (const auto target = aqt::kernels::MaxTargetFromEnvironment(); !target.ok()) return target.status();
  if (const auto verbosity = aqt::kernels::VerbosityFromEnvironment(); !verbosity.ok()) return verbosity.status();
  AQT_ASSIGN_OR_RETURN(const Dataset data,
                       ReadDataset(flags.data.empty() ? kShippedData : examples::UserPath(flags.data)));
  if (!flags.serve.empty()) return RunServe(console, data);
  std::vector<Config> configs;
  for (const std::string& name : flags.configs) {
    AQT_ASSIGN_OR_RETURN(Config config, ReadConfig(fs, name));
    for (const Config& other : configs) {
      if (other.name == config.name) {
        return absl::InvalidArgumentError(absl::StrCat("--config: ", other.source, " and ", config.source,
                                                       " have one name, and so one folder for their files"));
      }
    }
    configs.push_back(std::move(config));
  }
  out << "instruction set: " << aqt::kernels::ToString(aqt::kernels::BestTarget()) << ", threads: " << flags.threads
      << "\n";
  return flags.folds > 0 ? RunCrossValidation(console, std::move(configs), data) : RunAll(console, configs, data);
}

}  // namespace

int DigitsMain(const std::vector<std::string>& args, const aqt::io::FileSystem& fs, std::ostream& out,
               std::ostream& err) {
  Flags flags;
  CLI::App app("Trains, quantizes and serves a classifier of handwritten digits.", "digits");
  app.footer(kFooter);
  TrainingOptions& training = flags.training;
  auto* config = app.add_option("--config", flags.configs, "comma-separated configurations of the quantization")
                     ->delimiter(',')
                     ->type_name("NAME")
                     ->capture_default_str();
  auto* serve = app.add_option("--serve", flags.serve, "only serve the test rows with this file")->type_name("FILE");
  app.add_option("--data", flags.data, "the data set; default: the project's digits.csv")->type_name("FILE");
  app.add_option("--out", flags.out, "output folder")->type_name("FOLDER")->capture_default_str();
  app.add_option("--programs", flags.programs, "show the programs before and after each step: none, short or full")
      ->check(CLI::IsMember({"none", "short", "full"}))
      ->type_name("HOW")
      ->capture_default_str();
  app.add_option("--hidden", training.hidden, "widths of the hidden layers")
      ->delimiter(',')
      ->type_name("N,...")
      ->capture_default_str();
  app.add_option("--epochs", training.epochs, "passes over the training rows")->type_name("N")->capture_default_str();
  app.add_option("--batch", training.batch, "rows per step")->type_name("N")->capture_default_str();
  app.add_option("--learning-rate", training.learning_rate, "learning rate of SGD")
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--momentum", training.momentum, "momentum of SGD")->type_name("X")->capture_default_str();
  app.add_option("--seed", training.seed, "seed of parameters, order and noise")->type_name("N")->capture_default_str();
  auto* steps = app.add_option("--steps", flags.steps, "stop training after this many steps")
                    ->check(CLI::NonNegativeNumber)
                    ->type_name("N");
  auto* resume = app.add_flag("--resume", flags.resume, "continue from OUT/NAME/state.safetensors with the same flags");
  auto* ptq = app.add_flag("--ptq", flags.ptq, "train in float and quantize afterwards");
  auto* folds = app.add_option("--cross-validate", flags.folds, "compare with float on this many folds of all rows")
                    ->check(CLI::PositiveNumber)
                    ->type_name("K");
  app.add_option("--threads,-j", flags.threads, "threads of the contractions; bits do not depend on it")
      ->check(CLI::Range(1, 64))
      ->type_name("N")
      ->capture_default_str();
  folds->excludes(resume)->excludes(ptq)->excludes(steps);
  serve->excludes(config)->excludes(resume)->excludes(ptq)->excludes(folds)->excludes(steps);
  if (const std::optional<int> exit = examples::ParseFlags(app, args, out, err); exit.has_value()) return *exit;
  std::optional<aqt::kernels::ThreadPool> pool;
  if (flags.threads > 1) {
    pool.emplace(flags.threads);
    if (pool->NumThreads() < flags.threads) {
      err << "warning: the system started only " << pool->NumThreads() << " of " << flags.threads << " threads\n";
    }
  }
  const aqt::UseExecutor threads(pool.has_value() ? &*pool : nullptr);
  const absl::Status status = Do(flags, fs, out);
  if (!status.ok()) err << "error: " << status.message() << "\n";
  return static_cast<int>(aqt::serving::ExitCodeOf(status));
}

}  // namespace digits
