// The command `transformer`: ./bazelw run //examples/transformer -- --help

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "aqt/core/machine/target_name.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/io/file.h"
#include "aqt/io/printable.h"
#include "aqt/io/standard_streams.h"
#include "aqt/nn/train/progress.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/transforms/quantize/inject.h"
#include "examples/common/parse_flags.h"
#include "examples/common/read_config.h"
#include "examples/common/user_path.h"
#include "examples/digits/line_chart.h"
#include "examples/transformer/experiment.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/text.h"

namespace transformer {
namespace {

constexpr char kFooter[] =
    R"(NAME is float, int8, int4_weights, w4a8, static, fp8, fp8_delayed, fp8_current or fp8_mx
(examples/transformer/configs), or a textproto of aqt.config.Inject (configs/inject.proto). PRECISION is bf16
(examples/transformer/configs/amp), or a textproto of aqt.config.Amp (configs/amp.proto). The model is the same C++ for
all of them.

Files, in OUT/NAME/: state.safetensors (to --resume), served.safetensors (to --serve); OUT/loss.svg.

Examples:
  transformer --config float,int8,int4_weights --out /tmp/transformer
  transformer --config int8 --out /tmp/transformer --resume
  transformer --config int8 --out /tmp/transformer --serve --prompt "Anna was a " --sample 300)";

struct Flags {
  ExperimentOptions experiment;
  std::vector<std::string> configs = {"float", "int8", "int4_weights"};
  std::string amp;  // "": none
  std::string out = (std::filesystem::temp_directory_path() / "transformer").string();
  std::string prompt = "Anna was a ";
  std::optional<int64_t> stop;
  int64_t sample = 200;
  double temperature = 0.8;
  int threads = 1;
  bool resume = false, serve = false;
};

struct Result {
  digits::LineChart::Series curve;
  double held_out = 0;
  int64_t bytes = 0;
};

// Trains up to the last step, and saves the state. The curve has the mean loss of each fiftieth of the training.
absl::StatusOr<aqt::SlotValues> TrainModel(const Flags& flags, const aqt::InjectConfig& config, const Text& text,
                                           const std::string& path, digits::LineChart::Series& curve) {
  const ExperimentOptions& options = flags.experiment;
  AQT_ASSIGN_OR_RETURN(aqt::nn::Trainer trainer, MakeTrainer(options, config));
  if (flags.resume) AQT_RETURN_IF_ERROR(trainer.Restore(aqt::io::LocalFileSystem(), path));
  const int64_t first = trainer.steps(), last = std::min(options.steps, flags.stop.value_or(options.steps));
  if (first > last) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is at step ", first, ", after the last one, ", last));
  }
  const int64_t each = std::max<int64_t>(options.steps / 50, 1);
  const aqt::nn::ProgressLine line(last, options.batch, first);
  double sum = 0;
  int64_t summed = 0;
  while (trainer.steps() < last) {
    AQT_ASSIGN_OR_RETURN(const aqt::SlotValues out, trainer.Step(BatchOfStep(text.train, options, trainer.steps())));
    sum += out.at(kLoss).View<float>()[0];
    ++summed;
    const int64_t done = trainer.steps();
    if (done % each != 0 && done != last) continue;
    curve.points.emplace_back(done, sum / static_cast<double>(summed));
    if (done % (5 * each) == 0 || done == last) {
      std::cout << "  " << line.At(done, sum / static_cast<double>(summed)) << "\n" << std::flush;
    }
    sum = 0;
    summed = 0;
  }
  AQT_RETURN_IF_ERROR(trainer.Save(aqt::io::LocalFileSystem(), path));
  return trainer.state();
}

// float -> injected -> trained -> frozen -> written -> loaded -> served.
absl::StatusOr<Result> Run(const Flags& flags, const std::string& name, const Text& text) {
  const aqt::io::FileSystem& fs = aqt::io::LocalFileSystem();
  const ExperimentOptions& options = flags.experiment;
  std::cout << name << "\n";
  AQT_ASSIGN_OR_RETURN(
      const aqt::InjectConfig config,
      examples::ReadConfig(name, "examples/transformer/configs",
                           "float, int8, int4_weights, w4a8, static, fp8, fp8_delayed, fp8_current and fp8_mx"));
  const std::string folder =
      aqt::io::JoinPath(examples::UserPath(flags.out), std::filesystem::path(name).stem().string());
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  const std::string served_path = aqt::io::JoinPath(folder, "served.safetensors");
  Result result;
  result.curve.name = name;
  aqt::SlotValues state;
  if (!flags.serve) {
    AQT_ASSIGN_OR_RETURN(state,
                         TrainModel(flags, config, text, aqt::io::JoinPath(folder, "state.safetensors"), result.curve));
    AQT_ASSIGN_OR_RETURN(aqt::SlotValues frozen, FreezeModel(options, config, state));
    AQT_RETURN_IF_ERROR(aqt::nn::SaveState(fs, served_path, {std::move(frozen), {}}));
  }
  AQT_ASSIGN_OR_RETURN(const aqt::nn::StateFile file, aqt::nn::LoadState(fs, served_path));
  AQT_ASSIGN_OR_RETURN(const aqt::io::FileInfo info, fs.Stat(served_path));
  result.bytes = info.size;
  AQT_ASSIGN_OR_RETURN(const Served served, Served::Make(options, config, file.state));
  AQT_ASSIGN_OR_RETURN(result.held_out, served.Loss(text.held_out));
  std::cout << absl::StrFormat("  served from %s (%s): %.4f nat per byte of the held-out text\n", served_path,
                               aqt::serving::HumanBytes(result.bytes), result.held_out);
  if (!flags.serve) {
    const aqt::Array bytes = BatchOfStep(text.held_out, options, 0).begin()->second;
    AQT_ASSIGN_OR_RETURN(const aqt::Array got, served.Logits(bytes));
    AQT_ASSIGN_OR_RETURN(const aqt::Array want, TrainedLogits(options, config, state, bytes));
    if (!BitEqual(got, want)) return absl::InternalError("the served logits differ from those of the training");
    std::cout << "  logits equal those of training to the bit\n";
  }
  if (flags.sample > 0) {
    AQT_ASSIGN_OR_RETURN(const std::string sample,
                         served.Sample(flags.prompt, flags.sample, flags.temperature, options.seed));
    std::cout << "  sample: " << aqt::io::PrintableLine(sample) << "\n";
  }
  return result;
}

