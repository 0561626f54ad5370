// Layers in 8-bit floats with delayed scaling: ops/fp8/fp8_scaling.h, ops/fp8/fp8_dot.h, ops/fp8/fp8_projections.h.
#include "tests/systems_check/run_fp8layers.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/fp8/fp8_projections.h"
#include "aqt/ops/fp8/fp8_scaling.h"
#include "tests/systems_check/fp8layers_models.h"

namespace aqt::systems {
namespace {

using Values = absl::Span<const Value>;

absl::StatusOr<SystemValue> ToSystemValue(const Value& value) {
  AQT_ASSIGN_OR_RETURN(Array array, value.ToArray());
  return SystemValue(std::move(array));
}

Value One(const Shape& shape = {1}) { return ops::BroadcastTo(ValueOrNumber(1.0).As(DType::kF32), shape); }
Value Zeros(int64_t length) { return ops::BroadcastTo(ValueOrNumber(0.0).As(DType::kF32), {length}); }
// The state before the first step.
Fp8TensorState Fresh(int64_t length) { return {One(), Zeros(length)}; }

// ---- quantization and scales

absl::StatusOr<SystemValue::Dict> RunQdq(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const Array x, c.Input("x"));
  AQT_ASSIGN_OR_RETURN(const Array scale, c.Input("scale"));
  AQT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(c.config.at("q_dtype")));
  AQT_ASSIGN_OR_RETURN(const DType computes, DTypeIn(c, "compute_dtype", DType::kF32));
  if (c.config.value("fp8_max", MaxFinite(dtype)) != MaxFinite(dtype)) {
    return absl::UnimplementedError("a limit other than the largest number of the type");
  }
  SystemValue::Dict out;
  AQT_ASSIGN_OR_RETURN(out["q"], ToSystemValue(ops::Fp8Quantize(Value(x), Value(scale), dtype, computes)));
  AQT_ASSIGN_OR_RETURN(out["qdq"], ToSystemValue(ops::Fp8QuantizeDequantize(Value(x), Value(scale), dtype, computes)));
  return out;
}

absl::StatusOr<SystemValue::Dict> RunComputeScale(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const Array amax, c.Input("amax"));
  SystemValue::Dict out;
  AQT_ASSIGN_OR_RETURN(out["scale"],
                       ToSystemValue(ops::Fp8ComputeScale(
                           Value(amax), Value(Array::Scalar(c.config.at("previous_scale").get<float>())),
                           c.config.at("fp8_max").get<double>(), c.config.value("margin", 0), c.behaviour.fp8)));
  return out;
}

absl::StatusOr<SystemValue::Dict> RunAmaxHistory(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const Array amax, c.Input("amax"));
  AQT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(c.config.value("q_dtype", "e4m3fn")));
  const int64_t length = c.config.value("length", int64_t{16});
  Fp8TensorState state = Fresh(length);
  if (c.config.contains("init_history")) {
    state.amax_history = Value(Array::FromSpan<float>(c.config.at("init_history").get<std::vector<float>>(), {length}));
  }
  state.scale = state.scale * c.config.value("init_scale", 1.0);
  const Fp8ScaleRule rule{.dtype = dtype, .margin = c.config.value("margin", 0), .compat = c.behaviour.fp8};
  std::vector<Array> histories, scales;
  for (int64_t i = 0; i < amax.num_elements(); ++i) {
    AQT_ASSIGN_OR_RETURN(const Array a, StepOf(c, "amax", i));
    const Value one = ops::Reshape(Value(a), {1});
    state = ops::Fp8Update(ops::Concatenate({one, one * -0.5}, 0), state, rule);
    AQT_ASSIGN_OR_RETURN(histories.emplace_back(), state.amax_history.ToArray());
    AQT_ASSIGN_OR_RETURN(scales.emplace_back(), state.scale.ToArray());
  }
  SystemValue::Dict out;
  AQT_ASSIGN_OR_RETURN(out["history"], Stacked(histories));
  AQT_ASSIGN_OR_RETURN(out["scale"], Stacked(scales));
  return out;
}

// ---- products

constexpr std::pair<Fp8Tensor, const char*> kMetas[] = {
    {Fp8Tensor::kInput, "x"}, {Fp8Tensor::kKernel, "k"}, {Fp8Tensor::kOutputGrad, "dy"}};

