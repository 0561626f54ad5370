#include "aqt/quant/tensor/quantize_spec.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/numerics/validate.h"
#include "aqt/quant/tensor/bounds.h"

namespace aqt::internal {
namespace {

bool BroadcastsTo(const Shape& shape, const Shape& target) {
  if (shape.rank() != target.rank()) return false;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] != 1 && shape[axis] != target[axis]) return false;
  }
  return true;
}

// An array of rank 1 or more; null for a number and for an array of rank 0, which is one number.
const Array* ArrayOf(const ConstantValue& value) {
  const auto* constant = std::get_if<ConstantArray>(&value);
  return constant == nullptr || constant->array.shape().rank() == 0 ? nullptr : &constant->array;
}

absl::Status CheckArray(const char* field, const ConstantValue& value, const Shape& target) {
  const auto* constant = std::get_if<ConstantArray>(&value);
  if (constant == nullptr) return absl::OkStatus();
  const bool fits = ArrayOf(value) == nullptr || BroadcastsTo(constant->array.shape(), target);
  if (!IsArithmeticFloat(constant->array.dtype()) || !fits) {
    return absl::InvalidArgumentError(absl::StrCat("Constant: ", field, " is ", constant->array.aval().ToString(),
                                                   ", expected f32, bf16 or f16 that broadcasts to ",
                                                   target.ToString()));
  }
  return absl::OkStatus();
}

// An array has the dtype of the scale; a number becomes one element in the dtype of x.
Array MakeBias(const ConstantValue& value, const Aval& x, DType scale_dtype) {
  if (const Array* array = ArrayOf(value)) return Cast(*array, scale_dtype);
  Shape ones = x.shape;
  for (int64_t axis = 0; axis < ones.rank(); ++axis) ones[axis] = 1;
  const auto* constant = std::get_if<ConstantArray>(&value);
  const double number =
      constant == nullptr ? std::get<double>(value) : Cast(constant->array, DType::kF32).View<float>()[0];
  const float bias = HostConstant(x.dtype, number);
  return Cast(ArrayRef(&bias, ones), x.dtype);
}

// The shape, the dtype of the bounds, and the bias of a Constant calibration.
absl::Status ResolveConstant(const Constant& constant, QuantizeSpec& spec) {
  AQT_RETURN_IF_ERROR(CheckArray("bound", constant.bound, spec.x.shape));
  if (const auto* bound = std::get_if<ConstantArray>(&constant.bound)) {
    const DType dtype = bound->array.dtype();
    const bool has_axes = ArrayOf(constant.bound) != nullptr;
    spec.bound_dtype = has_axes ? dtype : Promote(spec.x.dtype, dtype);
    if (has_axes) spec.scale_shape = bound->array.shape();
  }
  if (!constant.bias.has_value()) return absl::OkStatus();
  AQT_RETURN_IF_ERROR(CheckArray("bias", *constant.bias, spec.x.shape));
  spec.bias = MakeBias(*constant.bias, spec.x, spec.scale_dtype);
  spec.bias_shape = ArrayOf(*constant.bias) != nullptr ? spec.bias->shape() : spec.x.shape;
  return absl::OkStatus();
}

absl::Status ValidateCalibration(const Calibration& calibration) {
  return HasState(calibration) ? CheckStatisticFields(calibration) : CheckBoundFields(calibration);
}

}  // namespace

absl::Status ValidateQuantizer(const Quantizer& quantizer) {
  AQT_RETURN_IF_ERROR(Validate(quantizer.numerics));
  if (quantizer.scale_dtype.has_value() && !IsArithmeticFloat(*quantizer.scale_dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Quantizer: scale_dtype ", ToString(*quantizer.scale_dtype), ", expected f32, bf16, f16 or none"));
  }
  AQT_RETURN_IF_ERROR(ValidateSharedAxes(quantizer.calib_shared_axes));
  if (quantizer.calibration.has_value()) AQT_RETURN_IF_ERROR(ValidateCalibration(*quantizer.calibration));
  if (quantizer.calibration.has_value() && std::holds_alternative<DelayedScaling>(*quantizer.calibration) &&
      !quantizer.calib_shared_axes.axes.empty()) {
    return absl::InvalidArgumentError(
        "Quantizer: DelayedScaling has one scale for the whole tensor; leave the axes of calib_shared_axes out");
  }
  if (IsQuantized(quantizer.numerics) && !quantizer.calibration.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Quantizer: ", Describe(quantizer.numerics), " needs a calibration, such as AbsMax"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Axes> SharedAxesOf(const Quantizer& quantizer, absl::Span<const int64_t> calibration_axes,
                                  int64_t rank) {
  const SharedAxes& shared = quantizer.calib_shared_axes;
  if (shared.per_tensor || std::holds_alternative<DelayedScaling>(*quantizer.calibration)) {
    Axes all;
    for (int64_t axis = 0; axis < rank; ++axis) all.push_back(axis);
    return all;
  }
  return NormalizeAxes(shared.axes.empty() ? calibration_axes : absl::MakeConstSpan(shared.axes), rank);
}

namespace {

// An absurdly large statistic is an error here rather than a failed allocation.
constexpr int64_t kMaxStatisticBytes = int64_t{1} << 28;

absl::Status CheckStatisticBytes(const QuantizeSpec& spec) {
  for (const Statistic& statistic : spec.statistics) {
    if (statistic.aval.num_bytes() <= kMaxStatisticBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "Quantizer: the statistic ", statistic.name, " of ", spec.x.ToString(), " would be ", statistic.aval.ToString(),
        ", more than ", kMaxStatisticBytes, " bytes; share scales along more axes"));
  }
  return absl::OkStatus();
}

}  // namespace

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
  absl::StatusOr<Axes> axes = SharedAxesOf(quantizer, calibration_axes, x.shape.rank());
  if (!axes.ok()) return Annotate(axes.status(), absl::StrCat("Quantizer: shared axes of ", x.ToString()));
  spec.shared_axes = *std::move(axes);
  spec.scale_shape = x.shape;
  for (const int64_t axis : spec.shared_axes) spec.scale_shape[axis] = 1;
  spec.scale_dtype = quantizer.scale_dtype.value_or(x.dtype);
  spec.scaled_dtype = Promote(x.dtype, spec.scale_dtype);
  spec.bound_dtype = BoundDType(spec.calibration, x.dtype);
  if (const auto* constant = std::get_if<Constant>(&spec.calibration)) {
    AQT_RETURN_IF_ERROR(ResolveConstant(*constant, spec));
  }
  spec.statistics = StatisticsOf(spec.calibration, x, spec.scale_shape);
  AQT_RETURN_IF_ERROR(CheckStatisticBytes(spec));
  spec.q_dtype = QvalueDType(spec.numerics, spec.scaled_dtype);
  AQT_ASSIGN_OR_RETURN(spec.draws_shape, DrawsShape(spec.numerics, x.shape, spec.scaled_dtype));
  return spec;
}

