// The complete training step of small models: forward, backward and update. peers/run_jax.py has the same models. A
// class is a model:
//   transformer   a language model over bytes; a shape is BATCHxLENGTHxWIDTHxLAYERS. Heads of 64 features, 4 x WIDTH
//                 features between the two products after the attention, no biases; SGD
//   digits        dense layers, relu between them, softmax cross entropy, SGD with momentum; a shape is
//                 BATCHxFEATURES-LAYER-...-LAYER
// dtype is the number format of products:
//   f32
//   bf16          Amp: parameters in f32
//   int8          FullyQuantized in every product with a parameter, rounding to nearest
//   int8_noise    the same with AQT's noise
//   int8_fast     the same with NOISE_KIND_FAST
//   fp8           e4m3 forward, e5m2 backward, in the same products
//   bf16_fp8      both
// Only operations of products are counted.
//
//   bazel run //tests/benchmarks:model_step [-- --threads 1,2]
//   AQT_VERBOSE=profile bazel run //tests/benchmarks:model_step -- --filter transformer/.*/int8/1 --rounds 1

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/optimizer.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/random.h"
#include "aqt/transforms/precision/amp.h"
#include "aqt/transforms/quantize/inject.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {
namespace {

// A model's loss as a function to trace, its inputs, and its quantized products.
struct Loss {
  std::function<std::vector<Value>(absl::Span<const Value>)> fn;
  std::vector<Input> inputs;
  SlotValues batch;
  std::string quantized_scopes;
  nn::Optimizer optimizer;
  double ops = 0;  // of all products, forward and backward
};

// ---- transformer

constexpr int64_t kBytes = 256, kHeadFeatures = 64;

struct Transformer {
  int64_t batch = 0, length = 0, width = 0, layers = 0;

  static absl::StatusOr<Transformer> Parse(const std::string& text) {
    Transformer t;
    int end = 0;
    const int read = std::sscanf(text.c_str(), "%ldx%ldx%ldx%ld%n", &t.batch, &t.length, &t.width, &t.layers, &end);
    const bool good = t.batch > 0 && t.length > 0 && t.width > 0 && t.width % kHeadFeatures == 0 && t.layers > 0;
    if (read == 4 && end == static_cast<int>(text.size()) && good) return t;
    return absl::InvalidArgumentError(absl::StrCat(text,
                                                   " is not a shape; expected BATCHxLENGTHxWIDTHxLAYERS, WIDTH a "
                                                   "multiple of ",
                                                   kHeadFeatures, ", as in 16x128x512x4"));
  }
  double ops() const {
    const double d = static_cast<double>(width), l = static_cast<double>(length);
    const double layer = 12 * d * d + 2 * l * d;
    return 6.0 * static_cast<double>(batch) * l * (static_cast<double>(layers) * layer + d * kBytes);
  }
};

Value Project(const Value& x, absl::string_view name, int64_t features) {
  return nn::Dense(x, name, {.features = features, .use_bias = false, .kernel_init = nn::Normal(0.02)});
}

Value Layer(const Value& x, const Value& mask, const Transformer& t) {
  const Value qkv = Project(nn::RmsNorm(x, "norm1"), "qkv", 3 * t.width);
  const auto part = [&](int64_t i) {
    const Value features = ops::Slice(qkv, {0, 0, i * t.width}, {t.batch, t.length, (i + 1) * t.width});
    return ops::Reshape(features, {t.batch, t.length, t.width / kHeadFeatures, kHeadFeatures});
  };
  const Value attended = nn::DotProductAttention(part(0), part(1), part(2), mask, "attention");
  const Value mixed = x + Project(ops::Reshape(attended, x.shape()), "out", t.width);
  const Value hidden = ops::GeluTanh(Project(nn::RmsNorm(mixed, "norm2"), "up", 4 * t.width));
  return mixed + Project(hidden, "down", t.width);
}

Value TransformerLoss(const Value& bytes, const Value& targets, const Transformer& t) {
  const Value positions = nn::Parameter("positions", {DType::kF32, {t.length, t.width}}, nn::Normal(0.02));
  Value x = nn::Embed(bytes, "bytes", {.entries = kBytes, .features = t.width, .init = nn::Normal(0.02)}) + positions;
  const Value mask = nn::CausalMask(t.length, t.length);
  for (int64_t i = 0; i < t.layers; ++i) {
    const NamedScope scope(absl::StrCat("layer", i));
    x = Layer(x, mask, t);
  }
  const Value logits = Project(nn::RmsNorm(x, "norm"), "logits", kBytes);
  return ops::SoftmaxCrossEntropy(logits, ops::OneHot(targets, kBytes));
}

Array RandomBytes(const Aval& aval, uint64_t seed) {
  ArrayBuilder array(aval);
  const RandomBits bits(MakeKey(seed), aval.shape.num_elements());
  for (int64_t i = 0; i < aval.shape.num_elements(); ++i) {
    array.Mutable<int32_t>()[i] = static_cast<int32_t>(bits.Bits32(i) % kBytes);
  }
  return std::move(array).Build();
}

Loss LossOf(const Transformer& t) {
  const Aval aval{DType::kS32, {t.batch, t.length}};
  const Slot bytes{SlotKind::kData, "bytes"}, targets{SlotKind::kData, "targets"};
  return {.fn = [t](absl::Span<const Value> in) { return std::vector<Value>{TransformerLoss(in[0], in[1], t)}; },
          .inputs = {{bytes, aval}, {targets, aval}},
          .batch = {{bytes, RandomBytes(aval, 1)}, {targets, RandomBytes(aval, 2)}},
          .quantized_scopes = ".*/(qkv|out|up|down)|logits",
          .optimizer = nn::Sgd{.learning_rate = 0.01, .momentum = 0},
          .ops = t.ops()};
}

// ---- digits

struct Digits {
  int64_t batch = 0;
  std::vector<int64_t> widths;  // of the features, and of each layer

