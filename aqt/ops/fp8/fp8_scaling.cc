#include "aqt/ops/fp8/fp8_scaling.h"

#include <cmath>
#include <cstdint>
#include <limits>
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
#include "aqt/core/array_ops.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/fp8/fp8_arrays.h"
#include "aqt/ops/fp8/fp8_scaling_fields.h"
#include "aqt/ops/output_places.h"

namespace aqt {
namespace {

absl::Status ExpectOperands(size_t expected, absl::Span<const Aval> in) {
  if (in.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("takes ", expected, " operands, got ", in.size()));
}

// (x, scale) -> codes, or directly the dequantized codes.
class QuantizeOp : public CompositeOf<internal::Fp8QuantizeFields> {
 public:
  using CompositeOf::CompositeOf;

  std::string Name() const override { return fields_.dequantizes ? "fp8_quantize_dequantize" : "fp8_quantize"; }
  std::string Attributes() const override {
    return absl::StrCat(ToString(fields_.dtype), fields_.compute_dtype.has_value() ? ", compute=" : "",
                        fields_.compute_dtype.has_value() ? ToString(*fields_.compute_dtype) : "");
  }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    AQT_RETURN_IF_ERROR(ExpectOperands(2, in));
    AQT_RETURN_IF_ERROR(internal::CheckFp8DType(fields_.dtype));
    AQT_RETURN_IF_ERROR(internal::CheckFp8Computes("the operand", in[0], fields_.compute_dtype));
    AQT_RETURN_IF_ERROR(internal::CheckFp8Scale("the scale", in[1]));
    return std::vector<Aval>{{fields_.dequantizes ? in[0].dtype : fields_.dtype, in[0].shape}};
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    if (!fields_.dequantizes) return {internal::QuantizeToFp8(in[0], in[1], fields_.dtype, fields_.compute_dtype)};
    return {
        ops::Fp8Dequantize(ops::Fp8Quantize(in[0], in[1], fields_.dtype, fields_.compute_dtype), in[1], in[0].dtype())};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return fields_.dequantizes ? CompositeBase::Eval(in, needed) : EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    if (fields_.dequantizes) return CompositeBase::MakeKernel(in, needed);
    const auto run = [x = ArrayRef(in[0].aval.dtype, in[0].aval.shape, nullptr), dtype = fields_.dtype,
                      compute_dtype = fields_.compute_dtype](const KernelCall& call) {
      ArrayRef own = x;
      own.data = call.in[0];
      return internal::QuantizeToFp8(own, *static_cast<const float*>(call.in[1]), dtype, compute_dtype,
                                     /*with_amax=*/false, call.out[0], call.executor)
          .status();
    };
    return OpKernel{.run = run};
  }

  bool has_gradient() const override { return true; }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value>,
                                                 absl::Span<const Value> cotangents) const override {
    if (!fields_.dequantizes) return {std::nullopt, std::nullopt};
    return {cotangents[0], std::nullopt};
  }
};

// (x, scale, history) -> scale, history.
class UpdateOp : public CompositeOf<Fp8ScaleRule> {
 public:
  using CompositeOf::CompositeOf;

  std::string Name() const override { return "fp8_update"; }
  std::string Attributes() const override {
    return absl::StrCat(ToString(fields_.dtype), fields_.margin == 0 ? "" : absl::StrCat(", margin=", fields_.margin),
                        internal::Fp8CompatText(fields_.compat));
  }
  int num_outputs() const override { return 2; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    AQT_RETURN_IF_ERROR(ExpectOperands(3, in));
    AQT_RETURN_IF_ERROR(internal::CheckFp8DType(fields_.dtype));
    AQT_RETURN_IF_ERROR(internal::CheckFp8Margin(fields_.margin));
    AQT_RETURN_IF_ERROR(internal::CheckFp8Computes("the operand", in[0], std::nullopt));
    AQT_RETURN_IF_ERROR(internal::CheckFp8Scale("the scale", in[1]));
    AQT_RETURN_IF_ERROR(internal::CheckFp8History("the history", in[2]));
    return std::vector<Aval>{in[1], in[2]};
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    const Value &scale = in[1], &old = in[2];
    const int64_t length = old.dim(0);
    std::vector<Value> parts = {ops::Fp8Amax(in[0])};
    if (length > 2) parts.push_back(ops::Slice(old, {2}, {length}));
    if (length > 1) parts.push_back(ops::Slice(old, {0}, {1}));
    const Value history = ops::Concatenate(parts, 0);
    const Value next =
        ops::Fp8ComputeScale(ops::ReduceMax(history), scale, MaxFinite(fields_.dtype), fields_.margin, fields_.compat);
    return {ops::Reshape(next, scale.shape()), history};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    const internal::OutputPlaces places({in[1].aval, in[2].aval}, needed, /*scratch_bytes=*/0);
    const auto run = [places, x = ArrayRef(in[0].aval.dtype, in[0].aval.shape, nullptr), rule = fields_,
                      length = in[2].aval.shape[0]](const KernelCall& call) {
      ArrayRef own = x;
      own.data = call.in[0];
      const absl::Span<const float> history(static_cast<const float*>(call.in[2]), length);
      internal::UpdateFp8State(
          internal::Fp8AmaxOf(own, call.executor), {*static_cast<const float*>(call.in[1]), history}, rule,
          static_cast<float*>(places.memory(0, call)), static_cast<float*>(places.memory(1, call)));
      return absl::OkStatus();
    };
    return OpKernel{.run = run, .scratch_bytes = places.scratch_bytes()};
  }

