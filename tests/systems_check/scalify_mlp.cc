// The recorded training step, operation by operation, because the scales depend on the operations.
#include "tests/systems_check/scalify_mlp.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/value.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/transforms/precision/scaled.h"
#include "tests/systems_check/scalify_program.h"

namespace aqt::systems {
namespace {

struct Config {
  bool fp8_cast, l2_grad_rescale;
  bool rounds_hidden;  // the other layers' inputs, and all weights but the last
  double learning_rate;
};

// Sums of f16 are computed in f32.
Value Widened(const Value& x) { return x.dtype() == DType::kF16 ? ops::Cast(x, DType::kF32) : x; }
Value Column(const Value& x) { return ops::Reshape(x, {x.dim(0), 1}); }

struct Layer {
  Value weight, bias;
};

class Step {
 public:
  Step(const Config& config, std::vector<Layer> layers, Value x, Value t)
      : config_(config), layers_(std::move(layers)), x_(std::move(x)), t_(std::move(t)) {}

  // The loss, the gradients and the new parameters, layer by layer.
  std::vector<Value> operator()() {
    Forward();
    std::vector<Value> out = {Loss()};
    const std::vector<Layer> gradients = Backward();
    for (const Layer& g : gradients) out.insert(out.end(), {g.weight, g.bias});
    for (size_t i = 0; i < layers_.size(); ++i) {
      out.push_back(layers_[i].weight - gradients[i].weight * config_.learning_rate);
      out.push_back(layers_[i].bias - gradients[i].bias * config_.learning_rate);
    }
    return out;
  }

 private:
  void Forward() {
    h_ = {config_.fp8_cast ? ops::ReducePrecision(x_, 4, 3) : x_};
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool rounds = config_.fp8_cast && config_.rounds_hidden;
      lhs_.push_back(rounds && i > 0 ? ops::ReducePrecision(h_[i], 4, 3) : h_[i]);
      rhs_.push_back(rounds && i + 1 < layers_.size() ? ops::ReducePrecision(layers_[i].weight, 4, 3)
                                                      : layers_[i].weight);
      a_.push_back(ops::DotGeneral(lhs_[i], rhs_[i], {{1}, {0}}) + layers_[i].bias);
      if (i + 1 < layers_.size()) h_.push_back(ops::Max(a_[i], 0.0));
    }
    const Value& z = a_.back();
    const Value max = ops::StopGradient(Column(ops::ReduceMax(z, {1})));
    e_ = ops::Exp(z - max);
    sum_ = ops::Cast(Column(ops::ReduceSum(Widened(e_), {1})), z.dtype());
    p_ = z - (ops::Log(sum_) + max);
  }

  Value Loss() const {
    const DType dtype = x_.dtype();
    const Value rows = ops::Cast(ops::ReduceSum(Widened(p_ * t_), {1}), dtype);
    return -ops::Cast(ops::ReduceSum(Widened(rows), {0}) / static_cast<double>(x_.dim(0)), dtype);
  }

  std::vector<Layer> Backward() const {
    const DType dtype = x_.dtype();
    const Value each = ops::BroadcastTo(ValueOrNumber(-1.0 / static_cast<double>(x_.dim(0))).As(dtype), t_.shape());
    const Value u = each * t_;
    const Value quotient = Column(ops::ReduceSum(-u, {1})) / sum_;
    const Value row = ops::ReduceSum(Widened(quotient), {1});
    const Value all = ops::Cast(ops::BroadcastInDim(row, t_.shape(), {0}), dtype);
    Value g = u + all * e_;
    if (config_.l2_grad_rescale) g = ops::DynamicRescaleL2(g);
    std::vector<Layer> gradients(layers_.size());
    for (size_t i = layers_.size(); i-- > 0;) {
      const Value row_sum = ops::Reshape(ops::ReduceSum(g, {0}), {1, g.dim(1)});
      gradients[i].bias = ops::ReduceSum(row_sum, {0});
      const Value rounded = config_.fp8_cast ? ops::ReducePrecision(g, 5, 2) : g;
      gradients[i].weight = ops::Transpose(ops::DotGeneral(rounded, lhs_[i], {{0}, {0}}), {1, 0});
      if (i == 0) break;
      const Value is_kept = ops::Equal(a_[i - 1], h_[i]), is_tie = ops::Equal(h_[i], 0.0);
      const auto number = [&](double v) { return ValueOrNumber(v).As(dtype); };
      const Value mask = ops::Select(is_kept, number(1), number(0)) / ops::Select(is_tie, number(2), number(1));
      g = ops::DotGeneral(rounded, rhs_[i], {{1}, {1}}) * mask;
    }
    return gradients;
  }

  const Config config_;
  const std::vector<Layer> layers_;
  const Value x_, t_;
  std::vector<Value> h_, a_;
  std::vector<Value> lhs_, rhs_;  // of each layer's product
  Value e_, sum_, p_;
};

// [W, b] of a layer, twice.
SystemValue::List Pairs(absl::Span<const SystemValue> values) {
  SystemValue::List list;
  for (size_t i = 0; i < values.size(); i += 2) list.push_back(SystemValue::List{values[i], values[i + 1]});
  return list;
}

}  // namespace

absl::StatusOr<SystemValue::Dict> RunScalifyMlp(const SystemCase& c) {
  const Config config{c.config.at("fp8_cast").get<bool>(), c.config.at("l2_grad_rescale").get<bool>(),
                      !c.behaviour.dropped_under_grad, c.config.at("lr").get<double>()};
  AQT_ASSIGN_OR_RETURN(const ScalifyRules rules, RulesOf(c));
  std::vector<SystemValue> params;
  for (const SystemValue& layer : std::get<SystemValue::List>(c.inputs.at("params").of)) {
    for (const SystemValue& value : std::get<SystemValue::List>(layer.of)) params.push_back(value);
  }
  const size_t count = params.size();
  std::vector<std::string> outputs = {"loss"};
  for (const char* kind : {"grad", "param"}) {
    for (size_t i = 0; i < count; ++i) outputs.push_back(absl::StrCat(kind, i));
  }
  SystemValue::Dict out;
  const SystemValue::List& batches = std::get<SystemValue::List>(c.inputs.at("batches").of);
  for (size_t step = 0; step < batches.size(); ++step) {
    NamedValues inputs;
    for (size_t i = 0; i < count; ++i) inputs.emplace_back(absl::StrCat("p", i), params[i]);
    const SystemValue::List& batch = std::get<SystemValue::List>(batches[step].of);
    inputs.emplace_back("x", batch.at(0));
    inputs.emplace_back("t", batch.at(1));
    AQT_ASSIGN_OR_RETURN(
        const SystemValue::Dict results,
        RunScaled(inputs, outputs, rules, [&](absl::Span<const Value> in) -> absl::StatusOr<std::vector<Value>> {
          std::vector<Layer> layers;
          for (size_t i = 0; i < count; i += 2) layers.push_back({in[i], in[i + 1]});
          return Step(config, std::move(layers), in[count], in[count + 1])();
        }));
    std::vector<SystemValue> gradients;
    for (size_t i = 0; i < count; ++i) {
      gradients.push_back(results.at(absl::StrCat("grad", i)));
      params[i] = results.at(absl::StrCat("param", i));
    }
    out[absl::StrCat("step", step, "_loss")] = results.at("loss");
    out[absl::StrCat("step", step, "_grads")] = Pairs(gradients);
    out[absl::StrCat("step", step, "_params")] = Pairs(params);
  }
  return out;
}

}  // namespace aqt::systems
