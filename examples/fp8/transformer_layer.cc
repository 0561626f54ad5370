// The transformer layer of NVIDIA's FP8 tutorial, and the time of its training step in f32, in bf16, and in bf16 with
// products in 8-bit floats: ./bazelw run //examples/fp8:transformer_layer -- --help

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/aqt.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/target_name.h"
#include "aqt/io/standard_streams.h"
#include "aqt/precision.h"
#include "examples/common/parse_flags.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/text.h"

namespace {

using aqt::Array;
using aqt::DType;
using aqt::Slot;
using aqt::SlotKind;
using aqt::SlotValues;
using aqt::Value;
namespace nn = aqt::nn;
namespace ops = aqt::ops;

constexpr char kFooter[] =
    R"(MODE is f32, bf16, bf16+fp8 (the layers of aqt/nn/layers/fp8_dense.h, with delayed scaling), or a preset for 8-bit floats
that a rule injects into the bf16 model: fp8_delayed, fp8_current, fp8_hybrid or fp8_mx. Parameters are f32 in each.

The modes take turns, step by step, so that whatever else the machine does falls on all of them.)";

struct Options {
  int64_t seq = 256, batch = 4, hidden = 512, ffn = 2048, heads = 4;
  int64_t warmup = 5, steps = 20;
  double learning_rate = 0.05;
  uint64_t seed = 1;
  int threads = 1;
  std::vector<std::string> modes = {"f32", "bf16", "bf16+fp8"};
};

// The arithmetic of the layer.
struct Numbers {
  DType dtype = DType::kF32;  // of activations and products
  bool fp8 = false;           // products in 8-bit floats
};

// x w + bias, with parameters in f32.
Value Linear(const Value& x, const char* name, int64_t features, const Numbers& numbers) {
  if (numbers.fp8) return nn::Fp8Dense(x, name, {.features = {features}, .dtype = numbers.dtype});
  const aqt::NamedScope scope(name);
  const auto parameter = [&](const char* path, const aqt::Shape& shape, const nn::Initializer& init) {
    return ops::Cast(nn::Parameter(path, {DType::kF32, shape}, init), numbers.dtype);
  };
  const Value kernel = parameter("kernel", {x.dim(-1), features}, nn::LecunUniform({0}));
  const aqt::DotDims dims{.lhs_contracting = {x.rank() - 1}, .rhs_contracting = {0}};
  return ops::DotGeneral(x, kernel, dims) + parameter("bias", {features}, nn::Zeros());
}

Value Norm(const Value& x, const char* name) {
  return ops::Cast(nn::RmsNorm(ops::Cast(x, DType::kF32), name, {.epsilon = 1e-3}), x.dtype());
}

// x [seq, batch, hidden] -> the same shape: attention, then a network for each position, each with a norm before it and
// a residual around it. Query, key and value are one projection.
Value TransformerLayer(const Value& x, const Options& options, const Numbers& numbers) {
  const int64_t seq = x.dim(0), batch = x.dim(1), hidden = x.dim(2), size = hidden / options.heads;
  const Value qkv = ops::Reshape(Linear(Norm(x, "norm1"), "qkv_projection", 3 * hidden, numbers),
                                 {seq, batch, options.heads, 3 * size});
  // Part i as [batch, seq, heads, size].
  const auto part = [&](int64_t i) {
    return ops::Transpose(ops::Slice(qkv, {0, 0, 0, i * size}, {seq, batch, options.heads, (i + 1) * size}),
                          {1, 0, 2, 3});
  };
  const Value attended = nn::DotProductAttention(part(0), part(1), part(2), std::nullopt, "attention");
  const Value joined = ops::Reshape(ops::Transpose(attended, {1, 0, 2, 3}), {seq, batch, hidden});
  const Value mixed = x + Linear(joined, "projection", hidden, numbers);
  const Value inner = ops::GeluTanh(Linear(Norm(mixed, "norm2"), "fc1", options.ffn, numbers));
  return mixed + Linear(inner, "fc2", hidden, numbers);
}

