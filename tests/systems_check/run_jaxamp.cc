// Mixed precision and loss scaling: transforms/precision/amp.h and loss_scale.h.
#include "tests/systems_check/run_jaxamp.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/call.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/functions.h"
#include "aqt/transforms/precision/amp.h"
#include "aqt/transforms/precision/loss_scale.h"

namespace aqt::systems {
namespace {

using Values = absl::Span<const Value>;
using Outputs = std::vector<Value>;
using Function = std::function<Outputs(Values)>;

constexpr const char* kStateFields[] = {"patience", "adjust_factor", "scaler", "count", "total_resets"};

Slot Data(absl::string_view path) { return {SlotKind::kData, std::string(path)}; }
Slot Stat(absl::string_view field) { return {SlotKind::kStat, absl::StrCat("dynamic_scaler/", field)}; }

// ---- the functions of the groups policy and scope

Value LastAxisKept(const Value& reduced, const Value& like) { return ops::Reshape(reduced, {like.dim(0), 1}); }

Value Affine(Values in) { return ops::MatMul(in[0], in[1]) + in[2]; }
Value Relu(const Value& x) {
  return ops::Call("relu", [](Values own) { return Outputs{ops::Relu(own[0])}; }, {x})[0];
}
Value Tanh(Values in) { return ops::MatMul(ops::Tanh(ops::MatMul(in[0], in[1])), in[3]); }

Value Softmax(Values in) {
  const Value h = ops::MatMul(in[0], in[1]);
  const Value max = ops::StopGradient(LastAxisKept(ops::Max(ops::ReduceMax(h, {1}), -INFINITY), h));
  const Value e = ops::Exp(h - max);
  return e / LastAxisKept(ops::ReduceSum(e, {1}), h);
}

Value LayerNorm(Values in) {
  const Value& x = in[0];
  const double count = static_cast<double>(x.dim(1));
  const Value mean = LastAxisKept(ops::ReduceSum(x, {1}), x) / count;
  const Value variance = ops::Call("variance",
                                   [&](Values own) {
                                     const Value d = own[0] - LastAxisKept(ops::ReduceSum(own[0], {1}), own[0]) / count;
                                     return Outputs{LastAxisKept(ops::ReduceSum(d * d, {1}), own[0]) / count};
                                   },
                                   {x})[0];
  return (x - mean) / ops::Sqrt(variance + 1e-5);
}

// Loops and branches are opaque, so a call replaces them.
Value Scan(Values in) {
  return ops::Call(
      "scan",
      [](Values own) {
        const Value &x = own[0], &w = own[1];
        Value carry = ops::BroadcastTo(ValueOrNumber(0.0).As(DType::kF32), {w.dim(1)});
        for (int64_t i = 0; i < x.dim(0); ++i) {
          carry = carry + ops::Reshape(ops::MatMul(ops::Slice(x, {i, 0}, {i + 1, x.dim(1)}), w), {w.dim(1)});
        }
        return Outputs{carry};
      },
      in.subspan(0, 2))[0];
}
Value Cond(Values in) {
  const Value first = ops::Reshape(ops::Slice(in[0], {0, 0}, {1, 1}), {});
  return ops::Call("cond",
                   [](Values own) {
                     const Value h = ops::MatMul(own[1], own[2]);
                     return Outputs{ops::Select(own[0], h, h + 1.0)};
                   },
                   {ops::Greater(first, 0.0), in[0], in[1]})[0];
}
Value While(Values in) {
  return ops::Call(
      "while",
      [](Values own) {
        Value s = own[0];
        for (int i = 0; i < 3; ++i) s = s * 0.5 + 1.0;
        return Outputs{s};
      },
      in.subspan(0, 1))[0];
}

Value IntMix(Values in) {
  std::vector<int32_t> numbers(in[0].dim(1));
  std::iota(numbers.begin(), numbers.end(), 0);
  const Value iota(Array::FromSpan<int32_t>(numbers, {in[0].dim(1)}));
  return ops::Cast(iota + 1.0, DType::kF32) * in[0];
}

Value F16UserCode(Values in) {
  const Value p = ops::Cast(in[0], DType::kF16), q = ops::Cast(in[0], DType::kF16);
  return ops::Cast(p * q, DType::kF32) + 1.0;
}

const std::map<std::string, std::function<Value(Values)>>& Functions() {
  static const auto& functions = *new std::map<std::string, std::function<Value(Values)>>{
      {"dot", [](Values in) { return ops::MatMul(in[0], in[1]); }},
      {"affine", Affine},
      {"mul", [](Values in) { return in[0] * in[0]; }},
      {"div", [](Values in) { return in[0] / (ops::Abs(in[0]) + 1.0); }},
      {"exp", [](Values in) { return ops::Exp(in[0]); }},
      {"log", [](Values in) { return ops::Log(ops::Abs(in[0]) + 1.0); }},
      {"tanh_dot", Tanh},
      {"softmax_dot", Softmax},
      {"reduce_sum", [](Values in) { return ops::ReduceSum(ops::MatMul(in[0], in[1]), {1}); }},
      {"reduce_max", [](Values in) { return ops::ReduceMax(ops::MatMul(in[0], in[1]), {1}); }},
      {"layernorm", LayerNorm},
      {"inner_jit",
       [](Values in) {
         return ops::Call(
             "inner_jit", [](Values own) { return Outputs{ops::MatMul(own[0], own[1])}; }, in.subspan(0, 2))[0];
       }},
      {"scan", Scan},
      {"cond", Cond},
      {"while", While},
      {"relu_mlp", [](Values in) { return ops::MatMul(Relu(Affine(in)), in[3]); }},
      {"f16_user_code", F16UserCode},
      {"int_mix", IntMix},
  };
  return functions;
}

Value Scoped(Values in) {
  Value h = in[0];
  {
    const NamedScope outer("outer"), inner("inner");
    h = Affine(in);
  }
  {
    const NamedScope inner("inner");
    h = h * 1.5 + in[2];
  }
  return ops::MatMul(h, in[3]);
}

Value StopContext(Values in) {
  const Value y = ops::MatMul(in[0], in[1]);
  const AmpStop stop;
  return y + in[2];
}

Value StopDecorator(Values in) {
  const AmpStop stop;
  return Affine(in);
}

Value HighPrecisionContext(Values in) {
  const Value y = ops::MatMul(in[0], in[1]);
  const AmpStop stop;
  return ops::MatMul(in[0], y);
}

// ---- running

absl::StatusOr<std::vector<Array>> InputsOf(const SystemCase& c, const std::vector<std::string>& names) {
  std::vector<Array> arrays;
  for (const std::string& name : names) {
    AQT_ASSIGN_OR_RETURN(arrays.emplace_back(), c.Input(name));
  }
  return arrays;
}

absl::StatusOr<Program> TraceOn(const Function& fn, absl::Span<const Array> arrays) {
  std::vector<Input> inputs;
  for (size_t i = 0; i < arrays.size(); ++i) inputs.push_back({Data(absl::StrCat("in", i)), arrays[i].aval()});
  return Trace([&](Values in) { return fn(in); }, inputs);
}

absl::StatusOr<SystemValue> RunAmp(const std::function<Value(Values)>& fn, absl::Span<const Array> arrays,
                                   const AmpOptions* options) {
  AQT_ASSIGN_OR_RETURN(Program program, TraceOn([&](Values in) { return Outputs{fn(in)}; }, arrays));
  if (options != nullptr) {
    AQT_ASSIGN_OR_RETURN(program, Amp(program, *options));
  }
  AQT_ASSIGN_OR_RETURN(std::vector<Array> out, Eval(program, arrays));
  return SystemValue(std::move(out[0]));
}

absl::StatusOr<AmpOptions> OptionsOf(const Json& config) {
  AmpOptions options;
  AQT_ASSIGN_OR_RETURN(options.compute_dtype, DTypeOf(config.value("compute_dtype", "f16")));
  if (!config.contains("overrides")) return options;
  for (const auto& [key, value] : config.at("overrides").items()) {
    const std::string rule = value;
    absl::string_view dtype = rule;
    if (key == "description") continue;
    if (rule == "absent" && (key == "everything" || key == "everything_else")) {
      const auto is_named = [&](const auto& entry) { return config.at("overrides").contains(entry.first); };
      for (auto it = options.policy.begin(); it != options.policy.end();) {
        it = is_named(*it) ? std::next(it) : options.policy.erase(it);
      }
    } else if (rule == "absent") {
      options.policy.erase(key);
    } else if (rule == "original") {
      options.policy[key] = UseOriginalPrecision();
    } else if (rule == "compute") {
      options.policy[key] = UseComputePrecision();
    } else if (rule == "widest") {
      options.policy[key] = UseWidestPrecision();
    } else if (absl::ConsumePrefix(&dtype, "override ")) {
      AQT_ASSIGN_OR_RETURN(const DType own, DTypeOf(std::string(dtype)));
      options.policy[key] = UsePrecision(own);
    } else {
      return absl::UnimplementedError(absl::StrCat("override ", rule));
    }
  }
  return options;
}

absl::StatusOr<SystemValue::Dict> RunPolicy(const SystemCase& c) {
  const std::string name = c.config.at("fn");
  const auto fn = Functions().find(name);
  if (fn == Functions().end()) return absl::UnimplementedError(absl::StrCat("function ", name));
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> in, InputsOf(c, {"x", "w1", "b1", "w2"}));
  AQT_ASSIGN_OR_RETURN(const AmpOptions options, OptionsOf(c.config));
  SystemValue::Dict out;
  AQT_ASSIGN_OR_RETURN(out["y"], RunAmp(fn->second, in, &options));
  AQT_ASSIGN_OR_RETURN(out["y_full_precision"], RunAmp(fn->second, in, nullptr));
  return out;
}

absl::StatusOr<SystemValue::Dict> RunScope(const SystemCase& c) {
  const std::string name = c.name.substr(c.name.find('/') + 1);
  AQT_ASSIGN_OR_RETURN(const AmpOptions options, OptionsOf(c.config));
  SystemValue::Dict out;
  if (name == "seed_high_precision_context") {
    AQT_ASSIGN_OR_RETURN(const std::vector<Array> in, InputsOf(c, {"W", "x"}));
    AQT_ASSIGN_OR_RETURN(out["z"], RunAmp(HighPrecisionContext, in, &options));
    return out;
  }
  static const auto& functions = *new std::map<std::string, std::function<Value(Values)>>{
      {"stop_ctx", StopContext}, {"stop_dec", StopDecorator},
      {"default_compute", Tanh}, {"mul_compute", Functions().at("mul")},
      {"widest", F16UserCode},   {"only_default", Affine},
      {"empty_policy", Affine},
  };
  const auto fn = functions.find(name);
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> in, InputsOf(c, {"x", "w1", "b1", "w2"}));
  AQT_ASSIGN_OR_RETURN(out["y"], RunAmp(fn == functions.end() ? Scoped : fn->second, in, &options));
  return out;
}