absl::StatusOr<SystemValue::Dict> RunDot(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const DType computes, DTypeIn(c, "compute_dtype", DType::kF32));
  const int64_t length = c.config.value("history_length", int64_t{16});
  AQT_ASSIGN_OR_RETURN(const int64_t recorded, StepsOf(c, "x"));
  const int64_t steps = c.config.value("steps", recorded);
  const auto slot = [](const char* name) { return Slot{SlotKind::kData, name}; };
  std::map<std::string, SystemValue::List> lists;
  std::map<std::string, std::vector<Array>> metas;
  SlotValues state;
  for (const auto& [tensor, name] : kMetas) {
    const Fp8Slots slots = Fp8SlotsOf("dot", tensor);
    AQT_ASSIGN_OR_RETURN(Array scale, One().ToArray());
    AQT_ASSIGN_OR_RETURN(Array history, Zeros(length).ToArray());
    state.insert({{slots.scale, std::move(scale)}, {slots.amax_history, std::move(history)}});
  }
  for (int64_t n = 0; n < steps; ++n) {
    SlotValues values = state;
    std::vector<Input> inputs;
    for (const char* name : {"x", "k", "dy"}) {
      AQT_ASSIGN_OR_RETURN(const Array recorded_input, StepOf(c, name, n));
      const Array converted = Cast(recorded_input, computes);
      values.insert_or_assign(slot(name), converted);
      inputs.push_back({slot(name), converted.aval()});
    }
    AQT_ASSIGN_OR_RETURN(Program program,
                         Trace(
                             [&](Values in) {
                               const Value y =
                                   ops::Fp8Dot(in[0], in[1], Fp8StateInputs("dot", length),
                                               {.name = "dot", .compute_dtype = computes, .compat = c.behaviour.fp8});
                               return std::vector<Value>{ops::ReduceSum(y * in[2]), y};
                             },
                             inputs, std::vector<Slot>{slot("loss"), slot("y")}));
    AQT_ASSIGN_OR_RETURN(program, ValueAndGrad(program, {{0, 1}}));
    AQT_ASSIGN_OR_RETURN(const SlotValues out, EvalSlots(program, values));
    for (auto& [name, array] : state) array = out.at(name);
    lists["y"].push_back(out.at(slot("y")));
    lists["dx"].push_back(out.at(slot("grad(x)")));
    lists["dk"].push_back(out.at(slot("grad(k)")));
    for (const auto& [tensor, name] : kMetas) {
      const Fp8Slots slots = Fp8SlotsOf("dot", tensor);
      metas[absl::StrCat(name, "_scale")].push_back(state.at(slots.scale));
      metas[absl::StrCat(name, "_amax")].push_back(state.at(slots.amax_history));
    }
  }
  SystemValue::Dict meta, out;
  for (const auto& [name, arrays] : metas) {
    AQT_ASSIGN_OR_RETURN(meta[name], Stacked(arrays));
  }
  for (auto& [name, list] : lists) out[name] = std::move(list);
  out["meta"] = std::move(meta);
  return out;
}

absl::StatusOr<SystemValue::Dict> RunProjection(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const DType computes, DTypeIn(c, "compute_dtype", DType::kF32));
  const int64_t length = c.config.value("history_length", int64_t{16});
  const Fp8DotState state{Fresh(length), Fresh(length), Fresh(length)};
  const Fp8DotOptions options{.compute_dtype = computes, .compat = c.behaviour.fp8};
  std::map<std::string, Value> in;
  for (const auto& [name, value] : c.inputs) {
    AQT_ASSIGN_OR_RETURN(const Array array, c.Input(name));
    in[name] = ops::Cast(Value(array), computes);
  }
  const std::string equation = c.config.at("einsum");
  std::map<std::string, Value> results;
  if (equation == "...K,KN->...N") {
    results["y"] = ops::Fp8Projection(in["x"], in["w"], in["b"], state, options);
    results["y_nobias"] = ops::Fp8Projection(in["x"], in["w"], std::nullopt, state, options);
  } else if (equation == "...D,KDNH->K...NH") {
    results["y"] = ops::Fp8QkvCombinedProjection(in["x"], in["w"], in["b"], state, options);
  } else if (equation == "...D,DNH->...NH") {
    results["y"] = ops::Fp8QkvProjection(in["x"], in["w"], in["b"], state, options);
  } else if (equation == "...NH,NHD->...D and ...NH,DNH->...D") {
    results["y_nhd"] =
        ops::Fp8AttentionOutputProjection(in["x"], in["w_nhd"], in["b"], ops::Fp8OutputKernel::kNHD, state, options);
    results["y_dnh"] =
        ops::Fp8AttentionOutputProjection(in["x"], in["w_dnh"], in["b"], ops::Fp8OutputKernel::kDNH, state, options);
  } else {
    return absl::UnimplementedError(absl::StrCat("projection ", equation));
  }
  SystemValue::Dict out;
  for (const auto& [name, value] : results) {
    AQT_ASSIGN_OR_RETURN(out[name], ToSystemValue(value));
  }
  return out;
}