  static absl::StatusOr<Digits> Parse(const std::string& text) {
    Digits d;
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('x', 1));
    bool good = absl::SimpleAtoi(parts.first, &d.batch) && d.batch > 0;
    for (const absl::string_view width : absl::StrSplit(parts.second, '-')) {
      d.widths.push_back(0);
      good = good && absl::SimpleAtoi(width, &d.widths.back()) && d.widths.back() > 0;
    }
    if (good && d.widths.size() >= 2) return d;
    return absl::InvalidArgumentError(
        absl::StrCat(text, " is not a shape; expected BATCHxFEATURES-LAYER-...-LAYER, as in 32x64-320-256-10"));
  }
  double ops() const {
    double products = 0;
    for (size_t i = 1; i < widths.size(); ++i) {
      // The first layer has no gradient of its input.
      products += (i == 1 ? 4.0 : 6.0) * static_cast<double>(widths[i - 1] * widths[i]);
    }
    return products * static_cast<double>(batch);
  }
};

Loss LossOf(const Digits& d) {
  const Input x{{SlotKind::kData, "x"}, {DType::kF32, {d.batch, d.widths.front()}}};
  const Input labels{{SlotKind::kData, "labels"}, {DType::kF32, {d.batch, d.widths.back()}}};
  const auto fn = [d](absl::Span<const Value> in) {
    Value y = in[0];
    for (size_t i = 1; i < d.widths.size(); ++i) {
      y = nn::Dense(i == 1 ? y : ops::Relu(y), absl::StrCat("fc", i), {.features = d.widths[i]});
    }
    return std::vector<Value>{ops::SoftmaxCrossEntropy(y, in[1])};
  };
  return {.fn = fn,
          .inputs = {x, labels},
          .batch = {{x.slot, testing::RandomArray(x.aval, 1)}, {labels.slot, testing::RandomArray(labels.aval, 2)}},
          .quantized_scopes = ".*",
          .optimizer = nn::Sgd{.learning_rate = 0.05, .momentum = 0.9},
          .ops = d.ops()};
}

