// The models are those of the recordings, operation by operation; layers and scales are those of nn/layers/fp8_dense.h.
#include "tests/systems_check/fp8layers_models.h"

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/fp8_dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/functions.h"

namespace aqt::systems {
namespace {

using Values = absl::Span<const Value>;
using Outputs = std::vector<Value>;

Slot Data(absl::string_view path) { return {SlotKind::kData, std::string(path)}; }

// ---- nested dicts and slots

// The arrays of nested dicts, by paths such as "dense1/kernel".
void Flatten(const SystemValue& value, SlotKind kind, const std::string& path, SlotValues& slots) {
  if (const Array* array = std::get_if<Array>(&value.of)) slots.insert_or_assign({kind, path}, *array);
  const SystemValue::Dict* dict = std::get_if<SystemValue::Dict>(&value.of);
  if (dict == nullptr) return;
  for (const auto& [key, item] : *dict) Flatten(item, kind, absl::StrCat(path, path.empty() ? "" : "/", key), slots);
}

void Insert(SystemValue::Dict& dict, absl::Span<const std::string> path, const Array& array) {
  if (path.size() == 1) {
    dict[path[0]] = array;
    return;
  }
  SystemValue& inner = dict[path[0]];
  if (!std::holds_alternative<SystemValue::Dict>(inner.of)) inner = SystemValue::Dict();
  Insert(std::get<SystemValue::Dict>(inner.of), path.subspan(1), array);
}
// The inverse: nested dicts from paths.
SystemValue::Dict Nested(const SlotValues& slots) {
  SystemValue::Dict dict;
  for (const auto& [slot, array] : slots) {
    const std::vector<std::string> path = absl::StrSplit(slot.path, '/');
    Insert(dict, path, array);
  }
  return dict;
}

// ---- training

struct Optimizer {
  bool is_adam = false;
  double learning_rate = 0;
};
// From "adam", "sgd" or "adam lr=0.01".
absl::StatusOr<Optimizer> OptimizerOf(const SystemCase& c) {
  const std::string text = c.config.value("optimizer", "adam");
  Optimizer optimizer{.is_adam = absl::StartsWith(text, "adam"), .learning_rate = c.config.value("lr", 0.01)};
  if (!optimizer.is_adam && !absl::StartsWith(text, "sgd")) {
    return absl::UnimplementedError(absl::StrCat("optimizer ", text));
  }
  if (const size_t at = text.find("lr="); at != std::string::npos) {
    optimizer.learning_rate = std::stod(text.substr(at + 3));
  }
  return optimizer;
}

// A model with its parameters and its state of 8-bit floats, trained step by step.
class Training {
 public:
  // Output 0 of `fn` is the loss. Gradients are taken for the parameters and for the inputs `wrt`.
  static absl::StatusOr<Training> Make(const std::function<Outputs(Values)>& fn, const std::vector<Input>& inputs,
                                       const std::vector<Slot>& outputs, const std::vector<Slot>& wrt,
                                       SlotValues params, SlotValues stats) {
    Training result;
    AQT_ASSIGN_OR_RETURN(result.program_, Trace([&](Values in) { return fn(in); }, inputs, outputs));
    std::vector<int> positions;
    for (size_t i = 0; i < result.program_.inputs.size(); ++i) {
      const Slot& slot = result.program_.inputs[i].slot;
      const bool is_wrt = std::find(wrt.begin(), wrt.end(), slot) != wrt.end();
      if (slot.kind == SlotKind::kParam || is_wrt) positions.push_back(static_cast<int>(i));
    }
    AQT_ASSIGN_OR_RETURN(result.program_, ValueAndGrad(result.program_, positions));
    result.params_ = std::move(params);
    result.stats_ = std::move(stats);
    return result;
  }