const Slot kX{SlotKind::kData, "x"}, kTarget{SlotKind::kData, "target"}, kLoss{SlotKind::kData, "loss"};

std::vector<aqt::Input> Inputs(const Options& options) {
  const aqt::Aval aval{DType::kF32, {options.seq, options.batch, options.hidden}};
  return {{kX, aval}, {kTarget, aval}};
}

// The mean square distance to the target.
std::vector<Value> LossFn(absl::Span<const Value> in, const Options& options, const Numbers& numbers) {
  const Value y = TransformerLayer(ops::Cast(in[0], numbers.dtype), options, numbers);
  const Value difference = ops::Cast(y, DType::kF32) - in[1];
  return {ops::Mean(difference * difference)};
}

absl::StatusOr<nn::Trainer> MakeTrainer(const Options& options, const std::string& mode) {
  const bool is_plain = mode == "f32" || mode == "bf16", has_layers = mode == "bf16+fp8";
  const Numbers numbers{.dtype = mode == "f32" ? DType::kF32 : DType::kBF16, .fp8 = has_layers};
  const auto fn = [&](absl::Span<const Value> in) { return LossFn(in, options, numbers); };
  const std::vector<aqt::Input> inputs = Inputs(options);
  AQT_ASSIGN_OR_RETURN(aqt::Program loss, aqt::Trace(fn, inputs, std::vector<Slot>{kLoss}));
  if (!is_plain && !has_layers) {
    const std::string text = absl::StrCat("schema: 1 rules { scope: '.*attention.*' keep: true } ",
                                          "rules { dot_general { base: '", mode, "' } }");
    AQT_ASSIGN_OR_RETURN(const aqt::InjectConfig config, aqt::InjectConfigFromText(text, "--mode"));
    AQT_ASSIGN_OR_RETURN(loss, aqt::Inject(loss, config));
  }
  const aqt::Key key = aqt::MakeKey(options.seed);
  AQT_ASSIGN_OR_RETURN(const SlotValues params, nn::InitParams(fn, inputs, key));
  return nn::Trainer::Make(loss, nn::Sgd{.learning_rate = options.learning_rate}, params, aqt::FoldIn(key, 1));
}

// Numbers in [-1, 1).
Array RandomNumbers(const aqt::Aval& aval, aqt::Key key) {
  const aqt::RandomBits bits(key, aval.shape.num_elements());
  aqt::ArrayBuilder x(DType::kF32, aval.shape);
  absl::Span<float> numbers = x.Mutable<float>();
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(bits.Bits32(static_cast<int64_t>(i)) >> 8) * 0x1p-23f - 1;
  }
  return std::move(x).Build();
}

struct Run {
  std::string mode;
  nn::Trainer trainer;
  std::vector<double> milliseconds = {};  // of the steps after the warm-up
  float first_loss = 0, last_loss = 0;
};

absl::Status Step(Run& run, const SlotValues& batch, bool is_timed) {
  const auto start = std::chrono::steady_clock::now();
  AQT_ASSIGN_OR_RETURN(const SlotValues out, run.trainer.Step(batch));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (is_timed) run.milliseconds.push_back(1000 * seconds);
  run.last_loss = out.at(kLoss).View<float>()[0];
  if (run.trainer.steps() == 1) run.first_loss = run.last_loss;
  if (std::isfinite(run.last_loss)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(run.mode, ": the loss is ", run.last_loss, " in step ", run.trainer.steps()));
}

double Median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

absl::Status Validate(const Options& options) {
  for (const auto& [name, number] : std::vector<std::pair<const char*, int64_t>>{{"--seq", options.seq},
                                                                                 {"--batch", options.batch},
                                                                                 {"--hidden", options.hidden},
                                                                                 {"--ffn", options.ffn},
                                                                                 {"--heads", options.heads},
                                                                                 {"--steps", options.steps}}) {
    if (number < 1) return absl::InvalidArgumentError(absl::StrCat(name, " ", number, ": expected 1 or more"));
  }
  if (options.hidden % options.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--heads ", options.heads, ": expected a divisor of --hidden ", options.hidden));
  }
  return absl::OkStatus();
}

