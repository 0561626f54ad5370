#include "aqt/quant/quantize_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/arith.h"
#include "aqt/quant/numerics.h"
#include "aqt/quant/numerics_rows.h"
#include "aqt/quant/row_ops.h"

namespace aqt::internal {
namespace {

bool HasPo2(const Calibration& calibration) {
  return std::visit([](const auto& c) { return c.po2_scale; }, calibration);
}

// In the dtype of x each step; the number of all scales decides whether XLA divides.
void ScalesFromBounds(const QuantizeSpec& spec, Arithmetic arithmetic, float* bounds, int64_t n) {
  // The bound of an 8-bit float is a bf16 scalar: f16 data is promoted to f32 by it.
  const bool widened = spec.x.dtype == DType::kF16 && std::holds_alternative<Fp8>(spec.numerics);
  const DType dtype = widened ? DType::kF32 : spec.x.dtype;
  const bool divide = arithmetic == Arithmetic::kIeee || spec.num_scales() == 1;
  const float quant_bound = HostConstant(dtype, QuantBound(spec.numerics));
  VisitFloat(dtype, [&]<class T>() {
    const float reciprocal = Reciprocal<T>(quant_bound);
    for (int64_t i = 0; i < n; ++i) {
      bounds[i] = divide ? Div<T>(bounds[i], quant_bound) : Mul<T>(bounds[i], reciprocal);
    }
  });
  if (!HasPo2(spec.calibration)) return;
  for (int64_t i = 0; i < n; ++i) bounds[i] = CeilToPo2(dtype, bounds[i], arithmetic == Arithmetic::kIeee);
}

void AbsMaxToBounds(const AbsMax& calibration, DType dtype, float* absmax, int64_t n) {
  for (int64_t i = 0; i < n; ++i) absmax[i] = absmax[i] == 0 ? 1.0f : absmax[i];
  const double clipping_scale = calibration.clipping_scale.value_or(0);
  if (clipping_scale == 0) return;
  const float factor = HostConstant(dtype, clipping_scale);
  MulRow(dtype, &factor, 0, absmax, n);
}

void ConstantBounds(const Constant& calibration, const QuantizeSpec& spec, float* bounds) {
  const int64_t n = spec.num_scales();
  if (const auto* scalar = std::get_if<double>(&calibration.bound)) {
    std::fill(bounds, bounds + n, HostConstant(spec.x.dtype, *scalar));
    return;
  }
  const ArrayRef view = BroadcastTo(std::get<ConstantArray>(calibration.bound).array, spec.scale_shape);
  const StridesSpan strides[] = {view.strides};
  ForEachPiece(spec.scale_shape, strides, [&](const int64_t* offsets, int64_t count, int64_t linear) {
    LoadRow(view.dtype, view.data, offsets[0], InnerStride(view.strides), count, bounds + linear);
    RoundRow(spec.x.dtype, bounds + linear, count);
  });
}

bool BroadcastsTo(const Shape& shape, const Shape& target) {
  if (shape.rank() != target.rank()) return false;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] != 1 && shape[axis] != target[axis]) return false;
  }
  return true;
}

absl::Status CheckArray(const char* field, const ConstantValue& value, const Shape& target) {
  const auto* constant = std::get_if<ConstantArray>(&value);
  if (constant == nullptr) return absl::OkStatus();
  if (!IsArithmeticFloat(constant->array.dtype()) || !BroadcastsTo(constant->array.shape(), target)) {
    return absl::InvalidArgumentError(absl::StrCat("Constant: ", field, " is ", constant->array.aval().ToString(),
                                                   ", expected f32, bf16 or f16 that broadcasts to ", target.ToString()));
  }
  return absl::OkStatus();
}

// The bias in the dtype of x: one element for a scalar.
absl::StatusOr<Array> MakeBias(const ConstantValue& value, const Aval& x) {
  AQT_RETURN_IF_ERROR(CheckArray("bias", value, x.shape));
  if (const auto* constant = std::get_if<ConstantArray>(&value)) return Cast(constant->array, x.dtype);
  Shape ones = x.shape;
  for (int64_t axis = 0; axis < ones.rank(); ++axis) ones[axis] = 1;
  const float bias = HostConstant(x.dtype, std::get<double>(value));
  return Cast(ArrayRef(&bias, ones), x.dtype);
}