  // The outputs for these inputs; the state of the layers is kept for the next call.
  absl::Status Run(const SlotValues& inputs) {
    SlotValues values = inputs;
    values.insert(params_.begin(), params_.end());
    values.insert(stats_.begin(), stats_.end());
    AQT_ASSIGN_OR_RETURN(out_, EvalSlots(program_, values));
    for (auto& [slot, array] : stats_) array = out_.at(slot);
    return absl::OkStatus();
  }
  // Updates the parameters with the gradients of the last run.
  absl::Status Update(const Optimizer& optimizer) {
    ++steps_;
    for (auto& [slot, param] : params_) {
      const Value p(param), g(Gradient(slot));
      if (!optimizer.is_adam) {
        AQT_ASSIGN_OR_RETURN(param, (p - g * optimizer.learning_rate).ToArray());
        continue;
      }
      // Like optax: the corrections are f32, and the moments are multiplied by their reciprocals.
      constexpr double kB1 = 0.9, kB2 = 0.999, kEpsilon = 1e-8;
      const auto inverse = [&](double decay) {
        const float power = static_cast<float>(std::pow(static_cast<float>(decay), static_cast<double>(steps_)));
        return 1.0f / (1.0f - power);
      };
      const Array zeros = Array::Zeros(param.dtype(), param.shape());
      Array& first = first_.try_emplace(slot, zeros).first->second;
      Array& second = second_.try_emplace(slot, zeros).first->second;
      const Value m = g * (1 - kB1) + Value(first) * kB1, v = g * g * (1 - kB2) + Value(second) * kB2;
      const Value mean = m * inverse(kB1), square = v * inverse(kB2);
      AQT_ASSIGN_OR_RETURN(first, m.ToArray());
      AQT_ASSIGN_OR_RETURN(second, v.ToArray());
      AQT_ASSIGN_OR_RETURN(param, (p - mean / (ops::Sqrt(square) + kEpsilon) * optimizer.learning_rate).ToArray());
    }
    return absl::OkStatus();
  }

  Array Gradient(const Slot& slot) const { return out_.at(Data(absl::StrCat("grad(", slot.path, ")"))); }
  SlotValues Gradients() const {
    SlotValues gradients;
    for (const auto& [slot, array] : params_) gradients.emplace(slot, Gradient(slot));
    return gradients;
  }
  const Array& Output(absl::string_view name) const { return out_.at(Data(name)); }
  const SlotValues& params() const { return params_; }
  const SlotValues& stats() const { return stats_; }

