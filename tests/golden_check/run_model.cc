// Models: the layers of AQT's README, training, conversion and serving. The layers are traced as a function without
// quantization; rules quantize them.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/quantize/inject.h"
#include "tests/golden_check/program_run.h"
#include "tests/golden_check/run_case.h"
#include "tests/golden_check/way.h"

namespace aqt::golden {
namespace {

using Values = std::vector<Value>;
using Inputs = absl::Span<const Value>;

std::string LayerName(size_t i) { return absl::StrCat("dense", i); }
Slot Data(absl::string_view name) { return {SlotKind::kData, std::string(name)}; }
Slot ParamSlot(size_t layer, absl::string_view name) {
  return {SlotKind::kParam, absl::StrCat(LayerName(layer), "/", name)};
}
// The context key of a layer.
Slot KeySlot(size_t layer) { return {SlotKind::kKey, LayerName(layer)}; }

// Observes, and may replace, a value that has a name in the manifest.
using Tap = absl::FunctionRef<Value(const std::string& name, const Value& value)>;
Value NoTap(const std::string&, const Value& value) { return value; }

Value Model(const std::vector<Layer>& layers, Value x, Tap tap = NoTap) {
  for (size_t i = 0; i < layers.size(); ++i) {
    x = tap(absl::StrCat("layer_in", i), x);
    x = tap(absl::StrCat("layer_out", i), nn::Dense(x, LayerName(i), {.features = layers[i].features}));
    if (layers[i].relu) x = ops::Relu(x);
  }
  return x;
}

// Kernels and biases with their names in the case: `kernel` and `bias`, numbered.
absl::StatusOr<SlotValues> Params(const std::vector<Layer>& layers, const Tensors& inputs, absl::string_view kernel,
                                  absl::string_view bias) {
  SlotValues params;
  for (size_t i = 0; i < layers.size(); ++i) {
    AQT_ASSIGN_OR_RETURN(params[ParamSlot(i, "kernel")], Input(inputs, absl::StrCat(kernel, i)));
    AQT_ASSIGN_OR_RETURN(params[ParamSlot(i, "bias")], Input(inputs, absl::StrCat(bias, i)));
  }
  return params;
}

// `program` with the layers quantized, or unchanged without a configuration. Each layer has its own rule and key.
absl::StatusOr<Program> Quantized(const Program& program, const std::optional<DotGeneralConfig>& dot_general,
                                  const std::vector<Layer>& layers, const Semantics& semantics,
                                  QuantMode mode = QuantMode::kTrain, const SlotValues* frozen = nullptr) {
  if (!dot_general.has_value()) return program;
  InjectConfig config{.rules = {}, .param_mode = mode, .data_mode = mode, .semantics = semantics};
  for (size_t i = 0; i < layers.size(); ++i) {
    config.rules.push_back({.scope = LayerName(i), .dot_general = dot_general, .key_slot = KeySlot(i).path});
  }
  return Inject(program, config, frozen);
}

// Keys for a run without gradients. A program that could be differentiated needs a key that only gradients use, so any
// key will do.
absl::StatusOr<SlotValues> ForwardKeys(const std::optional<DotGeneralConfig>& dot_general,
                                       const std::vector<Layer>& layers, const Tensors& inputs) {
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
  const bool draws = dot_general.has_value() && (NeedsKey(dot_general->fwd.lhs.quantizer.numerics) ||
                                                 NeedsKey(dot_general->fwd.rhs.quantizer.numerics));
  if (draws && !context.key.has_value()) {
    return absl::InvalidArgumentError("the forward pass draws random numbers, but the case has no input key");
  }
  SlotValues keys;
  for (size_t i = 0; i < layers.size(); ++i) keys[KeySlot(i)] = KeyArray(context.key.value_or(Key{}));
  return keys;
}

// The statistics of the calibrations after all batches, from the quantized outputs of the previous layers.
absl::StatusOr<SlotValues> Statistics(const ServingConfig& config, const SlotValues& params, const SlotValues& keys,
                                      const Aval& x, const Tensors& inputs, const Semantics& semantics, Way way) {
  if (!config.calibration_batches.has_value()) return SlotValues();
  AQT_ASSIGN_OR_RETURN(const Array batches, Input(inputs, "calibration_batches"));
  const Shape& shape = batches.shape();
  if (batches.dtype() != x.dtype || shape.rank() != x.shape.rank() + 1 || shape[0] != *config.calibration_batches) {
    return absl::InvalidArgumentError(absl::StrCat("calibration_batches is ", batches.aval().ToString(), ", expected ",
                                                   *config.calibration_batches, " batches of the dtype and rank of ",
                                                   x.ToString()));
  }
  const Aval batch{x.dtype, Shape(shape.extents().subspan(1))};
  AQT_ASSIGN_OR_RETURN(const Program model,
                       Trace([&](Inputs in) { return Values{Model(config.layers, in[0])}; }, {{Data("x"), batch}}));
  AQT_ASSIGN_OR_RETURN(const Program calibrate,
                       Quantized(model, config.dot_general, config.layers, semantics, QuantMode::kCalibrate));
  SlotValues statistics;
  nn::AddMissingStats(calibrate, statistics);
  AQT_ASSIGN_OR_RETURN(const ProgramRun run, ProgramRun::Make(way, calibrate, params));
  for (int64_t i = 0; i < shape[0]; ++i) {
    SlotValues values = Union(keys, statistics);
    values[Data("x")] = Part(batches, i);
    AQT_ASSIGN_OR_RETURN(const SlotValues out, run.Eval(values));
    for (auto& [slot, value] : statistics) value = out.at(slot);
  }
  return statistics;
}

// With flax's names: by layer, and the calibrations of a layer by number.
void AddStatistics(const SlotValues& statistics, size_t layers, Tensors& tensors) {
  for (size_t i = 0; i < layers; ++i) {
    int number = 0;
    for (const char* side : {"fwd.lhs", "fwd.rhs"}) {
      const std::string prefix = absl::StrCat(LayerName(i), "/", side, "/");
      bool any = false;
      for (const auto& [slot, value] : statistics) {
        if (!absl::StartsWith(slot.path, prefix)) continue;
        tensors.emplace(absl::StrCat("stats.Dense_", i, ".AqtDotGeneral_0.MeanOfAbsMaxCalibration_", number, ".",
                                     slot.path.substr(prefix.size())),
                        value);
        any = true;
      }
      number += any;
    }
  }
}

Array Reshaped(const Array& x, const Shape& shape) { return Array({x.dtype(), shape}, x.buffer()); }

// Rows of a matrix, or elements of a vector.
template <class T>
Array Rows(const Array& x, absl::Span<const int32_t> rows) {
  const int64_t row_elements = x.shape().rank() == 1 ? 1 : x.shape()[1];
  Shape shape = x.shape();
  shape[0] = static_cast<int64_t>(rows.size());
  ArrayBuilder builder(x.dtype(), shape);
  for (size_t i = 0; i < rows.size(); ++i) {
    const absl::Span<const T> row = x.View<T>().subspan(rows[i] * row_elements, row_elements);
    std::copy(row.begin(), row.end(), builder.Mutable<T>().begin() + i * row_elements);
  }
  return std::move(builder).Build();
}

// The inputs of each training step.
class Batches {
 public:
  static absl::StatusOr<Batches> Make(const TrainingConfig& config, const Tensors& inputs) {
    Batches batches;
    AQT_ASSIGN_OR_RETURN(batches.x_, Input(inputs, "x"));
    AQT_ASSIGN_OR_RETURN(batches.y_, Input(inputs, "y"));
    AQT_ASSIGN_OR_RETURN(batches.indices_, Input(inputs, "batch_indices"));
    AQT_ASSIGN_OR_RETURN(batches.keys_, Input(inputs, "keys"));
    batches.layers_ = static_cast<int64_t>(config.layers.size());
    batches.classes_ = config.layers.back().features;
    const int64_t examples = batches.x_.shape().rank() == 2 ? batches.x_.shape()[0] : -1;
    const Aval y{DType::kS32, {examples}}, indices{DType::kS32, {config.steps, config.batch_size}},
        keys{DType::kU32, {config.steps, batches.layers_, 2}};
    const bool fits = batches.x_.dtype() == DType::kF32 && batches.y_.aval() == y &&
                      batches.indices_.aval() == indices && batches.keys_.aval() == keys;
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat(
          "x is ", batches.x_.aval().ToString(), ", y ", batches.y_.aval().ToString(), ", batch_indices ",
          batches.indices_.aval().ToString(), ", keys ", batches.keys_.aval().ToString(), "; expected f32[n,",
          "features], ", y.ToString(), ", ", indices.ToString(), ", ", keys.ToString()));
    }
    for (const int32_t row : batches.indices_.View<int32_t>()) {
      if (row < 0 || row >= examples) {
        return absl::InvalidArgumentError(absl::StrCat("batch index ", row, " of ", examples, " examples"));
      }
    }
    for (const int32_t label : batches.y_.View<int32_t>()) {
      if (label < 0 || label >= batches.classes_) {
        return absl::InvalidArgumentError(absl::StrCat("label ", label, " of ", batches.classes_, " classes"));
      }
    }
    return batches;
  }