absl::StatusOr<SystemValue::Dict> RunLinear(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> in, InputsOf(c, {"weight", "bias", "x"}));
  AQT_ASSIGN_OR_RETURN(const AmpOptions options, OptionsOf(c.config));
  const std::string scope = c.config.at("scope_of_layer");
  const auto layer = [&](Values own) {
    const NamedScope named(scope);
    return ops::MatMul(own[0], own[2]) + own[1];
  };
  const auto stopped = [&](Values own) {
    const AmpStop stop;
    return layer(own);
  };
  AmpOptions original = options;
  original.policy[scope] = UseOriginalPrecision();
  SystemValue::Dict out;
  AQT_ASSIGN_OR_RETURN(out["amp"], RunAmp(layer, in, &options));
  AQT_ASSIGN_OR_RETURN(out["amp_stopped"], RunAmp(stopped, in, &options));
  AQT_ASSIGN_OR_RETURN(out["amp_layer_original"], RunAmp(layer, in, &original));
  AQT_ASSIGN_OR_RETURN(out["full"], RunAmp(layer, in, nullptr));
  return out;
}

// ---- gradients and training

// mean((relu(x @ w1 + b1) @ w2 - t)^2) for b1, w1, w2, x, t.
Outputs Loss(Values in) {
  const Value h = Relu(ops::MatMul(in[3], in[1]) + in[0]);
  const Value squares = ops::IntegerPow(ops::MatMul(h, in[2]) - in[4], 2);
  return {ops::ReduceSum(squares) / static_cast<double>(squares.dim(0) * squares.dim(1))};
}

