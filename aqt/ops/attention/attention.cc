#include "aqt/ops/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/needed.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/op.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/program.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/trace.h"
#include "aqt/kernels/attention/attention.h"
#include "aqt/ops/attention/attention_op.h"
#include "aqt/ops/functions.h"

namespace aqt {
namespace {

using internal::AttentionFields;

DType ScoreDType(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

bool IsAttentionDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64;
}

double Divisor(const Shape& query) { return std::sqrt(static_cast<double>(query[3])); }

// Whether x broadcasts to the shape, aligned at the last axes.
bool Broadcasts(const Shape& x, const Shape& shape) {
  const int64_t missing = shape.rank() - x.rank();
  if (missing < 0) return false;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (x[i] != 1 && x[i] != shape[missing + i]) return false;
  }
  return true;
}

absl::Status CheckTensors(const Aval& query, const Aval& key, const Aval& value) {
  for (const Aval* operand : {&query, &key, &value}) {
    if (operand->shape.rank() != 4) return absl::InvalidArgumentError("takes arrays [batch, length, heads, features]");
    if (!IsAttentionDType(operand->dtype) || operand->dtype != query.dtype) {
      return absl::InvalidArgumentError("takes query, key and value of one dtype: f32, bf16, f16 or f64");
    }
  }
  const Shape &q = query.shape, &k = key.shape, &v = value.shape;
  if (q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && q[2] == k[2] && k[2] == v[2] && q[3] == k[3]) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "takes query [batch, queries, heads, features], key [batch, keys, heads, features] and value [batch, keys, "
      "heads, out]");
}

Shape ScoreShape(const Shape& query, const Shape& key) { return {query[0], query[2], query[1], key[1]}; }

// ---- the definition

Value Scores(const AttentionOperands& in) {
  const DType wide = ScoreDType(in.query.dtype());
  const Value scaled = in.query / Divisor(in.query.shape());
  Value scores;  // [batch, heads, queries, keys]
  {
    const NamedScope product("qk");
    scores = ops::DotGeneral(
        scaled, in.key, {.lhs_contracting = {3}, .rhs_contracting = {3}, .lhs_batch = {0, 2}, .rhs_batch = {0, 2}});
  }
  scores = ops::Cast(scores, wide);
  if (in.bias.has_value()) scores = scores + ops::Cast(*in.bias, wide);
  return in.mask.has_value() ? ops::Select(*in.mask, scores, -MaxFinite(wide)) : scores;
}

// weights [batch, heads, queries, keys] -> [batch, queries, heads, out]
Value SumsOfValues(const Value& weights, const Value& value) {
  Value result;
  {
    const NamedScope product("av");
    result = ops::DotGeneral(
        weights, value, {.lhs_contracting = {3}, .rhs_contracting = {1}, .lhs_batch = {0, 1}, .rhs_batch = {0, 2}});
  }
  return ops::Transpose(result, {0, 2, 1, 3});
}

// ---- the gradient

// (operands, cotangent) -> the gradients of the float operands: those of sum(result * cotangent), whose derivative with
// respect to the result is exactly the cotangent.
absl::StatusOr<Program> BackwardOf(const Composite& op, absl::Span<const Value> operands, const Value& cotangent,
                                   absl::Span<const int> wrt) {
  std::vector<Input> inputs;
  for (const Value& operand : operands) {
    inputs.push_back({{SlotKind::kData, absl::StrCat(inputs.size())}, operand.aval()});
  }
  inputs.push_back({{SlotKind::kData, "cotangent"}, cotangent.aval()});
  AQT_ASSIGN_OR_RETURN(const Program sum, Trace(
                                              [&](absl::Span<const Value> in) {
                                                const Value result = op.Expand(in.first(operands.size()))[0];
                                                return std::vector<Value>{ops::ReduceSum(result * in.back())};
                                              },
                                              inputs));
  AQT_ASSIGN_OR_RETURN(Program backward, Grad(sum, wrt));
  // The sum itself is not wanted.
  const std::vector<bool> needed = NeededFor(backward, OutputVars(backward));
  std::erase_if(backward.eqns, [&](const Equation& eqn) { return !IsNeeded(eqn, needed); });
  return backward;
}

// ---- the operation

class AttentionOp : public CompositeOf<AttentionFields> {
 public:
  using CompositeOf::CompositeOf;