  // Data "x" and "labels" (one-hot rows), and the keys of the layers.
  SlotValues Of(int64_t step) const {
    const int64_t size = indices_.shape()[1];
    const absl::Span<const int32_t> rows = indices_.View<int32_t>().subspan(step * size, size);
    const Array y = Rows<int32_t>(y_, rows);
    ArrayBuilder labels(DType::kF32, {size, classes_});
    for (int64_t i = 0; i < size; ++i) labels.Mutable<float>()[i * classes_ + y.View<int32_t>()[i]] = 1;
    SlotValues values{{Data("x"), Rows<float>(x_, rows)}, {Data("labels"), std::move(labels).Build()}};
    for (int64_t i = 0; i < layers_; ++i) {
      const absl::Span<const uint32_t> key = keys_.View<uint32_t>().subspan((step * layers_ + i) * 2, 2);
      values[KeySlot(i)] = KeyArray({key[0], key[1]});
    }
    return values;
  }

  Aval x_aval() const { return {DType::kF32, {indices_.shape()[1], x_.shape()[1]}}; }
  Aval labels_aval() const { return {DType::kF32, {indices_.shape()[1], classes_}}; }

 private:
  Array x_, y_, indices_, keys_;
  int64_t layers_ = 0, classes_ = 0;
};

}  // namespace