constexpr const char* kParams[] = {"b1", "w1", "w2"};

// The parameters, x and t.
absl::StatusOr<std::vector<Array>> LossInputs(const SystemCase& c) {
  std::vector<Array> arrays;
  const auto params = c.inputs.find("params");
  if (params == c.inputs.end()) return absl::InvalidArgumentError("the case has no input params");
  for (const char* name : kParams) {
    arrays.push_back(std::get<Array>(std::get<SystemValue::Dict>(params->second.of).at(name).of));
  }
  for (const char* name : {"x", "t"}) {
    AQT_ASSIGN_OR_RETURN(arrays.emplace_back(), c.Input(name));
  }
  return arrays;
}

SystemValue::Dict ParamDict(absl::Span<const Array> arrays) {
  SystemValue::Dict dict;
  for (size_t i = 0; i < std::size(kParams); ++i) dict[kParams[i]] = arrays[i];
  return dict;
}

absl::StatusOr<SystemValue::Dict> RunGrad(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> in, LossInputs(c));
  AQT_ASSIGN_OR_RETURN(const AmpOptions options, OptionsOf(c.config));
  AQT_ASSIGN_OR_RETURN(Program program, TraceOn(Loss, in));
  AQT_ASSIGN_OR_RETURN(program, Amp(program, options));
  AQT_ASSIGN_OR_RETURN(program, ValueAndGrad(program, {{0, 1, 2}}));
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> out, Eval(program, in));
  return SystemValue::Dict{{"loss", out[0]}, {"grads", ParamDict(absl::MakeConstSpan(out).subspan(1))}};
}

