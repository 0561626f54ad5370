#include "examples/transformer/experiment.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/serve/serve.h"
#include "aqt/nn/train/optimizer.h"
#include "aqt/nn/train/schedule.h"
#include "aqt/ops/functions.h"
#include "aqt/transforms/precision/amp_proto.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "aqt/transforms/quantize/serve.h"
#include "examples/transformer/text.h"

namespace transformer {

using aqt::Array;
using aqt::Slot;
using aqt::SlotKind;
using aqt::SlotValues;
using aqt::Value;

const Slot kLoss{SlotKind::kData, "loss"};

namespace {

const Slot kInput{SlotKind::kData, "bytes"}, kTargets{SlotKind::kData, "targets"}, kLogits{SlotKind::kData, "logits"};

// Numbers of independent keys derived from the seed.
enum : uint32_t { kInitialKey, kBatchKey, kNoiseKey };

aqt::Key KeyOf(const ExperimentOptions& options, uint32_t purpose) {
  return aqt::FoldIn(aqt::MakeKey(options.seed), purpose);
}

aqt::Aval BytesAval(const ExperimentOptions& options, int64_t rows) {
  return {aqt::DType::kS32, {rows, options.model.length}};
}

std::vector<aqt::Input> LossInputs(const ExperimentOptions& options) {
  const aqt::Aval aval = BytesAval(options, options.batch);
  return {{kInput, aval}, {kTargets, aval}};
}

// [batch, length] bytes and targets -> loss in nat per byte.
std::vector<Value> LossFn(absl::Span<const Value> in, const ExperimentOptions& options) {
  return {aqt::ops::SoftmaxCrossEntropy(Logits(in[0], options.model, /*train=*/true), aqt::ops::OneHot(in[1], kBytes))};
}

// The program in the precision of the options.
absl::StatusOr<aqt::Program> InPrecision(const aqt::Program& program, const ExperimentOptions& options) {
  if (!options.amp.has_value()) return program;
  return aqt::Amp(program, *options.amp);
}

absl::StatusOr<aqt::Program> LogitsProgram(const ExperimentOptions& options, int64_t rows) {
  const absl::StatusOr<aqt::Program> program = aqt::Trace(
      [&](absl::Span<const Value> in) {
        return std::vector<Value>{transformer::Logits(in[0], options.model, /*train=*/false)};
      },
      {{kInput, BytesAval(options, rows)}}, std::vector<Slot>{kLogits});
  return program.ok() ? InPrecision(*program, options) : program;
}

// The windows of `text` at these places, and the same windows one byte later.
SlotValues Windows(absl::string_view text, absl::Span<const int64_t> places, int64_t length) {
  const aqt::Shape shape = {static_cast<int64_t>(places.size()), length};
  aqt::ArrayBuilder bytes(aqt::DType::kS32, shape), targets(aqt::DType::kS32, shape);
  for (size_t row = 0; row < places.size(); ++row) {
    for (int64_t i = 0; i < length; ++i) {
      const int64_t to = static_cast<int64_t>(row) * length + i;
      bytes.Mutable<int32_t>()[to] = static_cast<unsigned char>(text[places[row] + i]);
      targets.Mutable<int32_t>()[to] = static_cast<unsigned char>(text[places[row] + i + 1]);
    }
  }
  return {{kInput, std::move(bytes).Build()}, {kTargets, std::move(targets).Build()}};
}

using SettingTexts = std::map<std::string, std::string>;

// Settings that affect the steps but are not in the state: a training must resume with the same.
absl::StatusOr<SettingTexts> Settings(const ExperimentOptions& options, const aqt::InjectConfig& config) {
  std::string amp;
  if (options.amp.has_value()) {
    AQT_ASSIGN_OR_RETURN(amp, aqt::ToText(*options.amp));
  }
  return SettingTexts{
      {"rules", aqt::ToText(config)},
      {"amp", std::move(amp)},
      {"heads", absl::StrCat(options.model.heads)},
      {"dropout", absl::StrFormat("%.17g", options.model.dropout)},
      {"text bytes", absl::StrCat(options.text_bytes)},
      {"steps", absl::StrCat(options.steps)},
      {"batch", absl::StrCat(options.batch)},
      {"learning rate", absl::StrFormat("%.17g", options.learning_rate)},
      {"seed", absl::StrCat(options.seed)},
  };
}

}  // namespace

absl::Status Validate(const ExperimentOptions& options) {
  const auto positive = [](const char* name, auto value) {
    if (value > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " = ", value, ", expected a positive number"));
  };
  const ModelOptions& model = options.model;
  AQT_RETURN_IF_ERROR(positive("layers", model.layers));
  AQT_RETURN_IF_ERROR(positive("width", model.width));
  AQT_RETURN_IF_ERROR(positive("heads", model.heads));
  AQT_RETURN_IF_ERROR(positive("length", model.length));
  AQT_RETURN_IF_ERROR(positive("steps", options.steps));
  AQT_RETURN_IF_ERROR(positive("batch", options.batch));
  AQT_RETURN_IF_ERROR(positive("learning rate", options.learning_rate));
  const Text text = MakeText(options);
  const int64_t shortest = static_cast<int64_t>(std::min(text.train.size(), text.held_out.size()));
  if (shortest > model.length) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("text bytes = ", options.text_bytes, ", of which the last tenth has ",
                                                 text.held_out.size(),
                                                 " bytes; expected more than length = ", model.length, " in it"));
}

