// Scaled arithmetic: transforms/precision/scaled.h, scalify.h and ops/scaling/scaling.h.
#include "tests/systems_check/run_scalify.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/call.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/transforms/precision/scaled.h"
#include "aqt/transforms/precision/scalify.h"
#include "tests/systems_check/scalify_mlp.h"
#include "tests/systems_check/scalify_program.h"

namespace aqt::systems {
namespace {

using Values = absl::Span<const Value>;
using Dict = SystemValue::Dict;

template <class List>
List ListOf(const Json& json) {
  const std::vector<int64_t> numbers = json.get<std::vector<int64_t>>();
  return List(numbers.begin(), numbers.end());
}
Shape ShapeOf(const Json& json) {
  const std::vector<int64_t> extents = json.get<std::vector<int64_t>>();
  return Shape(extents);
}

// One operation on one value.
absl::StatusOr<Value> Unary(const Json& config, const Value& x) {
  const std::string op = config.at("op");
  if (op == "reshape") return ops::Reshape(x, ShapeOf(config.at("new_sizes")));
  if (op == "broadcast_in_dim") {
    return ops::BroadcastInDim(x, ShapeOf(config.at("shape")), ListOf<Axes>(config.at("broadcast_dimensions")));
  }
  if (op == "transpose") return ops::Transpose(x, ListOf<Axes>(config.at("permutation")));
  if (op == "rev") return ops::Reverse(x, ListOf<Axes>(config.at("dimensions")));
  if (op == "slice") {
    return ops::Slice(x, ListOf<PerAxis>(config.at("start")), ListOf<PerAxis>(config.at("limit")),
                      ListOf<PerAxis>(config.at("strides")));
  }
  if (op == "argmax") return ops::ArgMax(x, config.at("axis").get<int64_t>());
  if (op == "argmin") return ops::ArgMin(x, config.at("axis").get<int64_t>());
  if (absl::StartsWith(op, "integer_pow")) return ops::IntegerPow(x, config.at("y").get<int64_t>());
  if (absl::StartsWith(op, "reduce_precision")) {
    return ops::ReducePrecision(x, config.at("exponent_bits").get<int>(), config.at("mantissa_bits").get<int>());
  }
  if (absl::StartsWith(op, "convert")) {
    AQT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(config.at("new_dtype")));
    return ops::Cast(x, dtype);
  }
  static const auto& functions =
      *new std::map<std::string, Value (*)(const ValueOrNumber&)>{{"neg", ops::Neg},
                                                                  {"abs", ops::Abs},
                                                                  {"sign", ops::Sign},
                                                                  {"exp", ops::Exp},
                                                                  {"log", ops::Log},
                                                                  {"sqrt", ops::Sqrt},
                                                                  {"is_finite", ops::IsFinite},
                                                                  {"sin", ops::Sin},
                                                                  {"cos", ops::Cos},
                                                                  {"tanh", ops::Tanh},
                                                                  {"stop_gradient", ops::StopGradient}};
  const auto it = functions.find(op);
  if (it == functions.end()) return absl::UnimplementedError(absl::StrCat("operation ", op));
  return it->second(x);
}

absl::StatusOr<Value> Binary(const std::string& op, const Value& x, const Value& y) {
  static const auto& functions = *new std::map<std::string, Value (*)(const ValueOrNumber&, const ValueOrNumber&)>{
      {"add", ops::Add},      {"add_any", ops::Add}, {"sub", ops::Sub},        {"mul", ops::Mul},     {"div", ops::Div},
      {"max", ops::Max},      {"min", ops::Min},     {"eq", ops::Equal},       {"ne", ops::NotEqual}, {"lt", ops::Less},
      {"le", ops::LessEqual}, {"gt", ops::Greater},  {"ge", ops::GreaterEqual}};
  const auto it = functions.find(op);
  if (it == functions.end()) return absl::UnimplementedError(absl::StrCat("operation ", op));
  return it->second(x, y);
}

absl::StatusOr<Dict> RunUnary(const SystemCase& c) {
  return RunScaledProgram(c, {"x"}, {"y"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
    AQT_ASSIGN_OR_RETURN(Value y, Unary(c.config, in[0]));
    return std::vector<Value>{y};
  });
}

absl::StatusOr<Dict> RunBinary(const SystemCase& c) {
  const char* const second = c.inputs.contains("y") ? "y" : "v";
  return RunScaledProgram(c, {"x", second}, {"z"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
    AQT_ASSIGN_OR_RETURN(Value z, Binary(c.config.at("op"), in[0], in[1]));
    return std::vector<Value>{z};
  });
}

absl::StatusOr<Dict> RunStatic(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const ScaledValue x, ScaledInput(c, "x"));
  AQT_ASSIGN_OR_RETURN(const ScaledValue y, ScaledInput(c, "y"));
  AQT_ASSIGN_OR_RETURN(const ScalifyRules rules, RulesOf(c));
  const ScaledValue z = c.config.at("op") == "max" ? scaled::Max(x, y, rules) : scaled::Min(x, y, rules);
  Dict out;
  AQT_ASSIGN_OR_RETURN(out["z"], ToSystemValue(z));
  return out;
}

