// A training step of a small language model over bytes, the whole of it: forward, backward and update (SGD). Class
// "transformer"; a shape is BATCHxLENGTHxWIDTHxLAYERS. Heads of 64 features, 4 x WIDTH features between both products
// behind the attention, no biases. peers/run_jax.py has the same model. dtype says what products are computed in:
//   f32
//   bf16          Amp: parameters in f32
//   int8          FullyQuantized in every product with a parameter, rounding to nearest
//   int8_noise    the same with AQT's noise
//   int8_fast     the same with NOISE_KIND_FAST
//   fp8           e4m3 forward, e5m2 backward, in the same products
//   bf16_fp8      both
// Flops are those of the products.
//
//   bazel run //tests/benchmarks:transformer [-- --threads 1,2]
//   AQT_VERBOSE=profile bazel run //tests/benchmarks:transformer -- --filter int8/1 --rounds 1

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
#include "absl/strings/str_cat.h"
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
#include "aqt/nn/attention.h"
#include "aqt/nn/dense.h"
#include "aqt/nn/embed.h"
#include "aqt/nn/norm.h"
#include "aqt/nn/optimizer.h"
#include "aqt/nn/parameter.h"
#include "aqt/nn/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/transforms/amp.h"
#include "aqt/transforms/inject.h"
#include "tests/benchmarks/suite.h"

namespace aqt::benchmarks {
namespace {

constexpr int64_t kBytes = 256, kHeadFeatures = 64;

struct Model {
  int64_t batch = 0, length = 0, width = 0, layers = 0;