absl::Status ValidateCalibration(const Calibration& calibration) {
  struct Visitor {
    absl::Status operator()(const AbsMax& c) const {
      if (!c.clipping_scale.has_value() || *c.clipping_scale >= 0) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("AbsMax: clipping_scale = ", *c.clipping_scale, ", expected >= 0"));
    }
    absl::Status operator()(const Constant& c) const {
      const auto* bound = std::get_if<double>(&c.bound);
      if (bound == nullptr || *bound > 0) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("Constant: bound = ", *bound, ", expected > 0"));
    }
    absl::Status operator()(const AbsMean&) const {
      return absl::UnimplementedError("AbsMean: this calibration is not available; AbsMax and Constant are");
    }
    absl::Status operator()(const SnrSearch&) const {
      return absl::UnimplementedError("SnrSearch: this calibration is not available; AbsMax and Constant are");
    }
  };
  return std::visit(Visitor(), calibration);
}

}  // namespace

absl::Status ValidateQuantizer(const Quantizer& quantizer) {
  AQT_RETURN_IF_ERROR(Validate(quantizer.numerics));
  if (quantizer.scale_dtype.has_value() && !IsArithmeticFloat(*quantizer.scale_dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("Quantizer: scale_dtype ", ToString(*quantizer.scale_dtype),
                                                   ", expected f32, bf16, f16 or none"));
  }
  if (quantizer.calibration.has_value()) AQT_RETURN_IF_ERROR(ValidateCalibration(*quantizer.calibration));
  if (IsQuantized(quantizer.numerics) && !quantizer.calibration.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("Quantizer: ", Describe(quantizer.numerics),
                                                   " needs a calibration, such as AbsMax"));
  }
  return absl::OkStatus();
}

absl::StatusOr<QuantizeSpec> MakeQuantizeSpec(const Quantizer& quantizer, const Aval& x,
                                              absl::Span<const int64_t> calibration_axes) {
  AQT_RETURN_IF_ERROR(ValidateQuantizer(quantizer));
  AQT_CHECK(IsQuantized(quantizer.numerics));
  if (!IsArithmeticFloat(x.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Quantizer: the tensor has dtype ", ToString(x.dtype), ", expected f32, bf16 or f16"));
  }
  QuantizeSpec spec;
  spec.numerics = quantizer.numerics;
  spec.calibration = *quantizer.calibration;
  spec.x = x;
  const SharedAxes& shared = quantizer.calib_shared_axes;
  if (shared.per_tensor) {
    for (int64_t axis = 0; axis < x.shape.rank(); ++axis) spec.shared_axes.push_back(axis);
  } else {
    absl::StatusOr<Axes> axes =
        NormalizeAxes(shared.axes.empty() ? calibration_axes : absl::MakeConstSpan(shared.axes), x.shape.rank());
    if (!axes.ok()) return Annotate(axes.status(), absl::StrCat("Quantizer: shared axes of ", x.ToString()));
    spec.shared_axes = *std::move(axes);
  }
  spec.scale_shape = x.shape;
  for (const int64_t axis : spec.shared_axes) spec.scale_shape[axis] = 1;
  spec.scale_dtype = quantizer.scale_dtype.value_or(x.dtype);
  spec.scaled_dtype = Promote(x.dtype, spec.scale_dtype);
  if (const auto* constant = std::get_if<Constant>(&spec.calibration)) {
    AQT_RETURN_IF_ERROR(CheckArray("bound", constant->bound, spec.scale_shape));
    if (constant->bias.has_value()) {
      AQT_ASSIGN_OR_RETURN(spec.bias, MakeBias(*constant->bias, x));
    }
  }
  spec.q_dtype = QvalueDType(spec.numerics, spec.scaled_dtype);
  AQT_ASSIGN_OR_RETURN(spec.draws_shape, DrawsShape(spec.numerics, x.shape, spec.scaled_dtype));
  return spec;
}

void ScalesFromAbsMax(const QuantizeSpec& spec, Arithmetic arithmetic, float* absmax, int64_t n) {
  AbsMaxToBounds(std::get<AbsMax>(spec.calibration), spec.x.dtype, absmax, n);
  ScalesFromBounds(spec, arithmetic, absmax, n);
  RoundRow(spec.scale_dtype, absmax, n);
}

void ComputeScale(const QuantizeSpec& spec, const ArrayRef& x, Arithmetic arithmetic, float* work, void* scale) {
  const int64_t n = spec.num_scales();
  if (std::holds_alternative<AbsMax>(spec.calibration)) {
    AbsMaxInto(x, spec.scale_shape, work);
    ScalesFromAbsMax(spec, arithmetic, work, n);
  } else {
    ConstantBounds(std::get<Constant>(spec.calibration), spec, work);
    ScalesFromBounds(spec, arithmetic, work, n);
  }
  StoreRow(spec.scale_dtype, work, n, scale, 0, 1);
}

}  // namespace aqt::internal