absl::StatusOr<Dict> RunNary(const SystemCase& c) {
  const std::string name = c.name.substr(c.name.find('/') + 1);
  if (absl::StartsWith(name, "concatenate")) {
    return RunScaledProgram(c, {"x", "y"}, {"z"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
      return std::vector<Value>{ops::Concatenate(in, c.config.at("dimension").get<int64_t>())};
    });
  }
  if (absl::StartsWith(name, "select_n") && !c.inputs.contains("mask")) {
    return RunScaledProgram(c, {"x"}, {"z"}, [](Values in) -> absl::StatusOr<std::vector<Value>> {
      return std::vector<Value>{ops::Select(ops::Greater(in[0], 0.0), in[0], 0.0)};
    });
  }
  if (absl::StartsWith(name, "select_n")) {  // mask false -> x
    return RunScaledProgram(c, {"mask", "x", "y"}, {"z"}, [](Values in) -> absl::StatusOr<std::vector<Value>> {
      return std::vector<Value>{ops::Select(in[0], in[2], in[1])};
    });
  }
  if (absl::StartsWith(name, "pad")) {
    return RunScaledProgram(c, {"x"}, {"z"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
      PerAxis low, high, interior;
      for (const Json& axis : c.config.at("padding_config")) {
        low.push_back(axis.at(0).get<int64_t>());
        high.push_back(axis.at(1).get<int64_t>());
        interior.push_back(axis.at(2).get<int64_t>());
      }
      return std::vector<Value>{ops::Pad(in[0], low, high, interior, c.config.at("value").get<double>())};
    });
  }
  return absl::UnimplementedError(absl::StrCat("function ", name));
}

// An operand in 8-bit floats, which programs multiply as bf16.
Value DotOperand(const Value& x) {
  const bool is_float8 = x.dtype() == DType::kE4M3FN || x.dtype() == DType::kE5M2;
  return is_float8 ? ops::Cast(x, DType::kBF16) : x;
}

// The two contractions that the original refuses.
absl::StatusOr<Dict> RunDotError(const SystemCase& c) {
  const bool batched = c.config.at("variant") == "batched";
  const Shape lhs{2, 3, 4}, rhs = batched ? Shape{2, 4, 5} : Shape{3, 4, 5};
  const DotDims dims = batched ? DotDims{{2}, {1}, {0}, {0}} : DotDims{{1, 2}, {0, 1}};
  SystemCase with_inputs = c;
  for (const auto& [name, shape] : {std::pair("x", lhs), {"y", rhs}}) {
    std::vector<float> numbers(shape.num_elements());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 7) - 3;
    with_inputs.inputs[name] = ScaledArrays{Array::FromSpan<float>(numbers, shape), Array::Scalar(1.0f)};
  }
  return RunScaledProgram(with_inputs, {"x", "y"}, {"z"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
    return std::vector<Value>{ops::DotGeneral(in[0], in[1], dims)};
  });
}

absl::StatusOr<Dict> RunDot(const SystemCase& c) {
  if (c.config.contains("variant")) return RunDotError(c);
  return RunScaledProgram(c, {"x", "y"}, {"z"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
    std::optional<DType> out;
    if (const Json& wanted = c.config.at("preferred_element_type"); !wanted.is_null()) {
      AQT_ASSIGN_OR_RETURN(out, DTypeOf(wanted));
    }
    const DotDims dims{{c.config.at("lhs_contract").get<int64_t>()}, {c.config.at("rhs_contract").get<int64_t>()}};
    return std::vector<Value>{ops::DotGeneral(DotOperand(in[0]), DotOperand(in[1]), dims, out)};
  });
}