Text MakeText(const ExperimentOptions& options) {
  const std::string all = Stories(options.seed, std::max<int64_t>(options.text_bytes, 0));
  const size_t train = all.size() / 10 * 9;
  return {all.substr(0, train), all.substr(train)};
}

double BigramEntropy(absl::string_view text) {
  std::map<unsigned char, std::map<unsigned char, int64_t>> counts;
  for (size_t i = 0; i + 1 < text.size(); ++i) ++counts[text[i]][text[i + 1]];
  double nats = 0;
  for (const auto& [before, followers] : counts) {
    int64_t total = 0;
    for (const auto& [after, count] : followers) total += count;
    for (const auto& [after, count] : followers) {
      nats -= static_cast<double>(count) * std::log(static_cast<double>(count) / static_cast<double>(total));
    }
  }
  return nats / static_cast<double>(text.size() - 1);
}

absl::StatusOr<aqt::nn::Trainer> MakeTrainer(const ExperimentOptions& options, const aqt::InjectConfig& config) {
  AQT_RETURN_IF_ERROR(Validate(options));
  const auto loss_fn = [&](absl::Span<const Value> in) { return LossFn(in, options); };
  const std::vector<aqt::Input> inputs = LossInputs(options);
  AQT_ASSIGN_OR_RETURN(const aqt::Program traced, aqt::Trace(loss_fn, inputs, std::vector<Slot>{kLoss}));
  AQT_ASSIGN_OR_RETURN(const aqt::Program loss, InPrecision(traced, options));
  AQT_ASSIGN_OR_RETURN(const aqt::Program quantized, aqt::Inject(loss, config));
  AQT_ASSIGN_OR_RETURN(const SlotValues params, aqt::nn::InitParams(loss_fn, inputs, KeyOf(options, kInitialKey)));
  const aqt::nn::WarmupCosineSchedule schedule = {.peak_value = options.learning_rate,
                                                  .warmup_steps = options.steps / 10,
                                                  .decay_steps = options.steps,
                                                  .end_value = options.learning_rate / 10};
  const aqt::nn::AdamW optimizer = {.learning_rate = schedule, .b2 = 0.99, .weight_decay = 0.01, .decays = ".*kernel"};
  AQT_ASSIGN_OR_RETURN(SettingTexts settings, Settings(options, config));
  return aqt::nn::Trainer::Make(quantized, optimizer, params, KeyOf(options, kNoiseKey),
                                {.step = {.clip_norm = 1.0}, .settings = std::move(settings)});
}

SlotValues BatchOfStep(absl::string_view text, const ExperimentOptions& options, int64_t step) {
  const aqt::RandomBits bits(aqt::FoldIn(KeyOf(options, kBatchKey), static_cast<uint32_t>(step)), options.batch);
  std::vector<int64_t> places;
  for (int64_t row = 0; row < options.batch; ++row) {
    places.push_back(bits.Bits32(row) % (static_cast<int64_t>(text.size()) - options.model.length));
  }
  return Windows(text, places, options.model.length);
}

absl::StatusOr<SlotValues> FreezeModel(const ExperimentOptions& options, const aqt::InjectConfig& config,
                                       const SlotValues& state) {
  AQT_ASSIGN_OR_RETURN(const aqt::Program model, LogitsProgram(options, /*rows=*/1));
  return aqt::Freeze(model, config, state);
}