  static absl::StatusOr<Model> Parse(const std::string& text) {
    Model m;
    int end = 0;
    const int read = std::sscanf(text.c_str(), "%ldx%ldx%ldx%ld%n", &m.batch, &m.length, &m.width, &m.layers, &end);
    const bool good = m.batch > 0 && m.length > 0 && m.width > 0 && m.width % kHeadFeatures == 0 && m.layers > 0;
    if (read == 4 && end == static_cast<int>(text.size()) && good) return m;
    return absl::InvalidArgumentError(absl::StrCat(text,
                                                   " is not a shape; expected BATCHxLENGTHxWIDTHxLAYERS, WIDTH a "
                                                   "multiple of ",
                                                   kHeadFeatures, ", as in 16x128x512x4"));
  }
  // Of all products, forward and backward.
  double ops() const {
    const double d = static_cast<double>(width), l = static_cast<double>(length);
    const double layer = 12 * d * d + 2 * l * d;
    return 6.0 * static_cast<double>(batch) * l * (static_cast<double>(layers) * layer + d * kBytes);
  }
};

Value Project(const Value& x, absl::string_view name, int64_t features) {
  return nn::Dense(x, name, {.features = features, .use_bias = false, .kernel_init = nn::Normal(0.02)});
}

Value Layer(const Value& x, const Value& mask, const Model& m) {
  const Value qkv = Project(nn::RmsNorm(x, "norm1"), "qkv", 3 * m.width);
  const auto part = [&](int64_t i) {
    const Value features = ops::Slice(qkv, {0, 0, i * m.width}, {m.batch, m.length, (i + 1) * m.width});
    return ops::Reshape(features, {m.batch, m.length, m.width / kHeadFeatures, kHeadFeatures});
  };
  const Value attended = nn::DotProductAttention(part(0), part(1), part(2), mask, "attention");
  const Value mixed = x + Project(ops::Reshape(attended, x.shape()), "out", m.width);
  const Value hidden = ops::GeluTanh(Project(nn::RmsNorm(mixed, "norm2"), "up", 4 * m.width));
  return mixed + Project(hidden, "down", m.width);
}

Value Loss(const Value& bytes, const Value& targets, const Model& m) {
  const Value positions = nn::Parameter("positions", {DType::kF32, {m.length, m.width}}, nn::Normal(0.02));
  Value x = nn::Embed(bytes, "bytes", {.entries = kBytes, .features = m.width, .init = nn::Normal(0.02)}) + positions;
  const Value mask = nn::CausalMask(m.length, m.length);
  for (int64_t i = 0; i < m.layers; ++i) {
    const NamedScope scope(absl::StrCat("layer", i));
    x = Layer(x, mask, m);
  }
  const Value logits = Project(nn::RmsNorm(x, "norm"), "logits", kBytes);
  return ops::SoftmaxCrossEntropy(logits, ops::OneHot(targets, kBytes));
}

const Slot kIn{SlotKind::kData, "bytes"}, kTargets{SlotKind::kData, "targets"};

Array RandomBytes(const Aval& aval, uint64_t seed) {
  ArrayBuilder array(aval);
  const RandomBits bits(MakeKey(seed), aval.shape.num_elements());
  for (int64_t i = 0; i < aval.shape.num_elements(); ++i) {
    array.Mutable<int32_t>()[i] = static_cast<int32_t>(bits.Bits32(i) % kBytes);
  }
  return std::move(array).Build();
}

absl::StatusOr<nn::Trainer> MakeTrainer(const Model& m, const std::optional<DotGeneral>& quantized, bool amp) {
  const Aval aval{DType::kS32, {m.batch, m.length}};
  const std::vector<Input> inputs = {{kIn, aval}, {kTargets, aval}};
  const auto fn = [&](absl::Span<const Value> in) { return std::vector<Value>{Loss(in[0], in[1], m)}; };
  AQT_ASSIGN_OR_RETURN(Program loss, Trace(fn, inputs, std::vector<Slot>{{SlotKind::kData, "loss"}}));
  AQT_ASSIGN_OR_RETURN(const SlotValues params, nn::InitParams(fn, inputs, MakeKey(0)));
  if (quantized.has_value()) {
    InjectConfig config;
    config.rules.push_back({.scope = ".*/(qkv|out|up|down)|logits", .ops = {"dot_general"}, .dot_general = *quantized});
    AQT_ASSIGN_OR_RETURN(loss, Inject(loss, config));
  }
  if (amp) {
    AQT_ASSIGN_OR_RETURN(loss, Amp(loss, {.compute_dtype = DType::kBF16}));
  }
  return nn::Trainer::Make(loss, nn::Sgd{.learning_rate = 0.01, .momentum = 0}, params, MakeKey(1));
}

absl::StatusOr<std::function<void()>> Step(const std::string& dtype, const Model& m,
                                           const std::optional<DotGeneral>& quantized, bool amp, Executor* executor) {
  AQT_ASSIGN_OR_RETURN(nn::Trainer trainer, MakeTrainer(m, quantized, amp));
  const Aval aval{DType::kS32, {m.batch, m.length}};
  const SlotValues batch = {{kIn, RandomBytes(aval, 1)}, {kTargets, RandomBytes(aval, 2)}};
  const auto shared = std::make_shared<nn::Trainer>(std::move(trainer));
  std::fprintf(stderr, "%s: a step needs %.0f MiB besides its arguments\n", dtype.c_str(),
               static_cast<double>(shared->executable().peak_bytes()) / (1 << 20));
  return [shared, batch, executor] {
    const UseExecutor use(executor);
    AQT_CHECK(shared->Step(batch).ok());
  };
}

absl::Status Add(const std::string& shape, std::vector<Row>& rows) {
  AQT_ASSIGN_OR_RETURN(const Model m, Model::Parse(shape));
  const auto add = [&](const std::string& dtype, Work::Unit unit, const std::optional<DotGeneral>& quantized,
                       bool amp) {
    rows.push_back(
        {"transformer", "transformer", shape, dtype, "aqt", {.ops = m.ops(), .unit = unit}, [=](Executor* executor) {
           return Step(dtype, m, quantized, amp, executor);
         }});
  };
  const DotGeneral fp8 =
      *FullyQuantized({.fwd_bits = Bits::E4M3(), .bwd_bits = Bits::E5M2(), .use_stochastic_rounding = false});
  DotGeneral fast = FullyQuantized();
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
  return aqt::benchmarks::SuiteMain(argc, argv, {"16x128x512x4"}, &aqt::benchmarks::Add);
}