absl::StatusOr<Tensors> Run(const MlpConfig& config, const Tensors& inputs, const Semantics& semantics, Way way) {
  AQT_ASSIGN_OR_RETURN(const Array x, Input(inputs, "x"));
  AQT_ASSIGN_OR_RETURN(const SlotValues params, Params(config.layers, inputs, "kernel", "bias"));
  AQT_ASSIGN_OR_RETURN(SlotValues data, ForwardKeys(config.dot_general, config.layers, inputs));
  AQT_ASSIGN_OR_RETURN(const Program model, Trace([&](Inputs in) { return Values{Model(config.layers, in[0])}; },
                                                  {{Data("x"), x.aval()}}, {{Data("out")}}));
  AQT_ASSIGN_OR_RETURN(const Program quantized, Quantized(model, config.dot_general, config.layers, semantics));
  data[Data("x")] = x;
  AQT_ASSIGN_OR_RETURN(SlotValues out, Evaluate(way, quantized, params, data));
  return Tensors{{"out", out.at(Data("out"))}};
}

absl::StatusOr<Tensors> Run(const ServingConfig& config, const Tensors& inputs, const Semantics& semantics,
                            Given& given, Way way) {
  AQT_ASSIGN_OR_RETURN(const Array x, Input(inputs, "x"));
  AQT_ASSIGN_OR_RETURN(const SlotValues params, Params(config.layers, inputs, "kernel", "bias"));
  AQT_ASSIGN_OR_RETURN(SlotValues data, ForwardKeys(config.dot_general, config.layers, inputs));
  data[Data("x")] = x;
  const auto tap = [&](const std::string& name, const Value& value) {
    if (const Array* recorded = given.Find(name); recorded != nullptr) {
      data[Data(name)] = *recorded;
      return InputSlot(Data(name), value.aval());
    }
    WriteSlot(Data(name), value);
    return value;
  };
  AQT_ASSIGN_OR_RETURN(const Program model, Trace([&](Inputs in) { return Values{Model(config.layers, in[0], tap)}; },
                                                  {{Data("x"), x.aval()}}, {{Data("out")}}));

  AQT_ASSIGN_OR_RETURN(const Program train, Quantized(model, config.dot_general, config.layers, semantics));
  AQT_ASSIGN_OR_RETURN(const SlotValues statistics, Statistics(config, params, data, x.aval(), inputs, semantics, way));
  const SlotValues known = Union(params, statistics);
  AQT_ASSIGN_OR_RETURN(const SlotValues trained, Evaluate(way, train, known, data));

  AQT_ASSIGN_OR_RETURN(const Program convert,
                       Quantized(model, config.dot_general, config.layers, semantics, QuantMode::kConvert));
  SlotValues converted;
  AQT_ASSIGN_OR_RETURN(const SlotValues frozen, Frozen(way, convert, known, data, &converted));
  AQT_ASSIGN_OR_RETURN(Program serve,
                       Quantized(model, config.dot_general, config.layers, semantics, QuantMode::kServe, &frozen));
  serve = Dce(serve, {.drop_inputs = {SlotKind::kParam}});
  AQT_ASSIGN_OR_RETURN(const SlotValues served, Evaluate(way, serve, Union(frozen, params), data));

  if (!BitEqual(converted.at(Data("out")), served.at(Data("out")))) {
    return absl::InternalError("the folded program gives other bits than serving from its frozen tensors");
  }
  if (config.train_equals_serve && !BitEqual(trained.at(Data("out")), served.at(Data("out")))) {
    return absl::InternalError("serving gives other bits than the quantized training model");
  }
  Tensors tensors;
  for (const auto& [slot, value] : served) tensors.emplace(slot.path, value);
  tensors.emplace("served_output", served.at(Data("out")));
  tensors.emplace("train_mode_output", trained.at(Data("out")));
  if (config.calibration_batches.has_value()) {
    tensors.emplace("train_mode_output_with_static_scales", trained.at(Data("out")));
    AQT_ASSIGN_OR_RETURN(const SlotValues unquantized, Evaluate(way, model, params, data));
    tensors.emplace("float_output", unquantized.at(Data("out")));
    AddStatistics(statistics, config.layers.size(), tensors);
  }
  for (size_t i = 0; i < config.layers.size(); ++i) {
    for (const int position : serve.InputsOfKind(SlotKind::kParam)) {
      if (config.serve_ignores_kernels && serve.inputs[position].slot == ParamSlot(i, "kernel")) {
        return absl::InternalError(absl::StrCat("serving still needs ", ParamSlot(i, "kernel").ToString()));
      }
    }
    // If there are also frozen activations, the manifest names the side.
    for (const auto& [part, name] : {std::pair{FrozenPart::kValue, "qvalue"}, std::pair{FrozenPart::kScale, "scale"}}) {
      for (const auto& [side, side_name] : {std::pair{Side::kRhs, "."}, {Side::kRhs, ".rhs."}, {Side::kLhs, ".lhs."}}) {
        const auto tensor = frozen.find(FrozenSlot(LayerName(i), side, part));
        if (tensor != frozen.end()) tensors.emplace(absl::StrCat("frozen", i, side_name, name), tensor->second);
      }
    }
  }
  return tensors;
}