absl::StatusOr<Array> TrainedLogits(const ExperimentOptions& options, const aqt::InjectConfig& config,
                                    const SlotValues& state, const Array& bytes) {
  AQT_ASSIGN_OR_RETURN(const aqt::Program model, LogitsProgram(options, bytes.shape()[0]));
  AQT_ASSIGN_OR_RETURN(const aqt::Program quantized, aqt::Inject(model, config));
  SlotValues values = state;
  values[kInput] = bytes;
  // Only gradients read keys.
  for (const int i : quantized.InputsOfKind(SlotKind::kKey)) {
    values[quantized.inputs[i].slot] = Array::Of<uint32_t>({0, 0}, {2});
  }
  AQT_ASSIGN_OR_RETURN(SlotValues out, aqt::EvalSlots(quantized, values));
  return out.at(kLogits);
}

absl::StatusOr<Served> Served::Make(const ExperimentOptions& options, const aqt::InjectConfig& config,
                                    const SlotValues& frozen) {
  std::vector<aqt::Program> models;
  for (const int64_t rows : {int64_t{1}, options.batch}) {
    AQT_ASSIGN_OR_RETURN(aqt::Program model, LogitsProgram(options, rows));
    models.push_back(std::move(model));
  }
  AQT_ASSIGN_OR_RETURN(aqt::PreparedProgram program, aqt::nn::Serve(models, config, frozen));
  return Served(options, std::move(program));
}

absl::StatusOr<Array> Served::Logits(const Array& bytes) const {
  AQT_ASSIGN_OR_RETURN(SlotValues out, program_.Eval({{kInput, bytes}}));
  return out.at(kLogits);
}

absl::StatusOr<double> Served::Loss(absl::string_view text) const {
  const int64_t length = options_.model.length;
  const int64_t windows = (static_cast<int64_t>(text.size()) - 1) / length;
  if (windows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", text.size(), " bytes, expected more than length = ", length));
  }
  double sum = 0;
  for (int64_t first = 0; first < windows; first += options_.batch) {
    // Fewer windows than a batch run one by one.
    const int64_t rows = windows - first >= options_.batch ? options_.batch : 1;
    for (int64_t row = first; row < std::min(first + options_.batch, windows); row += rows) {
      std::vector<int64_t> places;
      for (int64_t i = row; i < row + rows; ++i) places.push_back(i * length);
      const SlotValues window = Windows(text, places, length);
      AQT_ASSIGN_OR_RETURN(const Array logits, Logits(window.at(kInput)));
      AQT_ASSIGN_OR_RETURN(
          const Array loss,
          aqt::ops::SoftmaxCrossEntropy(Value(logits), aqt::ops::OneHot(Value(window.at(kTargets)), kBytes)).ToArray());
      sum += static_cast<double>(loss.View<float>()[0]) * static_cast<double>(rows);
    }
  }
  return sum / static_cast<double>(windows);
}

absl::StatusOr<std::string> Served::Sample(std::string prompt, int64_t bytes, double temperature, uint64_t seed) const {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty, expected at least one byte");
  const int64_t length = options_.model.length;
  const aqt::RandomBits bits(aqt::MakeKey(seed), bytes);
  for (int64_t i = 0; i < bytes; ++i) {
    // The last bytes, followed by zeros, which they do not see.
    const int64_t known = std::min<int64_t>(static_cast<int64_t>(prompt.size()), length);
    aqt::ArrayBuilder context(aqt::DType::kS32, {1, length});
    for (int64_t j = 0; j < length; ++j) {
      context.Mutable<int32_t>()[j] = j < known ? static_cast<unsigned char>(prompt[prompt.size() - known + j]) : 0;
    }
    AQT_ASSIGN_OR_RETURN(const Array logits, Logits(std::move(context).Build()));
    const Value last = aqt::ops::Slice(Value(logits), {0, known - 1, 0}, {1, known, kBytes});
    if (temperature <= 0) {
      AQT_ASSIGN_OR_RETURN(const Array best, aqt::ops::ArgMax(last, 2).ToArray());
      prompt.push_back(static_cast<char>(best.View<int32_t>()[0]));
      continue;
    }
    AQT_ASSIGN_OR_RETURN(const Array chances,
                         aqt::ops::CumulativeSum(aqt::ops::Softmax(last / temperature), 2).ToArray());
    const absl::Span<const float> below = chances.View<float>();
    const float drawn = aqt::UniformF32(bits.Bits32(i)) * below.back();
    const auto at = std::upper_bound(below.begin(), below.end() - 1, drawn);
    prompt.push_back(static_cast<char>(at - below.begin()));
  }
  return prompt;
}

}  // namespace transformer