absl::StatusOr<Dict> RunConv(const SystemCase& c) {
  return RunScaledProgram(c, {"x", "y"}, {"z"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
    ConvDims dims{.window_strides = ListOf<Axes>(c.config.at("strides"))};
    dims.padding = c.config.at("padding") == "SAME" ? ConvPadding::kSame : ConvPadding::kValid;
    const Value x = ops::Transpose(in[0], {0, 2, 3, 1}), y = ops::Transpose(in[1], {2, 3, 1, 0});
    return std::vector<Value>{ops::Transpose(ops::Conv(x, y, dims), {0, 3, 1, 2})};
  });
}

absl::StatusOr<Dict> RunReduce(const SystemCase& c) {
  return RunScaledProgram(c, {"x"}, {"y"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
    const std::string op = c.config.at("op");
    if (c.config.contains("window")) {
      WindowDims dims;
      dims.window = ListOf<PerAxis>(c.config.at("window"));
      dims.stride = ListOf<PerAxis>(c.config.at("strides"));
      for (const Json& axis : c.config.at("padding")) {
        dims.low.push_back(axis.at(0).get<int64_t>());
        dims.high.push_back(axis.at(1).get<int64_t>());
      }
      if (op == "reduce_window_sum") return std::vector<Value>{ops::ReduceWindowSum(in[0], dims)};
      if (op == "reduce_window_max") return std::vector<Value>{ops::ReduceWindowMax(in[0], dims)};
      if (op == "reduce_window_min") return std::vector<Value>{ops::ReduceWindowMin(in[0], dims)};
    } else {
      const Axes axes = ListOf<Axes>(c.config.at("axes"));
      if (op == "reduce_sum" && axes.empty()) {  // here the array itself, in the original an ordinary sum
        return Bind(ReduceOp{kernels::ReduceKind::kSum, {}}, in, std::source_location::current());
      }
      if (op == "reduce_sum") return std::vector<Value>{ops::ReduceSum(in[0], axes)};
      if (op == "reduce_prod") return std::vector<Value>{ops::ReduceProd(in[0], axes)};
      if (op == "reduce_max") return std::vector<Value>{ops::ReduceMax(in[0], axes)};
      if (op == "reduce_min") return std::vector<Value>{ops::ReduceMin(in[0], axes)};
    }
    return absl::UnimplementedError(absl::StrCat("operation ", op));
  });
}

Value Relu(const Value& x) {
  return ops::Call("relu", [](Values own) { return std::vector<Value>{ops::Max(own[0], 0.0)}; }, {x})[0];
}

absl::StatusOr<Dict> RunPromote(const SystemCase& c) {
  const std::string fn = c.config.contains("fn") ? c.config.at("fn") : c.config.at("op");
  if (fn == "plain + plain -> plain") {
    return RunScaledProgram(c, {"a", "b"}, {"y"}, [](Values in) -> absl::StatusOr<std::vector<Value>> {
      return std::vector<Value>{in[0] + in[1]};
    });
  }
  if (fn == "x * broadcast(b)") {
    return RunScaledProgram(c, {"x", "b"}, {"y"}, [](Values in) -> absl::StatusOr<std::vector<Value>> {
      return std::vector<Value>{in[0] * ops::BroadcastTo(ops::Cast(in[1], in[0].dtype()), in[0].shape())};
    });
  }
  if (fn == "scaled * plain array" || c.inputs.contains("v")) {
    const std::string op = fn == "scaled * plain array" ? "mul" : fn;
    return RunScaledProgram(c, {"x", "v"}, {"y"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
      AQT_ASSIGN_OR_RETURN(Value y, Binary(op, in[0], in[1]));
      return std::vector<Value>{y};
    });
  }
  return RunScaledProgram(c, {"x"}, {"y"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
    const Value& x = in[0];
    // A string if JSON has no such number: "inf", "-inf", "nan".
    const auto& constant = c.config.at("const");
    const double k = constant.is_string() ? std::stod(constant.get<std::string>()) : constant.get<double>();
    if (fn == "add_const") return std::vector<Value>{x + k};
    if (fn == "mul_const") return std::vector<Value>{x * k};
    if (fn == "div_const") return std::vector<Value>{x / k};
    if (fn == "rsub_const") return std::vector<Value>{k - x};
    if (fn == "add_zero") return std::vector<Value>{x + 0.0};
    if (fn == "max_zero") return std::vector<Value>{ops::Max(x, 0.0)};
    if (fn == "relu") return std::vector<Value>{Relu(x)};
    if (fn == "select_gt0") return std::vector<Value>{ops::Select(ops::Greater(x, 0.0), x, 0.0)};
    return absl::UnimplementedError(absl::StrCat("function ", fn));
  });
}