  bool has_gradient() const override { return true; }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value>, absl::Span<const Value>) const override {
    return {std::nullopt, std::nullopt, std::nullopt};
  }
};

// The largest power of two <= v, for a positive v that is normal or infinite.
Value PowerOfTwoBelow(const Value& v) {
  // Rounds a quarter of v to the nearest power of two, because twice v may overflow.
  const Value quarter = v * 0.25;
  const Value is_large = ops::GreaterEqual(v, 1.0);
  const Value smaller = ops::Select(is_large, quarter, v);
  const Value nearest = ops::ReducePrecision(smaller, 8, 0);
  const Value below = ops::Select(ops::Greater(nearest, smaller), nearest * 0.5, nearest);
  return ops::Select(is_large, below * 4.0, below);
}

}  // namespace

namespace internal {

absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const Fp8QuantizeFields& fields) {
  AQT_RETURN_IF_ERROR(CheckFp8DType(fields.dtype));
  AQT_RETURN_IF_ERROR(CheckFp8ComputeDType(fields.compute_dtype));
  return std::make_shared<QuantizeOp>(fields);
}

absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const Fp8ScaleRule& rule) {
  AQT_RETURN_IF_ERROR(CheckFp8DType(rule.dtype));
  AQT_RETURN_IF_ERROR(CheckFp8Margin(rule.margin));
  return std::make_shared<UpdateOp>(rule);
}

}  // namespace internal

Fp8Compat Fp8Compat::Original() {
  return {.all_zero_amax_flips_scale = true, .nan_amax_flips_scale = true, .tiny_scale_is_zero = true};
}

namespace ops {

Value Fp8Quantize(const ValueOrNumber& x, const ValueOrNumber& scale, DType dtype, std::optional<DType> compute_dtype) {
  const auto op =
      std::make_shared<QuantizeOp>(internal::Fp8QuantizeFields{dtype, compute_dtype, /*dequantizes=*/false});
  return BindOne(CompositeOp{op}, {x.As(DType::kF32), scale.As(DType::kF32)}, x.where());
}

Value Fp8Dequantize(const ValueOrNumber& codes, const ValueOrNumber& scale, DType dtype) {
  const CallSite site(codes.where());
  return Cast(codes, dtype) * Cast(Reshape(scale.As(DType::kF32), {}), dtype);
}

Value Fp8QuantizeDequantize(const ValueOrNumber& x, const ValueOrNumber& scale, DType dtype,
                            std::optional<DType> compute_dtype) {
  const auto op = std::make_shared<QuantizeOp>(internal::Fp8QuantizeFields{dtype, compute_dtype, /*dequantizes=*/true});
  return BindOne(CompositeOp{op}, {x.As(DType::kF32), scale.As(DType::kF32)}, x.where());
}

Value Fp8Amax(const ValueOrNumber& x) {
  const CallSite site(x.where());
  // The largest number of an empty array is -inf.
  return Reshape(Max(Cast(ReduceMax(Abs(x)), DType::kF32), 0.0), {1});
}

Value Fp8ComputeScale(const ValueOrNumber& amax, const ValueOrNumber& previous, double fp8_max, int margin,
                      const Fp8Compat& compat) {
  const CallSite site(amax.where());
  const Value a = amax.As(DType::kF32), before = previous.As(DType::kF32);
  const auto refuse = [&](const absl::Status& status) {
    return Refuse(status, "fp8_compute_scale", {a, before}, amax.where());
  };
  if (!(fp8_max >= 1 && fp8_max < 0x1p126)) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("fp8_max = ", fp8_max, ", expected 1 or more, below 2^126")));
  }
  if (const absl::Status status = internal::CheckFp8Margin(margin); !status.ok()) return refuse(status);
  if (a.status().ok() && a.dtype() != DType::kF32) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("amax is ", a.aval().ToString(), ", expected f32")));
  }
  if (before.status().ok()) {
    const absl::Status status = internal::CheckFp8Scale("the previous scale", before.aval());
    if (!status.ok()) return refuse(status);
  }
  const Value kept = BroadcastTo(Reshape(before, {}), a.shape());
  const Value next = 1.0 / PowerOfTwoBelow(ValueOrNumber(fp8_max).As(DType::kF32) / a) * std::ldexp(1.0, margin);
  const Value in_range = compat.tiny_scale_is_zero
                             ? Select(Less(next, 0x1p-126), 0.0, Select(Greater(next, 0x1p126), double{INFINITY}, next))
                             : Clamp(0x1p-126, next, 0x1p126);
  const Value inverse = 1.0 / kept;
  const Value of_infinity = compat.nan_amax_flips_scale ? 1.0 / inverse : kept;
  const Value of_nan = compat.nan_amax_flips_scale ? inverse : kept;
  const Value of_zero = compat.all_zero_amax_flips_scale ? inverse : kept;
  const Value finite = Select(Less(a, 0x1p-126), of_zero, in_range);
  return Select(NotEqual(a, a), of_nan, Select(IsFinite(a), finite, of_infinity));
}

Fp8TensorState Fp8Update(const ValueOrNumber& x, const Fp8TensorState& state, const Fp8ScaleRule& rule) {
  const std::vector<Value> out = Bind(CompositeOp{std::make_shared<UpdateOp>(rule)},
                                      {x.As(DType::kF32), state.scale, state.amax_history}, x.where());
  return {out[0], out[1]};
}

}  // namespace ops
}  // namespace aqt