absl::StatusOr<Tensors> Run(const TrainingConfig& config, const Tensors& inputs, const Semantics& semantics,
                            Given& given, Way way) {
  AQT_ASSIGN_OR_RETURN(const Batches batches, Batches::Make(config, inputs));
  AQT_ASSIGN_OR_RETURN(SlotValues params, Params(config.layers, inputs, "w", "b"));
  const std::vector<aqt::Input> data = {{Data("x"), batches.x_aval()}, {Data("labels"), batches.labels_aval()}};
  AQT_ASSIGN_OR_RETURN(const Program loss, Trace(
                                               [&](Inputs in) {
                                                 const Value logits = Model(config.layers, in[0]);
                                                 return Values{ops::SoftmaxCrossEntropy(logits, in[1]), logits};
                                               },
                                               data, {{Data("loss"), Data("logits")}}));
  AQT_ASSIGN_OR_RETURN(const Program quantized, Quantized(loss, config.dot_general, config.layers, semantics));

  // The first step in parts: the loss, its gradient with respect to the logits, and the resulting gradients of the
  // parameters.
  Tensors tensors;
  const SlotValues first = batches.Of(0);
  AQT_ASSIGN_OR_RETURN(const SlotValues forward, Evaluate(way, quantized, params, first));
  const Array& logits = forward.at(Data("logits"));
  tensors.emplace("step0.loss", Reshaped(forward.at(Data("loss")), {1}));
  tensors.emplace("step0.logits", logits);
  AQT_ASSIGN_OR_RETURN(const Program head,
                       Trace([](Inputs in) { return Values{ops::SoftmaxCrossEntropy(in[0], in[1])}; },
                             {{Data("logits"), logits.aval()}, data[1]}));
  AQT_ASSIGN_OR_RETURN(const Program head_grad, Grad(head, {0}));
  AQT_ASSIGN_OR_RETURN(const SlotValues head_out,
                       Evaluate(way, head_grad, {{data[1].slot, first.at(data[1].slot)}}, {{Data("logits"), logits}}));
  const Array& dlogits = head_out.at(Data("grad(logits)"));
  tensors.emplace("step0.dlogits", dlogits);
  // d(sum(logits * g)) is the backward pass of g.
  AQT_ASSIGN_OR_RETURN(Program pull_back,
                       Trace([&](Inputs in) { return Values{ops::ReduceSum(Model(config.layers, in[0]) * in[1])}; },
                             {data[0], {Data("g"), logits.aval()}}));
  AQT_ASSIGN_OR_RETURN(pull_back, Quantized(pull_back, config.dot_general, config.layers, semantics));
  AQT_ASSIGN_OR_RETURN(pull_back, Grad(pull_back, pull_back.InputsOfKind(SlotKind::kParam)));
  SlotValues pulled = first;
  pulled[Data("g")] = given.Or("step0.dlogits", dlogits);
  AQT_ASSIGN_OR_RETURN(const SlotValues gradients, Evaluate(way, pull_back, params, pulled));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    tensors.emplace(absl::StrCat("step0.dw", i), gradients.at(Data(absl::StrCat("grad(", LayerName(i), "/kernel)"))));
    tensors.emplace(absl::StrCat("step0.db", i), gradients.at(Data(absl::StrCat("grad(", LayerName(i), "/bias)"))));
  }
  if (!given.empty()) return tensors;  // results of given tensors are here

  AQT_ASSIGN_OR_RETURN(const Program step, nn::TrainStep(quantized, nn::Sgd{.learning_rate = config.learning_rate,
                                                                            .momentum = config.momentum}));
  SlotValues state = params;
  nn::AddMissingStats(step, state);
  // Prepared with the first state; each later step replaces its arrays.
  AQT_ASSIGN_OR_RETURN(const ProgramRun run, ProgramRun::Make(way, step, state));
  ArrayBuilder losses(DType::kF32, {config.steps});
  for (int64_t t = 0; t < config.steps; ++t) {
    AQT_ASSIGN_OR_RETURN(SlotValues out, run.Eval(Union(batches.Of(t), state)));
    losses.Mutable<float>()[t] = out.at(Data("loss")).View<float>()[0];
    for (auto& [slot, value] : state) value = out.at(slot);
    for (size_t i = 0; i < config.layers.size(); ++i) {
      tensors.emplace(absl::StrCat("after", t + 1, ".w", i), state.at(ParamSlot(i, "kernel")));
      tensors.emplace(absl::StrCat("after", t + 1, ".b", i), state.at(ParamSlot(i, "bias")));
    }
  }
  tensors.emplace("loss", std::move(losses).Build());
  return tensors;
}

}  // namespace aqt::golden