// Collects the state after each call.
class States {
 public:
  void Add(const SlotValues& values) {
    for (const char* field : kStateFields) states_[field].push_back(values.at(Stat(field)));
  }
  // The fields of the state over all calls.
  absl::StatusOr<SystemValue::Dict> Stacked() const {
    SystemValue::Dict dict;
    for (const auto& [field, arrays] : states_) {
      AQT_ASSIGN_OR_RETURN(dict[field], Stack(arrays));
    }
    return dict;
  }
  static absl::StatusOr<SystemValue> Stack(absl::Span<const Array> arrays) {
    std::vector<Value> rows;
    for (const Array& array : arrays) {
      Shape shape = array.shape();
      Shape row{1};
      for (const int64_t extent : shape) row.push_back(extent);
      rows.push_back(ops::Reshape(Value(array), row));
    }
    AQT_ASSIGN_OR_RETURN(Array stacked, ops::Concatenate(rows, 0).ToArray());
    return SystemValue(std::move(stacked));
  }

 private:
  std::map<std::string, std::vector<Array>> states_;
};

// The state of the last call.
SystemValue::Dict StateDict(const SlotValues& values) {
  SystemValue::Dict dict;
  for (const char* field : kStateFields) dict[field] = values.at(Stat(field));
  return dict;
}

// Calls of a program that keep its state.
class ScaledFunction {
 public:
  static absl::StatusOr<ScaledFunction> Make(const Program& loss, absl::Span<const int> wrt, bool keeps_value,
                                             const DynamicScaler& scaler, int redo) {
    ScaledFunction result;
    AQT_ASSIGN_OR_RETURN(result.program_, keeps_value ? DynamicScaleValueAndGrad(loss, wrt, scaler)
                                                      : DynamicScaleGrad(loss, wrt, scaler));
    for (const int position : wrt) result.gradients_.push_back(loss.inputs[position].slot.path);
    result.num_inputs_ = loss.inputs.size();
    result.state_ = InitialScalerState(scaler);
    result.redo_ = redo;
    return result;
  }

  // The outputs; the state is kept for the next call.
  absl::StatusOr<SlotValues> operator()(absl::Span<const Array> in) {
    SlotValues values = state_;
    for (size_t i = 0; i < num_inputs_; ++i) values.insert_or_assign(program_.inputs[i].slot, in[i]);
    AQT_ASSIGN_OR_RETURN(SlotValues out, EvalWithRedo(program_, std::move(values), redo_));
    for (auto& [slot, array] : state_) array = out.at(slot);
    return out;
  }
  Array Gradient(const SlotValues& out, size_t i) const {
    return out.at(Data(absl::StrCat("grad(", gradients_[i], ")")));
  }
  const SlotValues& state() const { return state_; }

 private:
  ScaledFunction() = default;
  Program program_;
  std::vector<std::string> gradients_;
  size_t num_inputs_ = 0;
  SlotValues state_;
  int redo_ = 0;
};

// Only the fields of the state that `init` has.
DynamicScaler ScalerOf(const SystemCase& c, const Json& init) {
  DynamicScaler scaler;
  scaler.patience = static_cast<int32_t>(init.value("patience", 2000.0));
  scaler.adjust_factor = init.value("adjust_factor", 2.0);
  scaler.scaler = init.value("scaler", 32768.0);
  scaler.subnormals_are_zero = c.behaviour.subnormals_are_zero;
  return scaler;
}