absl::StatusOr<Dict> RunScaling(const SystemCase& c) {
  const std::string name = c.name.substr(c.name.find('/') + 1);
  if (absl::StartsWith(name, "set_scaling")) {
    return RunScaledProgram(c, {"x", "scale"}, {"y"}, [](Values in) -> absl::StatusOr<std::vector<Value>> {
      return std::vector<Value>{ops::SetScaling(in[0], in[1])};
    });
  }
  if (absl::StartsWith(name, "stop_scaling")) {
    return RunScaledProgram(c, {"x"}, {"y"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
      AQT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(c.config.at("dtype")));
      return std::vector<Value>{ops::StopScaling(in[0], dtype)};
    });
  }
  AQT_ASSIGN_OR_RETURN(const ScaledValue x, ScaledInput(c, "x"));
  AQT_ASSIGN_OR_RETURN(const Array factor, c.Input("factor"));
  Dict out;
  AQT_ASSIGN_OR_RETURN(const ScalifyRules rules, RulesOf(c));
  AQT_ASSIGN_OR_RETURN(out["y"], ToSystemValue(scaled::Rebalance(x, Value(factor), rules)));
  return out;
}

absl::StatusOr<Dict> RunPow2(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const Array x, c.Input("x"));
  const std::string name = c.name.substr(c.name.find('/') + 1);
  Dict out;
  if (absl::StartsWith(name, "decompose")) {
    AQT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(c.config.at("scale_dtype")));
    const scaled::Pow2Parts parts = scaled::Pow2Decompose(Value(x), dtype);
    AQT_ASSIGN_OR_RETURN(out["scale"], parts.scale.ToArray());
    AQT_ASSIGN_OR_RETURN(out["mantissa"], parts.mantissa.ToArray());
    return out;
  }
  AQT_ASSIGN_OR_RETURN(const ScaleRounding rounding, RoundingOf(c.config.at("mode")));
  AQT_ASSIGN_OR_RETURN(out["y"], scaled::Pow2Round(Value(x), rounding).ToArray());
  return out;
}

absl::StatusOr<Dict> RunE8M0(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const Array x, c.Input("x"));
  const std::string fn = c.config.at("fn");
  Value y;
  if (fn == "as_e8m0") y = scaled::AsE8M0(Value(x));
  if (fn == "pow2_truncate") y = scaled::Pow2Truncate(Value(x));
  if (fn == "from_e8m0") {
    AQT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(c.config.at("dtype")));
    y = scaled::FromE8M0(Value(x), dtype);
  }
  Dict out;
  AQT_ASSIGN_OR_RETURN(out["y"], y.ToArray());
  return out;
}

absl::StatusOr<Dict> RunMake(const SystemCase& c) {
  const std::string name = c.name.substr(c.name.find('/') + 1);
  AQT_ASSIGN_OR_RETURN(const ScalifyRules rules, RulesOf(c));
  Dict out;
  if (absl::StartsWith(name, "to_array")) {
    AQT_ASSIGN_OR_RETURN(const ScaledValue x, ScaledInput(c, "x"));
    AQT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(c.config.at("dtype")));
    AQT_ASSIGN_OR_RETURN(out["y"], scaled::ToArray(x, dtype, rules).ToArray());
    return out;
  }
  AQT_ASSIGN_OR_RETURN(const Array x, c.Input("x"));
  if (!IsFloat(x.dtype())) {  // integers have no scale
    out["y"] = x;
    return out;
  }
  std::optional<Value> scale;
  if (c.config.contains("scale") && !c.config.at("scale").is_null()) {
    const std::string text = c.config.at("scale");  // "f32 2.0"
    scale = Value(Array::Scalar(std::stof(text.substr(4))));
  }
  AQT_ASSIGN_OR_RETURN(out["y"], ToSystemValue(scaled::AsScaled(Value(x), scale, rules)));
  return out;
}

absl::StatusOr<std::function<Value(const Value&)>> StepOf(const SystemCase& c) {
  const ScalingOptions options{.dropped_under_grad = c.behaviour.dropped_under_grad};
  if (c.group() == "cast") {
    AQT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(c.config.at("dtype")));
    const bool forward = c.config.at("direction") == "forward";
    return [=](const Value& x) {
      return forward ? ops::ReducePrecisionOnForward(x, dtype, options) : ops::ReducePrecisionOnBackward(x, dtype);
    };
  }
  static const auto& steps = *new std::map<std::string, std::function<Value(const Value&)>>{
      {"dynamic_rescale_max", [](const Value& x) { return ops::DynamicRescaleMax(x); }},
      {"dynamic_rescale_l1", [](const Value& x) { return ops::DynamicRescaleL1(x); }},
      {"dynamic_rescale_l2", [](const Value& x) { return ops::DynamicRescaleL2(x); }},
      {"dynamic_rescale_max_grad", [](const Value& x) { return ops::DynamicRescaleMaxGrad(x); }},
      {"dynamic_rescale_l1_grad", [](const Value& x) { return ops::DynamicRescaleL1Grad(x); }},
      {"dynamic_rescale_l2_grad", [](const Value& x) { return ops::DynamicRescaleL2Grad(x); }}};
  const auto it = steps.find(c.config.at("fn").get<std::string>());
  if (it == steps.end()) return absl::UnimplementedError(absl::StrCat("function ", c.config.at("fn").dump()));
  return it->second;
}