absl::StatusOr<SystemValue::Dict> RunAmax(const SystemCase& c) {
  AQT_ASSIGN_OR_RETURN(const Array x, c.Input("x"));
  const int64_t shards = c.config.at("shards"), axis = c.config.value("axis", int64_t{0});
  AQT_ASSIGN_OR_RETURN(const Axes axes, NormalizeAxes({axis}, x.shape().rank()));
  PerAxis start(static_cast<size_t>(x.shape().rank()), 0), limit(x.shape().begin(), x.shape().end());
  const int64_t extent = x.shape()[axes[0]] / shards;
  std::vector<Value> local;
  for (int64_t i = 0; i < shards; ++i) {
    start[axes[0]] = i * extent;
    limit[axes[0]] = (i + 1) * extent;
    local.push_back(ops::Fp8Amax(ops::Slice(Value(x), start, limit)));
  }
  SystemValue::Dict out;
  const Value all = ops::Concatenate(local, 0);
  AQT_ASSIGN_OR_RETURN(out["local_amax"], ToSystemValue(all));
  AQT_ASSIGN_OR_RETURN(out["global_amax"], ToSystemValue(ops::Fp8Amax(all)));
  return out;
}

// ---- the recipe of the tutorial: scales that are not powers of two, and a delayed scale of the result

absl::StatusOr<SystemValue::Dict> RunTutorial(const SystemCase& c) {
  SystemValue::Dict out;
  if (c.inputs.contains("x")) {
    AQT_ASSIGN_OR_RETURN(const Array x, c.Input("x"));
    AQT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(c.config.at("q_dtype")));
    AQT_ASSIGN_OR_RETURN(out["y"], ToSystemValue(ops::Cast(Value(x), dtype)));
    return out;
  }
  constexpr DType kType = DType::kE4M3FN;
  const double max = MaxFinite(kType);
  std::map<std::string, Value> results;
  std::vector<Value> dequantized;
  for (const std::string name : {"a", "b"}) {
    AQT_ASSIGN_OR_RETURN(const Array array, c.Input(name));
    const Value x(array);
    const Value scale = ops::ReduceMax(ops::Abs(x)) / max, codes = ops::Cast(x / scale, kType);
    results[name + "_scale"] = scale;
    results[name + "_fp8"] = codes;
    dequantized.push_back(ops::Cast(codes, x.dtype()) * scale);
  }
  AQT_ASSIGN_OR_RETURN(const Array c_scale, c.Input("c_scale"));
  const Value product = ops::MatMul(dequantized[0], dequantized[1]);
  results["c"] = product;
  results["c_fp8"] = ops::Cast(ops::Clamp(-max, product / Value(c_scale), max), kType);
  results["new_c_scale"] = ops::ReduceMax(ops::Abs(product)) / max;
  for (const auto& [name, value] : results) {
    AQT_ASSIGN_OR_RETURN(out[name], ToSystemValue(value));
  }
  return out;
}

}  // namespace

absl::StatusOr<SystemValue::Dict> RunFp8Layers(const SystemCase& system_case) {
  static const auto& groups =
      *new std::map<std::string, std::function<absl::StatusOr<SystemValue::Dict>(const SystemCase&)>>{
          {"qdq", RunQdq},
          {"compute_scale", RunComputeScale},
          {"amax_history", RunAmaxHistory},
          {"dot", RunDot},
          {"projection", RunProjection},
          {"amax", RunAmax},
          {"dense", RunFp8Dense},
          {"mlp", RunFp8Mlp},
          {"transformer", RunFp8Transformer},
          {"tutorial", RunTutorial}};
  const auto run = groups.find(system_case.group());
  if (run == groups.end()) return absl::UnimplementedError(absl::StrCat("group ", system_case.group()));
  return run->second(system_case);
}

}  // namespace aqt::systems