absl::StatusOr<SystemValue::Dict> RunTrain(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(std::vector<Array> in, LossInputs(c));
  AQT_ASSIGN_OR_RETURN(const AmpOptions options, OptionsOf(c.config));
  AQT_ASSIGN_OR_RETURN(Program loss, TraceOn(Loss, in));
  AQT_ASSIGN_OR_RETURN(loss, Amp(loss, options));
  AQT_ASSIGN_OR_RETURN(ScaledFunction step,
                       ScaledFunction::Make(loss, {{0, 1, 2}}, /*keeps_value=*/true, ScalerOf(c, c.config),
                                            c.config.value("redo_on_nan", kRedoOfValueAndGrad)));
  std::vector<Array> losses;
  States states;
  SystemValue::Dict out;
  for (int64_t i = 0; i < c.config.at("steps").get<int64_t>(); ++i) {
    AQT_ASSIGN_OR_RETURN(const SlotValues results, step(in));
    losses.push_back(results.at(Data("0")));
    states.Add(step.state());
    std::vector<Array> gradients;
    for (size_t p = 0; p < std::size(kParams); ++p) {
      gradients.push_back(step.Gradient(results, p));
      AQT_ASSIGN_OR_RETURN(in[p], (Value(in[p]) - Value(gradients[p]) * c.config.at("lr").get<double>()).ToArray());
    }
    if (i == 0) out["first_grads"] = ParamDict(gradients);
  }
  AQT_ASSIGN_OR_RETURN(out["loss"], States::Stack(losses));
  AQT_ASSIGN_OR_RETURN(out["state"], states.Stacked());
  out["final_params"] = ParamDict(in);
  return out;
}

// ---- the scaler

absl::StatusOr<SystemValue::Dict> RunScaler(const SystemCase& c) {
  const std::string name = c.name.substr(c.name.find('/') + 1);
  const auto square = [](Values in) { return Outputs{ops::ReduceSum(in[0] * in[0])}; };
  if (c.config.contains("scaler_dtype")) {
    AQT_ASSIGN_OR_RETURN(const std::vector<Array> in, InputsOf(c, {"x"}));
    DynamicScaler scaler{.scaler = 8};
    AQT_ASSIGN_OR_RETURN(scaler.dtype, DTypeOf(c.config.at("scaler_dtype")));
    AQT_ASSIGN_OR_RETURN(const Program loss, TraceOn(square, in));
    AQT_ASSIGN_OR_RETURN(ScaledFunction f, ScaledFunction::Make(loss, {{0}}, /*keeps_value=*/false, scaler, 0));
    AQT_ASSIGN_OR_RETURN(const SlotValues out, f(in));
    return SystemValue::Dict{{"state", StateDict(f.state())}, {"grads", f.Gradient(out, 0)}};
  }
  if (absl::StartsWith(name, "nan_in_aux")) {
    AQT_ASSIGN_OR_RETURN(const std::vector<Array> in, InputsOf(c, {"x"}));
    AQT_ASSIGN_OR_RETURN(const Program loss, TraceOn(
                                                 [&](Values own) {
                                                   return Outputs{square(own)[0], ValueOrNumber(NAN).As(DType::kF32)};
                                                 },
                                                 in));
    AQT_ASSIGN_OR_RETURN(ScaledFunction f,
                         ScaledFunction::Make(loss, {{0}}, /*keeps_value=*/true, ScalerOf(c, Json::object()),
                                              c.config.at("redo_on_nan").get<int>()));
    AQT_ASSIGN_OR_RETURN(const SlotValues out, f(in));
    const SystemValue::List value = {out.at(Data("0")), out.at(Data("1"))};
    return SystemValue::Dict{{"state", StateDict(f.state())},
                             {"results", SystemValue::List{value, f.Gradient(out, 0)}}};
  }
  const Json init = c.config.value("init", Json::object());
  const DynamicScaler scaler = ScalerOf(c, init);
  SlotValues state = InitialScalerState(scaler);
  for (const char* field : {"count", "total_resets"}) {
    if (!init.contains(field)) continue;
    state.insert_or_assign(Stat(field), Array::Scalar<int32_t>(static_cast<int32_t>(init.at(field).get<double>())));
  }
  States states;
  for (const int finite : c.config.at("finite_sequence").get<std::vector<int>>()) {
    const auto value = [&](const char* field) { return Value(state.at(Stat(field))); };
    const ScalerValues next = UpdateScaler(
        {value("patience"), value("adjust_factor"), value("scaler"), value("count"), value("total_resets")},
        Value(Array::Scalar<bool>(finite != 0)), scaler);
    const Value* fields[] = {&next.patience, &next.adjust_factor, &next.scaler, &next.count, &next.total_resets};
    for (size_t i = 0; i < std::size(kStateFields); ++i) {
      AQT_ASSIGN_OR_RETURN(Array array, fields[i]->ToArray());
      state.insert_or_assign(Stat(kStateFields[i]), std::move(array));
    }
    states.Add(state);
  }
  return states.Stacked();
}