// y = f(x), and the vector-Jacobian product of f for the case's cotangent: a composite's own backward rule.
absl::StatusOr<Dict> RunStep(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const auto step, StepOf(c));
  if (!c.inputs.contains("cotangent")) {
    return RunScaledProgram(c, {"x"}, {"y"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
      return std::vector<Value>{step(in[0])};
    });
  }
  return RunScaledProgram(c, {"x", "cotangent"}, {"y", "dx"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
    AQT_ASSIGN_OR_RETURN(const Value dx, CotangentOf(step, in[0], in[1]));
    return std::vector<Value>{step(in[0]), dx};
  });
}

Value RowsKept(const Value& x) { return ops::Reshape(x, {x.dim(0), 1}); }

absl::StatusOr<Dict> RunGraph(const SystemCase& c) {
  return RunScaledProgram(c, {"x"}, {"y"}, [&](Values in) -> absl::StatusOr<std::vector<Value>> {
    const Value& x = in[0];
    const std::string fn = c.config.at("fn");
    const double count = static_cast<double>(x.shape().num_elements());
    if (fn == "sum") return std::vector<Value>{ops::ReduceSum(x)};
    if (fn == "mean") return std::vector<Value>{ops::ReduceSum(x) / count};
    if (fn == "max_axis1") return std::vector<Value>{ops::ReduceMax(x, {1})};
    if (fn == "vmap_x2") return std::vector<Value>{x * 2.0};
    if (fn == "softmax") {
      const Value max = ops::StopGradient(RowsKept(ops::Max(ops::ReduceMax(x, {1}), -static_cast<double>(INFINITY))));
      const Value e = ops::Exp(x - max);
      return std::vector<Value>{e / RowsKept(ops::ReduceSum(e, {1}))};
    }
    if (fn == "logsumexp") {
      Value max = ops::Max(ops::ReduceMax(x, {1}), -static_cast<double>(INFINITY));
      max = ops::StopGradient(ops::Select(ops::IsFinite(max), max, 0.0));
      const Value e = ops::Exp(x - RowsKept(max));
      return std::vector<Value>{ops::Log(ops::Abs(ops::ReduceSum(e, {1}))) + max};
    }
    const auto broadcast = [&](double number) {
      return ops::BroadcastTo(ValueOrNumber(number).As(x.dtype()), x.shape());
    };
    if (fn == "grad_mean_square") {
      const Value all = broadcast(1 / count);
      return std::vector<Value>{x * all + all * x};
    }
    if (fn == "grad_sum_relu") {
      const Value h = Relu(x), all = broadcast(1);
      const Value q = ops::Select(ops::Greater(x, 0.0), all * x, 0.0);
      return std::vector<Value>{h * all + q};
    }
    return absl::UnimplementedError(absl::StrCat("function ", fn));
  });
}

}  // namespace

absl::StatusOr<Dict> RunScalify(const SystemCase& system_case) {
  static const auto& groups = *new std::map<std::string, std::function<absl::StatusOr<Dict>(const SystemCase&)>>{
      {"unary", RunUnary},   {"special", RunUnary},   {"binary", RunBinary},     {"zero", RunBinary},
      {"static", RunStatic}, {"nary", RunNary},       {"dot", RunDot},           {"conv", RunConv},
      {"reduce", RunReduce}, {"promote", RunPromote}, {"unsupported", RunUnary}, {"scaling", RunScaling},
      {"pow2", RunPow2},     {"e8m0", RunE8M0},       {"make", RunMake},         {"rescale", RunStep},
      {"cast", RunStep},     {"graph", RunGraph},     {"mlp", RunScalifyMlp}};
  const auto run = groups.find(system_case.group());
  if (run == groups.end()) return absl::UnimplementedError(absl::StrCat("group ", system_case.group()));
  return run->second(system_case);
}

}  // namespace aqt::systems