  std::string Name() const override { return internal::kAttentionName; }
  std::string Attributes() const override {
    std::vector<std::string> parts;
    if (fields_.has_bias) parts.push_back("bias");
    if (fields_.has_mask) parts.push_back("mask");
    return absl::StrJoin(parts, " ");
  }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    const size_t count = 3 + (fields_.has_bias ? 1 : 0) + (fields_.has_mask ? 1 : 0);
    if (in.size() != count) return absl::InvalidArgumentError(absl::StrCat("takes ", count, " operands"));
    AQT_RETURN_IF_ERROR(CheckTensors(in[0], in[1], in[2]));
    const Shape &query = in[0].shape, &key = in[1].shape, &value = in[2].shape;
    const Shape scores = ScoreShape(query, key);
    const auto check = [&](const Aval& operand, DType dtype, const char* name) -> absl::Status {
      if (operand.dtype == dtype && operand.shape.rank() == 4 && Broadcasts(operand.shape, scores)) {
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(absl::StrCat("takes a ", name, " ", ToString(dtype),
                                                     " with 4 axes that broadcasts to ", scores.ToString(), ", not ",
                                                     operand.ToString()));
    };
    if (fields_.has_bias) AQT_RETURN_IF_ERROR(check(in[3], ScoreDType(in[0].dtype), "bias"));
    if (fields_.has_mask) AQT_RETURN_IF_ERROR(check(in.back(), DType::kBool, "mask"));
    return std::vector<Aval>{{in[0].dtype, {query[0], query[1], query[2], value[3]}}};
  }

  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    AttentionOperands operands{in[0], in[1], in[2]};
    if (fields_.has_bias) operands.bias = in[3];
    if (fields_.has_mask) operands.mask = in.back();
    const DType dtype = in[0].dtype();
    return {SumsOfValues(ops::Cast(ops::Softmax(Scores(operands)), dtype), in[2])};
  }

  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    std::vector<Aval> avals;
    for (const Array& operand : in) avals.push_back(operand.aval());
    return HasKernel(avals) ? EvalByKernel(in, needed) : CompositeOf::Eval(in, needed);
  }

  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    const std::vector<Aval> avals = AvalsOf(in);
    if (!HasKernel(avals)) return CompositeOf::MakeKernel(in, needed);
    const auto plan = std::make_shared<const kernels::AttentionPlan>(KernelShape(avals));
    const AttentionFields fields = fields_;
    return OpKernel{.run =
                        [plan, fields](const KernelCall& call) {
                          const void* const* in = call.in;
                          const kernels::AttentionCall arrays = {
                              .query = in[0],
                              .key = in[1],
                              .value = in[2],
                              .bias = fields.has_bias ? static_cast<const float*>(in[3]) : nullptr,
                              .mask = fields.has_mask ? static_cast<const bool*>(in[fields.has_bias ? 4 : 3]) : nullptr,
                              .out = call.out[0]};
                          plan->Run(arrays, call.scratch, call.executor);
                          return absl::OkStatus();
                        },
                    .scratch_bytes = plan->scratch_bytes()};
  }

  bool has_gradient() const override { return true; }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> operands,
                                                 absl::Span<const Value> cotangents) const override {
    std::vector<int> wrt;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (IsFloat(operands[i].dtype())) wrt.push_back(static_cast<int>(i));
    }
    const absl::StatusOr<Program> backward = BackwardOf(*this, operands, cotangents[0], wrt);
    std::vector<std::optional<Value>> result(operands.size());
    if (!backward.ok()) {
      const Value poisoned = Refuse(backward.status(), "grad(attention)", operands, SourceLine());
      for (const int i : wrt) result[i] = poisoned;
      return result;
    }
    std::vector<Value> args(operands.begin(), operands.end());
    args.push_back(cotangents[0]);
    const std::vector<Value> gradients = Inline(*backward, args);
    for (size_t i = 0; i < wrt.size(); ++i) result[wrt[i]] = gradients[i];
    return result;
  }

 private:
  static bool HasKernel(absl::Span<const Aval> in) {
    const bool is_empty =
        std::any_of(in.begin(), in.end(), [](const Aval& aval) { return aval.shape.num_elements() == 0; });
    return in[0].dtype != DType::kF64 && !is_empty;
  }

  kernels::AttentionShape KernelShape(absl::Span<const Aval> in) const {
    const Shape &query = in[0].shape, &key = in[1].shape, &value = in[2].shape;
    const auto strides = [](const Shape& shape) {
      std::array<int64_t, 4> result;
      int64_t stride = 1;
      for (int i = 3; i >= 0; --i) {
        result[i] = shape[i] == 1 ? 0 : stride;
        stride *= shape[i];
      }
      return result;
    };
    // The number by which Expand divides.
    const Array divisor = Cast(Cast(Array::Scalar(Divisor(query)), in[0].dtype), DType::kF32);
    kernels::AttentionShape shape{.dtype = in[0].dtype,
                                  .batch = query[0],
                                  .queries = query[1],
                                  .keys = key[1],
                                  .heads = query[2],
                                  .features = query[3],
                                  .out = value[3],
                                  .divisor = divisor.View<float>()[0]};
    if (fields_.has_bias) shape.bias = strides(in[3].shape);
    if (fields_.has_mask) shape.mask = strides(in.back().shape);
    return shape;
  }
};