// ---- steps

absl::StatusOr<nn::Trainer> MakeTrainer(const Loss& model, const std::optional<DotGeneralConfig>& quantized, bool amp) {
  AQT_ASSIGN_OR_RETURN(Program loss, Trace(model.fn, model.inputs, std::vector<Slot>{{SlotKind::kData, "loss"}}));
  AQT_ASSIGN_OR_RETURN(const SlotValues params, nn::InitParams(model.fn, model.inputs, MakeKey(0)));
  if (quantized.has_value()) {
    InjectConfig config;
    config.rules.push_back({.scope = model.quantized_scopes, .ops = {"dot_general"}, .dot_general = *quantized});
    AQT_ASSIGN_OR_RETURN(loss, Inject(loss, config));
  }
  if (amp) {
    AQT_ASSIGN_OR_RETURN(loss, Amp(loss, {.compute_dtype = DType::kBF16}));
  }
  return nn::Trainer::Make(loss, model.optimizer, params, MakeKey(1));
}

absl::StatusOr<std::function<void()>> Step(const std::string& name, const Loss& model,
                                           const std::optional<DotGeneralConfig>& quantized, bool amp,
                                           Executor* executor) {
  AQT_ASSIGN_OR_RETURN(nn::Trainer trainer, MakeTrainer(model, quantized, amp));
  const auto shared = std::make_shared<nn::Trainer>(std::move(trainer));
  std::fprintf(stderr, "%s: a step needs %.1f MiB besides its arguments\n", name.c_str(),
               static_cast<double>(shared->executable().peak_bytes()) / (1 << 20));
  return [shared, batch = model.batch, executor] {
    const UseExecutor use(executor);
    AQT_CHECK(shared->Step(batch).ok());
  };
}

absl::Status Add(const std::string& shape, std::vector<Row>& rows) {
  const bool is_digits = absl::StrContains(shape, '-');
  const std::string cls = is_digits ? "digits" : "transformer";
  Loss model;
  if (is_digits) {
    AQT_ASSIGN_OR_RETURN(const Digits d, Digits::Parse(shape));
    model = LossOf(d);
  } else {
    AQT_ASSIGN_OR_RETURN(const Transformer t, Transformer::Parse(shape));
    model = LossOf(t);
  }
  const auto add = [&](const std::string& dtype, Work::Unit unit, const std::optional<DotGeneralConfig>& quantized,
                       bool amp) {
    rows.push_back({cls, cls, shape, dtype, "aqt", {.ops = model.ops, .unit = unit}, [=](Executor* executor) {
                      return Step(absl::StrCat(cls, "/", shape, "/", dtype), model, quantized, amp, executor);
                    }});
  };
  const DotGeneralConfig fp8 =
      *FullyQuantized({.fwd_bits = Bits::E4M3(), .bwd_bits = Bits::E5M2(), .use_stochastic_rounding = false});
  DotGeneralConfig fast = FullyQuantized();
  SetStochasticRounding(fast, true, true, NoiseKind::kFast);
  add("f32", Work::Unit::kF32, std::nullopt, false);
  add("bf16", Work::Unit::kBf16, std::nullopt, true);
  add("int8", Work::Unit::kS8, *FullyQuantized({.use_stochastic_rounding = false}), false);
  add("int8_noise", Work::Unit::kS8, FullyQuantized(), false);
  add("int8_fast", Work::Unit::kS8, fast, false);
  add("fp8", Work::Unit::kBf16, fp8, false);
  add("bf16_fp8", Work::Unit::kBf16, fp8, true);
  return absl::OkStatus();
}

}  // namespace
}  // namespace aqt::benchmarks

int main(int argc, char** argv) {
  return aqt::benchmarks::SuiteMain(argc, argv, {"32x64-320-256-10", "16x128x512x4"}, &aqt::benchmarks::Add);
}