absl::Status ValidateCompat(const QuantizeSpec& spec, const Compat& compat) {
  const auto* integer = std::get_if<IntSymmetric>(&spec.numerics);
  const bool clips_at_bound = compat.clip_gradient_at_bound && integer != nullptr && integer->clip_gradient;
  if (compat.ChangesQuantization() && std::holds_alternative<SnrSearch>(spec.calibration)) {
    return absl::UnimplementedError(
        "SnrSearch rates candidates as AQT quantizes; leave out the fields of Compat that Qwix has, or use AbsMax");
  }
  if (clips_at_bound && spec.has_state()) {
    return absl::UnimplementedError(
        absl::StrCat("clip_gradient_at_bound needs a calibration without state, such as AbsMax; this one is ",
                     NameOf(spec.calibration), "; leave out clip_gradient or clip_gradient_at_bound"));
  }
  return absl::OkStatus();
}

int64_t QuantizeSpec::num_work_doubles() const {
  const int64_t n = num_scales();
  return DoublesForFloats(n) + (has_state() ? UpdateWorkDoubles(calibration, n) : BoundsWorkDoubles(*this));
}

void ComputeScale(const QuantizeSpec& spec, const ArrayRef& x, const Semantics& semantics,
                  const std::optional<TensorDraws>& draws, double* work, void* scale) {
  const int64_t n = spec.num_scales();
  float* bounds = reinterpret_cast<float*>(work);
  ComputeBounds(spec, x, semantics, draws, work + DoublesForFloats(n), bounds);
  ScalesFromBounds(spec, spec.bound_dtype, semantics, bounds, n);
  StoreRow(spec.scale_dtype, bounds, n, scale, 0, 1);
}

void BoundMaskInto(const QuantizeSpec& spec, const ArrayRef& calibrated, const ArrayRef& x, const Semantics& semantics,
                   double* work, int8_t* mask) {
  const int64_t n = spec.num_scales();
  float* bounds = reinterpret_cast<float*>(work);
  ComputeBounds(spec, calibrated, semantics, /*draws=*/std::nullopt, work + DoublesForFloats(n), bounds);
  FlushRow(spec.bound_dtype, bounds, n);
  const Strides groups = BroadcastStrides(spec.scale_shape, DenseStrides(spec.scale_shape), x.shape);
  const StridesSpan strides[] = {x.strides, groups};
  std::array<float, kPiece> piece;
  ForEachPiece(x.shape, strides, [&](const int64_t* offsets, int64_t count, int64_t linear) {
    LoadRow(x.dtype, x.data, offsets[0], InnerStride(x.strides), count, piece.data());
    FlushRow(x.dtype, piece.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      mask[linear + i] = std::fabs(piece[i]) <= bounds[offsets[1] + i * InnerStride(groups)] ? 1 : 0;
    }
  });
}

void ScaleFromState(const QuantizeSpec& spec, const Semantics& semantics, const void* const* statistics, double* work,
                    void* scale) {
  const int64_t n = spec.num_scales();
  float* bounds = reinterpret_cast<float*>(work);
  BoundsOf(spec.calibration, spec.x.dtype, semantics.arithmetic, statistics, n, bounds);
  ScalesFromBounds(spec, spec.bound_dtype, semantics, bounds, n);
  StoreRow(spec.scale_dtype, bounds, n, scale, 0, 1);
}

void ComputeScaleWithState(const QuantizeSpec& spec, const ArrayRef& x, QuantMode mode, const Semantics& semantics,
                           const StatisticData& data, double* work, void* scale) {
  const bool updates = UpdatesIn(mode, spec.calibration), before = ReadsBeforeUpdate(spec.calibration);
  if (!updates || before) ScaleFromState(spec, semantics, data.old, work, scale);
  if (!updates) return;
  UpdateStatistics(spec.calibration, x, spec.scale_shape, data, work);
  if (!before) ScaleFromState(spec, semantics, data.updated, work, scale);
}

absl::Status CheckSeen(const QuantizeSpec& spec, QuantMode mode, const Compat& compat, const void* const* statistics) {
  // Without elements there is nothing to scale.
  if (compat.read_unseen_calibration || UpdatesIn(mode, spec.calibration) || spec.x.shape.num_elements() == 0) {
    return absl::OkStatus();
  }
  if (!IsUnseen(spec.statistics, statistics)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      NameOf(spec.calibration), " has seen no calibration batch, so in ", ToString(mode),
      " there is no scale to read; run some batches in QUANT_MODE_CALIBRATE first and pass the resulting state"));
}

}  // namespace aqt::internal