// Calls one function several times. A result is the gradient, with the value and the aux if they exist.
struct Calls {
  Program loss;
  bool keeps_value, has_aux;
  DynamicScaler scaler;
  int redo;
};
absl::StatusOr<SystemValue::Dict> RunCalls(const Calls& calls, const std::vector<std::vector<Array>>& inputs) {
  AQT_ASSIGN_OR_RETURN(ScaledFunction f,
                       ScaledFunction::Make(calls.loss, {{0}}, calls.keeps_value, calls.scaler, calls.redo));
  States states;
  SystemValue::List results;
  for (const std::vector<Array>& in : inputs) {
    AQT_ASSIGN_OR_RETURN(const SlotValues out, f(in));
    states.Add(f.state());
    const SystemValue gradient(f.Gradient(out, 0));
    const SystemValue aux = calls.has_aux ? SystemValue(SystemValue::Dict{{"m", out.at(Data("1"))}}) : SystemValue();
    if (!calls.keeps_value) {
      results.push_back(calls.has_aux ? SystemValue(SystemValue::List{gradient, aux}) : gradient);
      continue;
    }
    const SystemValue value(out.at(Data("0")));
    results.push_back(SystemValue::List{calls.has_aux ? SystemValue(SystemValue::List{value, aux}) : value, gradient});
  }
  SystemValue::Dict dict{{"results", std::move(results)}};
  AQT_ASSIGN_OR_RETURN(dict["state"], states.Stacked());
  return dict;
}

absl::StatusOr<SystemValue::Dict> RunInject(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> in, InputsOf(c, {"x", "add"}));
  const bool has_aux = c.config.at("has_aux");
  const Array& add = in[1];
  std::vector<std::vector<Array>> inputs;
  for (int64_t i = 0; i < add.num_elements(); ++i) {
    AQT_ASSIGN_OR_RETURN(Array one, ops::Reshape(ops::Slice(Value(add), {i}, {i + 1}), {}).ToArray());
    inputs.push_back({in[0], std::move(one)});
  }
  AQT_ASSIGN_OR_RETURN(Program loss,
                       TraceOn(
                           [&](Values own) {
                             const Value& x = own[0];
                             Outputs out = {ops::ReduceSum(ops::IntegerPow(x, 2)) + own[1] * ops::ReduceSum(x)};
                             if (has_aux) out.push_back(ops::ReduceMax(x));
                             return out;
                           },
                           inputs[0]));
  return RunCalls({.loss = std::move(loss),
                   .keeps_value = c.config.at("transform") == "value_and_grad",
                   .has_aux = has_aux,
                   .scaler = ScalerOf(c, c.config),
                   .redo = c.config.at("redo_on_nan").get<int>()},
                  inputs);
}

absl::StatusOr<SystemValue::Dict> RunCube(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> in, InputsOf(c, {"x"}));
  AQT_ASSIGN_OR_RETURN(Program loss, TraceOn([](Values own) { return Outputs{ops::IntegerPow(own[0], 3)}; }, in));
  const size_t calls = std::get<SystemValue::List>(c.expected.at("results").of).size();
  return RunCalls({.loss = std::move(loss),
                   .keeps_value = c.config.at("transform") == "value_and_grad",
                   .has_aux = false,
                   .scaler = ScalerOf(c, c.config),
                   .redo = c.config.at("redo_on_nan").get<int>()},
                  std::vector<std::vector<Array>>(calls, in));
}

}  // namespace

absl::StatusOr<SystemValue::Dict> RunJaxamp(const SystemCase& system_case) {
  static const auto& groups =
      *new std::map<std::string, std::function<absl::StatusOr<SystemValue::Dict>(const SystemCase&)>>{
          {"policy", RunPolicy}, {"scope", RunScope},   {"linear", RunLinear}, {"grad", RunGrad},
          {"train", RunTrain},   {"scaler", RunScaler}, {"inject", RunInject}, {"cube", RunCube}};
  const auto run = groups.find(system_case.group());
  if (run == groups.end()) return absl::UnimplementedError(absl::StrCat("group ", system_case.group()));
  return run->second(system_case);
}

}  // namespace aqt::systems