absl::Status TimeAll(const Options& options) {
  if (const auto target = aqt::kernels::MaxTargetFromEnvironment(); !target.ok()) return target.status();
  AQT_RETURN_IF_ERROR(Validate(options));
  std::cout << absl::StrFormat("instruction set: %s, threads: %d\n",
                               std::string(aqt::kernels::ToString(aqt::kernels::BestTarget())), options.threads)
            << absl::StrFormat("x [%d, %d, %d], ffn %d, %d heads; median of %d steps after %d\n", options.seq,
                               options.batch, options.hidden, options.ffn, options.heads, options.steps,
                               options.warmup);
  std::vector<Run> runs;
  for (const std::string& mode : options.modes) {
    absl::StatusOr<nn::Trainer> trainer = MakeTrainer(options, mode);
    if (!trainer.ok()) return aqt::Annotate(trainer.status(), absl::StrCat("--mode ", mode));
    runs.push_back({mode, *std::move(trainer)});
  }
  SlotValues batch;
  for (const aqt::Input& input : Inputs(options)) {
    const uint32_t purpose = static_cast<uint32_t>(batch.size()) + 2;
    batch[input.slot] = RandomNumbers(input.aval, aqt::FoldIn(aqt::MakeKey(options.seed), purpose));
  }
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    for (Run& run : runs) AQT_RETURN_IF_ERROR(Step(run, batch, step >= options.warmup));
  }
  aqt::serving::Table table({"mode", "ms per step", absl::StrCat("times ", runs[0].mode), "loss at first", "at last"});
  for (const Run& run : runs) {
    const double time = Median(run.milliseconds);
    table.Add({run.mode, absl::StrFormat("%.1f", time), absl::StrFormat("%.2f", Median(runs[0].milliseconds) / time),
               absl::StrFormat("%.4f", run.first_loss), absl::StrFormat("%.4f", run.last_loss)});
  }
  table.Print(std::cout);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 4;
  Options options;
  CLI::App app("Times the training step of a transformer layer in f32, bf16 and 8-bit floats.", "transformer_layer");
  app.footer(kFooter);
  const auto option = [&](const char* name, auto& value, const char* help, const char* type = "N") {
    return app.add_option(name, value, help)->type_name(type)->capture_default_str();
  };
  option("--mode", options.modes, "comma-separated modes; the first is the reference", "MODE")->delimiter(',');
  option("--seq", options.seq, "positions of a sequence");
  option("--batch", options.batch, "sequences");
  option("--hidden", options.hidden, "features of a position; the heads divide it");
  option("--ffn", options.ffn, "hidden features of the network");
  option("--heads", options.heads, "attention heads");
  option("--warmup", options.warmup, "steps that are not timed")->check(CLI::NonNegativeNumber);
  option("--steps", options.steps, "timed steps");
  option("--learning-rate", options.learning_rate, "learning rate of SGD", "X");
  option("--seed", options.seed, "seed of parameters and data");
  option("--threads,-j", options.threads, "threads of the contractions; bits do not depend on it")
      ->check(CLI::Range(1, 64));
  if (const std::optional<int> exit = examples::ParseFlags(app, {argv + 1, argv + argc}, std::cout, std::cerr);
      exit.has_value())
    return *exit;
  std::optional<aqt::kernels::ThreadPool> pool;
  if (options.threads > 1) pool.emplace(options.threads);
  const aqt::UseExecutor threads(pool.has_value() ? &*pool : nullptr);
  const absl::Status status = TimeAll(options);
  if (!status.ok()) std::cerr << "error: " << status.message() << "\n";
  return static_cast<int>(aqt::serving::ExitCodeOf(status));
}