 private:
  Training() = default;
  Program program_;
  SlotValues params_, stats_, out_, first_, second_;
  int steps_ = 0;
};

// `value` with the derivative of `line`.
Value WithGradientOf(const Value& value, const Value& line) {
  return ops::StopGradient(value) + (line - ops::StopGradient(line));
}

// Like jax.nn.gelu, op by op. In bf16 it matters that JAX takes 3 v^2 as the derivative of v^3, and d + d t as that of
// tanh, with t = tanh and d = 1 - t times the incoming gradient.
Value GeluTanh(const Value& v) {
  const Value square = ops::StopGradient(v * v);
  const Value cube = WithGradientOf(v * v * v, v * (square * 3.0));
  const Value inner = (v + cube * 0.044715) * std::sqrt(2 / M_PI);
  const Value t = ops::StopGradient(ops::Tanh(inner));
  const Value tanh = WithGradientOf(t, (inner + inner * t) * (1.0 - t));
  return v * ((tanh + 1.0) * 0.5);
}

// Like optax.softmax_cross_entropy_with_integer_labels and its mean, op by op: the mean is computed in f32.
Value CrossEntropy(const Value& logits, const Value& one_hot) {
  const Value largest = ops::StopGradient(ops::ReduceMax(logits, {1}));
  const Value shifted = logits - ops::Reshape(largest, {logits.dim(0), 1});
  const Value normalizer = ops::Log(ops::ReduceSum(ops::Exp(shifted), {1})) + largest;
  const Value picked = ops::ReduceSum(ops::Cast(one_hot, logits.dtype()) * logits, {1});
  return ops::Cast(ops::Mean(ops::Cast(normalizer - picked, DType::kF32)), logits.dtype());
}

absl::StatusOr<nn::Activation> ActivationOf(const Json& config) {
  const Json activation = config.value("activation", Json());
  if (activation.is_null()) return nn::Activation();
  if (activation == "relu") return nn::Activation([](const Value& v) { return ops::Relu(v); });
  if (activation == "gelu_tanh") return nn::Activation(GeluTanh);
  return absl::UnimplementedError(absl::StrCat("activation ", activation.dump()));
}

// A number or a list of them.
std::vector<int64_t> Numbers(const Json& json) {
  return json.is_array() ? json.get<std::vector<int64_t>>() : std::vector<int64_t>{json.get<int64_t>()};
}

// The plain layer with the FP8 layer's parameters.
Value PlainDense(const Value& x, absl::string_view name, int64_t features, DType dtype) {
  const NamedScope scope(name);
  const Value kernel = nn::Parameter("kernel", {DType::kF32, {x.dim(-1), features}}, nn::Zeros());
  const Value bias = nn::Parameter("bias", {DType::kF32, {features}}, nn::Zeros());
  return ops::MatMul(ops::Cast(x, dtype), ops::Cast(kernel, dtype)) + ops::Cast(bias, dtype);
}

struct LayerKind {
  bool fp8 = true;
  std::optional<DType> dtype = std::nullopt;
  int64_t history_length = 16;
  Fp8Compat compat = {};
};
Value Layer(const Value& x, absl::string_view name, int64_t features, const LayerKind& kind) {
  if (!kind.fp8) return PlainDense(x, name, features, kind.dtype.value_or(DType::kF32));
  return nn::Fp8Dense(
      x, name,
      {.features = {features}, .dtype = kind.dtype, .amax_history_length = kind.history_length, .compat = kind.compat});
}

constexpr const char* kTensorNames[] = {"input", "kernel", "output_grad"};

// The state of a layer before the first step.
void AddFresh(const std::string& layer, int64_t length, SlotValues& stats) {
  for (const char* tensor : kTensorNames) {
    const std::string path = absl::StrCat(layer, "/", tensor);
    stats.insert_or_assign({SlotKind::kStat, path + "_scale"}, Array::Of<float>({1}, {1}));
    stats.insert_or_assign({SlotKind::kStat, path + "_amax_history"}, Array::Zeros(DType::kF32, {length}));
  }
}

// The layers in a dict of parameters: the entries with a kernel.
std::vector<std::string> LayersOf(const SystemCase& c) {
  std::vector<std::string> layers;
  for (const auto& [name, value] : std::get<SystemValue::Dict>(c.inputs.at("params").of)) {
    const SystemValue::Dict* dict = std::get_if<SystemValue::Dict>(&value.of);
    if (dict != nullptr && dict->contains("kernel")) layers.push_back(name);
  }
  return layers;
}

absl::Status ExpectInputs(const SystemCase& c, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!c.inputs.contains(name)) return absl::InvalidArgumentError(absl::StrCat("the case has no input ", name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Array> StepOf(const SystemCase& system_case, const std::string& input, int64_t step) {
  const auto it = system_case.inputs.find(input);
  if (it == system_case.inputs.end()) return absl::InvalidArgumentError(absl::StrCat("no input ", input));
  if (const SystemValue::List* list = std::get_if<SystemValue::List>(&it->second.of)) {
    return std::get<Array>(list->at(static_cast<size_t>(step)).of);
  }
  const Value all(std::get<Array>(it->second.of));
  PerAxis start(static_cast<size_t>(all.rank()), 0), limit(all.shape().begin(), all.shape().end());
  start[0] = step;
  limit[0] = step + 1;
  return ops::Reshape(ops::Slice(all, start, limit), Shape(all.shape().extents().subspan(1))).ToArray();
}

absl::StatusOr<int64_t> StepsOf(const SystemCase& system_case, const std::string& input) {
  const auto it = system_case.inputs.find(input);
  if (it == system_case.inputs.end()) return absl::InvalidArgumentError(absl::StrCat("no input ", input));
  if (const SystemValue::List* list = std::get_if<SystemValue::List>(&it->second.of)) {
    return static_cast<int64_t>(list->size());
  }
  return std::get<Array>(it->second.of).shape()[0];
}

absl::StatusOr<SystemValue> Stacked(absl::Span<const Array> arrays) {
  std::vector<Value> rows;
  for (const Array& array : arrays) {
    Shape row{1};
    for (const int64_t extent : array.shape()) row.push_back(extent);
    rows.push_back(ops::Reshape(Value(array), row));
  }
  AQT_ASSIGN_OR_RETURN(Array stacked, ops::Concatenate(rows, 0).ToArray());
  return SystemValue(std::move(stacked));
}

absl::StatusOr<DType> DTypeIn(const SystemCase& system_case, const char* field, DType absent) {
  const Json name = system_case.config.value(field, Json());
  if (name.is_null() || name == "none") return absent;
  return DTypeOf(name.get<std::string>());
}

absl::StatusOr<SystemValue::Dict> RunFp8Dense(const SystemCase& c) {
  AQT_RETURN_IF_ERROR(ExpectInputs(c, {"params", "x"}));
  SlotValues params, stats;
  Flatten(c.inputs.at("params"), SlotKind::kParam, "layer", params);
  const int64_t length = c.config.value("amax_history_length", int64_t{16});
  AddFresh("layer", length, stats);
  if (c.inputs.contains("fp8_params")) Flatten(c.inputs.at("fp8_params"), SlotKind::kStat, "layer", stats);
  nn::Fp8DenseOptions options{.features = Numbers(c.config.at("features")),
                              .use_bias = c.config.value("use_bias", params.contains({SlotKind::kParam, "layer/bias"})),
                              .amax_history_length = length,
                              .compat = c.behaviour.fp8};
  const auto kernel = params.find({SlotKind::kParam, "layer/kernel"});
  if (kernel != params.end()) options.param_dtype = kernel->second.dtype();
  if (c.config.contains("axis")) {
    const std::vector<int64_t> axis = Numbers(c.config.at("axis"));
    options.axis = Axes(axis.begin(), axis.end());
  }
  if (c.config.contains("dtype") && !c.config.at("dtype").is_null()) {
    AQT_ASSIGN_OR_RETURN(options.dtype, DTypeIn(c, "dtype", DType::kF32));
  }
  AQT_ASSIGN_OR_RETURN(options.activation, ActivationOf(c.config));
  const bool trains = c.inputs.contains("dy");
  AQT_ASSIGN_OR_RETURN(const int64_t steps, StepsOf(c, "x"));
  const auto x_of = [&](int64_t step) { return trains ? StepOf(c, "x", step) : c.Input("x"); };
  AQT_ASSIGN_OR_RETURN(const Array first, x_of(0));
  std::vector<Input> inputs = {{Data("x"), first.aval()}};
  if (!trains) {
    AQT_ASSIGN_OR_RETURN(const Program program,
                         Trace([&](Values in) { return Outputs{nn::Fp8Dense(in[0], "layer", options)}; }, inputs,
                               std::vector<Slot>{Data("y")}));
    SlotValues values = params;
    values.insert(stats.begin(), stats.end());
    values.emplace(Data("x"), first);
    AQT_ASSIGN_OR_RETURN(const SlotValues out, EvalSlots(program, values));
    return SystemValue::Dict{{"y", out.at(Data("y"))}};
  }
  AQT_ASSIGN_OR_RETURN(const Optimizer optimizer, OptimizerOf(c));
  AQT_ASSIGN_OR_RETURN(const Array first_dy, StepOf(c, "dy", 0));
  inputs.push_back({Data("dy"), first_dy.aval()});
  AQT_ASSIGN_OR_RETURN(Training training,
                       Training::Make(
                           [&](Values in) {
                             const Value y = nn::Fp8Dense(in[0], "layer", options);
                             return Outputs{ops::ReduceSum(y * ops::Cast(in[1], y.dtype())), y};
                           },
                           inputs, {Data("loss"), Data("y")}, {Data("x")}, std::move(params), std::move(stats)));
  SystemValue::Dict out;
  for (int64_t n = 0; n < steps; ++n) {
    AQT_ASSIGN_OR_RETURN(const Array x, StepOf(c, "x", n));
    AQT_ASSIGN_OR_RETURN(const Array dy, StepOf(c, "dy", n));
    AQT_RETURN_IF_ERROR(training.Run({{Data("x"), x}, {Data("dy"), dy}}));
    AQT_RETURN_IF_ERROR(training.Update(optimizer));
    out[absl::StrCat("step", n)] = SystemValue::Dict{{"y", training.Output("y")},
                                                     {"dx", training.Gradient(Data("x"))},
                                                     {"dparams", Nested(training.Gradients()).at("layer")},
                                                     {"params", Nested(training.params()).at("layer")},
                                                     {"fp8_params", Nested(training.stats()).at("layer")}};
  }
  return out;
}

absl::StatusOr<SystemValue::Dict> RunFp8Mlp(const SystemCase& c) {
  AQT_RETURN_IF_ERROR(ExpectInputs(c, {"params", "x", "labels"}));
  LayerKind kind{.fp8 = c.config.value("fp8", true),
                 .dtype = std::nullopt,
                 .history_length = c.config.value("amax_history_length", int64_t{16}),
                 .compat = c.behaviour.fp8};
  AQT_ASSIGN_OR_RETURN(kind.dtype, DTypeIn(c, "dtype", DType::kF32));
  const std::vector<int64_t> sizes = c.config.at("layers");
  const int64_t steps = c.config.at("steps"), classes = sizes.back();
  AQT_ASSIGN_OR_RETURN(const Optimizer optimizer, OptimizerOf(c));
  SlotValues params, stats;
  Flatten(c.inputs.at("params"), SlotKind::kParam, "", params);
  if (kind.fp8) {
    for (const std::string& layer : LayersOf(c)) AddFresh(layer, kind.history_length, stats);
    if (c.inputs.contains("fp8_params")) Flatten(c.inputs.at("fp8_params"), SlotKind::kStat, "", stats);
  }
  AQT_ASSIGN_OR_RETURN(const Array first, StepOf(c, "x", 0));
  const int64_t batch = first.shape()[0];
  AQT_ASSIGN_OR_RETURN(Training training,
                       Training::Make(
                           [&](Values in) {
                             Value h = in[0];
                             for (size_t i = 1; i < sizes.size(); ++i) {
                               h = Layer(h, absl::StrCat("dense", i), sizes[i], kind);
                               if (i + 1 < sizes.size()) h = ops::Relu(h);
                             }
                             return Outputs{ops::Cast(CrossEntropy(h, in[1]), DType::kF32)};
                           },
                           {{Data("x"), first.aval()}, {Data("labels"), {DType::kF32, {batch, classes}}}},
                           {Data("loss")}, {}, std::move(params), std::move(stats)));
  std::vector<Array> losses;
  SystemValue::Dict out;
  for (int64_t n = 0; n < steps; ++n) {
    AQT_ASSIGN_OR_RETURN(const Array x, StepOf(c, "x", n));
    AQT_ASSIGN_OR_RETURN(const Array labels, StepOf(c, "labels", n));
    const Value numbers = ops::Iota(DType::kS32, {batch, classes}, 1);
    const Value hot = ops::Equal(ops::Reshape(ops::Cast(Value(labels), DType::kS32), {batch, 1}), numbers);
    AQT_ASSIGN_OR_RETURN(const Array one_hot, ops::Cast(hot, DType::kF32).ToArray());
    AQT_RETURN_IF_ERROR(training.Run({{Data("x"), x}, {Data("labels"), one_hot}}));
    AQT_RETURN_IF_ERROR(training.Update(optimizer));
    losses.push_back(training.Output("loss"));
    if (n == 0 && kind.fp8) out["fp8_params_after_step0"] = Nested(training.stats());
  }
  AQT_ASSIGN_OR_RETURN(out["loss"], Stacked(losses));
  if (!kind.fp8) return out;
  SlotValues scales;
  for (const auto& [slot, array] : training.stats()) {
    if (absl::EndsWith(slot.path, "_scale")) scales.emplace(slot, array);
  }
  out["fp8_scales_final"] = Nested(scales);
  return out;
}

absl::StatusOr<SystemValue::Dict> RunFp8Transformer(const SystemCase& c) {
  AQT_RETURN_IF_ERROR(ExpectInputs(c, {"params", "x", "target"}));
  const LayerKind kind{.fp8 = c.expected.contains("new_fp8_params"), .compat = c.behaviour.fp8};
  const int64_t heads = c.config.at("heads"), ffn = c.config.at("ffn");
  const double epsilon = c.config.at("layernorm_eps");
  SlotValues params, stats;
  Flatten(c.inputs.at("params"), SlotKind::kParam, "", params);
  if (kind.fp8) {
    for (const std::string& layer : LayersOf(c)) AddFresh(layer, kind.history_length, stats);
    if (c.inputs.contains("fp8_params")) Flatten(c.inputs.at("fp8_params"), SlotKind::kStat, "", stats);
  }
  AQT_ASSIGN_OR_RETURN(const Array x, c.Input("x"));
  AQT_ASSIGN_OR_RETURN(const Array target, c.Input("target"));
  const auto norm = [&](const Value& v, const char* name) {
    const NamedScope scope(name);
    const Value scale = nn::Parameter("scale", {DType::kF32, {v.dim(-1)}}, nn::Zeros());
    return v * ops::Rsqrt(ops::Mean(v * v, {v.rank() - 1}, /*keepdims=*/true) + epsilon) * scale;
  };
  const auto model = [&](Values in) {
    const int64_t seq = in[0].dim(0), batch = in[0].dim(1), hidden = in[0].dim(2), size = hidden / heads;
    const Value qkv =
        ops::Reshape(Layer(norm(in[0], "ln1"), "qkv_projection", 3 * hidden, kind), {seq, batch, heads, 3 * size});
    // Part i as (batch * heads, seq, size).
    const auto part = [&](int64_t i) {
      const Value own = ops::Slice(qkv, {0, 0, 0, i * size}, {seq, batch, heads, (i + 1) * size});
      return ops::Transpose(ops::Reshape(own, {seq, batch * heads, size}), {1, 0, 2});
    };
    const Value q = part(0), k = part(1), v = part(2);
    const DotDims scores{.lhs_contracting = {2}, .rhs_contracting = {2}, .lhs_batch = {0}, .rhs_batch = {0}};
    const Value s = ops::DotGeneral(q, k, scores) / std::sqrt(static_cast<double>(size));
    const Value e = ops::Exp(s - ops::StopGradient(ops::ReduceMax(s, {2}, /*keepdims=*/true)));
    const Value attention = e / ops::ReduceSum(e, {2}, /*keepdims=*/true);
    const DotDims mixed{.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
    const Value context = ops::Reshape(ops::DotGeneral(attention, v, mixed), {batch, heads, seq, size});
    const Value joined = ops::Reshape(ops::Transpose(context, {2, 0, 1, 3}), {seq, batch, hidden});
    const Value r = in[0] + Layer(joined, "projection", hidden, kind);
    const Value y = Layer(GeluTanh(Layer(norm(r, "ln2"), "wi", ffn, kind)), "wo", hidden, kind) + r;
    const Value d = y - in[1];
    return Outputs{ops::Mean(d * d), y};
  };
  AQT_ASSIGN_OR_RETURN(Training training,
                       Training::Make(model, {{Data("x"), x.aval()}, {Data("target"), target.aval()}},
                                      {Data("loss"), Data("y")}, {}, std::move(params), std::move(stats)));
  AQT_RETURN_IF_ERROR(training.Run({{Data("x"), x}, {Data("target"), target}}));
  SystemValue::Dict out{
      {"y", training.Output("y")}, {"loss", training.Output("loss")}, {"dparams", Nested(training.Gradients())}};
  if (kind.fp8) out["new_fp8_params"] = Nested(training.stats());
  return out;
}

}  // namespace aqt::systems