absl::Status RunAll(Flags flags) {
  if (!flags.amp.empty()) {
    AQT_ASSIGN_OR_RETURN(flags.experiment.amp,
                         examples::ReadAmp(flags.amp, "examples/transformer/configs/amp", "bf16"));
  }
  if (const auto target = aqt::kernels::MaxTargetFromEnvironment(); !target.ok()) return target.status();
  AQT_RETURN_IF_ERROR(Validate(flags.experiment));
  const Text text = MakeText(flags.experiment);
  std::cout << absl::StrFormat(
      "instruction set: %s, threads: %d%s\ntext: %d bytes to train, %d held out, bigram entropy %.4f nat per byte\n",
      std::string(aqt::kernels::ToString(aqt::kernels::BestTarget())), flags.threads,
      flags.amp.empty() ? "" : absl::StrCat(", precision: ", flags.amp), text.train.size(), text.held_out.size(),
      BigramEntropy(text.train + text.held_out));
  digits::LineChart chart = {"Transformer: training loss", "step", "nat per byte", /*log_y=*/true, {}};
  aqt::serving::Table table({"config", "held-out loss", "file"});
  for (const std::string& name : flags.configs) {
    absl::StatusOr<Result> result = Run(flags, name, text);
    if (!result.ok()) return aqt::Annotate(result.status(), name);
    table.Add({name, absl::StrFormat("%.4f", result->held_out), aqt::serving::HumanBytes(result->bytes)});
    chart.series.push_back(std::move(result->curve));
  }
  if (flags.configs.size() > 1) table.Print(std::cout);
  if (flags.serve) return absl::OkStatus();
  const std::string path = aqt::io::JoinPath(examples::UserPath(flags.out), "loss.svg");
  AQT_RETURN_IF_ERROR(aqt::io::WriteFile(aqt::io::LocalFileSystem(), path, digits::ToSvg(chart), {.overwrite = true}));
  std::cout << "loss curves: " << path << "\n";
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  ExperimentOptions& options = flags.experiment;
  CLI::App app("Trains, quantizes and serves a language model over bytes.", "transformer");
  app.footer(kFooter);
  const auto option = [&](const char* name, auto& value, const char* help, const char* type) {
    return app.add_option(name, value, help)->type_name(type)->capture_default_str();
  };
  option("--config", flags.configs, "comma-separated configurations of the quantization", "NAME")->delimiter(',');
  app.add_option("--amp", flags.amp, "precision of all configurations; default: f32")->type_name("PRECISION");
  option("--out", flags.out, "output folder", "FOLDER");
  option("--layers", options.model.layers, "layers of the model", "N");
  option("--width", options.model.width, "features of each position; the heads divide it", "N");
  option("--heads", options.model.heads, "heads of each attention", "N");
  option("--length", options.model.length, "bytes of context", "N");
  option("--dropout", options.model.dropout, "fraction of features that training drops", "X");
  option("--text-bytes", options.text_bytes, "bytes of the text; the last tenth is held out", "N");
  option("--steps", options.steps, "steps of the training and its schedule", "N");
  option("--batch", options.batch, "windows of the text per step", "N");
  option("--learning-rate", options.learning_rate, "peak learning rate of AdamW", "X");
  option("--seed", options.seed, "seed of text, parameters, batches, noise and samples", "N");
  app.add_option("--stop", flags.stop, "stop after this many steps, to --resume later")->type_name("N");
  app.add_flag("--resume", flags.resume, "continue from OUT/NAME/state.safetensors with the same flags");
  app.add_flag("--serve", flags.serve, "do not train: serve OUT/NAME/served.safetensors");
  option("--prompt", flags.prompt, "start of the samples", "TEXT");
  option("--sample", flags.sample, "bytes to sample; 0: none", "N")->check(CLI::NonNegativeNumber);
  option("--temperature", flags.temperature, "temperature of the samples; 0: always the likeliest byte", "X")
      ->check(CLI::Range(0.0, 1000.0));
  option("--threads,-j", flags.threads, "threads of the contractions; bits do not depend on it", "N")
      ->check(CLI::Range(1, 64));
  if (const std::optional<int> exit = examples::ParseFlags(app, {argv + 1, argv + argc}, std::cout, std::cerr);
      exit.has_value())
    return *exit;
  std::optional<aqt::kernels::ThreadPool> pool;
  if (flags.threads > 1) pool.emplace(flags.threads);
  const aqt::UseExecutor threads(pool.has_value() ? &*pool : nullptr);
  const absl::Status status = RunAll(flags);
  if (!status.ok()) std::cerr << "error: " << status.message() << "\n";
  return static_cast<int>(aqt::serving::ExitCodeOf(status));
}

}  // namespace
}  // namespace transformer

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 4;
  return transformer::Main(argc, argv);
}