// The operand with four axes.
Value WithFourAxes(const Value& x) {
  if (x.rank() == 4) return x;
  Shape shape;
  for (int64_t i = x.rank(); i < 4; ++i) shape.push_back(1);
  for (const int64_t extent : x.shape().extents()) shape.push_back(extent);
  return ops::Reshape(x, shape);
}

// Whether one equation can hold these operands.
bool IsOneEquation(const AttentionOperands& in) {
  if (!CheckTensors(in.query.aval(), in.key.aval(), in.value.aval()).ok()) return false;
  const Shape scores = ScoreShape(in.query.shape(), in.key.shape());
  const bool bias_fits = !in.bias.has_value() || Broadcasts(in.bias->shape(), scores);
  return bias_fits &&
         (!in.mask.has_value() || (in.mask->dtype() == DType::kBool && Broadcasts(in.mask->shape(), scores)));
}

// The first poisoned operand.
std::optional<Value> Poisoned(const AttentionOperands& in) {
  for (const Value* operand : {&in.query, &in.key, &in.value}) {
    if (!operand->status().ok()) return *operand;
  }
  for (const std::optional<Value>* operand : {&in.bias, &in.mask}) {
    if (operand->has_value() && !(*operand)->status().ok()) return **operand;
  }
  return std::nullopt;
}

}  // namespace

namespace ops {

Value AttentionBy(const AttentionOperands& operands, absl::FunctionRef<Value(const Value&)> weights,
                  const std::source_location& where) {
  const CallSite site(where);
  if (const std::optional<Value> poisoned = Poisoned(operands)) return *poisoned;
  const Value scores = Scores(operands);
  if (!scores.status().ok()) return scores;
  return SumsOfValues(Cast(weights(scores), operands.query.dtype()), operands.value);
}

Value Attention(const AttentionOperands& operands, const std::source_location& where) {
  const CallSite site(where);
  if (const std::optional<Value> poisoned = Poisoned(operands)) return *poisoned;
  if (!IsOneEquation(operands)) {
    return AttentionBy(
        operands, [](const Value& scores) { return Softmax(scores); }, where);
  }
  std::vector<Value> in = {operands.query, operands.key, operands.value};
  if (operands.bias.has_value()) {
    in.push_back(WithFourAxes(Cast(*operands.bias, ScoreDType(operands.query.dtype()))));
  }
  if (operands.mask.has_value()) in.push_back(WithFourAxes(*operands.mask));
  const AttentionFields fields{operands.bias.has_value(), operands.mask.has_value()};
  return BindOne(CompositeOp{std::make_shared<AttentionOp>(fields)}, in, where);
}

}  // namespace ops

namespace internal {

std::vector<InnerContraction> ContractionsOfAttention(absl::Span<const Aval> in) {
  const auto has_four_axes = [](const Aval& aval) { return aval.shape.rank() == 4; };
  if (in.size() < 3 || in.size() > 5 || !std::all_of(in.begin(), in.end(), has_four_axes)) return {};
  std::vector<int> weights_from = {0, 1};
  for (size_t i = 3; i < in.size(); ++i) weights_from.push_back(static_cast<int>(i));
  const Aval weights{in[0].dtype, ScoreShape(in[0].shape, in[1].shape)};
  return {{.scope = "qk", .lhs = in[0], .rhs = in[1], .lhs_from = {0}, .rhs_from = {1}},
          {.scope = "av", .lhs = weights, .rhs = in[2], .lhs_from = std::move(weights_from), .rhs_from = {2}}};
}

absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const AttentionFields& fields) {
  return std::make_shared<AttentionOp>(fields);
}

}  // namespace internal
}  // namespace aqt
