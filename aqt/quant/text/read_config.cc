#include "aqt/quant/text/read_config.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/numerics/validate.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/quant/text/calibration_message.h"
#include "aqt/quant/text/numerics_message.h"
#include "google/protobuf/repeated_field.h"
#include "google/protobuf/repeated_ptr_field.h"

namespace aqt::internal {
namespace {

using google::protobuf::RepeatedField;

// A default that depends on other fields; configs/quant.proto states it.
std::optional<DType> DefaultAccumulator(const DotGeneralRawConfig& raw) {
  const auto is_integer = [](const TensorConfig& tensor) {
    const std::optional<DType> dtype = ProductDType(tensor);
    return dtype == DType::kS4 || dtype == DType::kS8;
  };
  const auto is_fp8 = [](const TensorConfig& tensor) { return std::holds_alternative<Fp8>(tensor.quantizer.numerics); };
  if (is_integer(raw.lhs) && is_integer(raw.rhs)) return DType::kS32;
  if (is_fp8(raw.lhs) || is_fp8(raw.rhs)) return DType::kF32;
  return std::nullopt;
}

Axes ReadAxes(const RepeatedField<int64_t>& axes) { return Axes(axes.begin(), axes.end()); }

}  // namespace

// ---- one tensor

absl::StatusOr<Quantizer> Read(const config::Quantizer& m, const ConfigPath& path) {
  Quantizer q;
  AQT_ASSIGN_OR_RETURN(q.numerics, ReadNumerics(m, path));
  AQT_ASSIGN_OR_RETURN(q.calibration, ReadCalibration(m, path));
  q.calib_shared_axes = {.per_tensor = m.calib_shared_axes().per_tensor(),
                         .axes = ReadAxes(m.calib_shared_axes().axes())};
  AQT_RETURN_IF_ERROR(path.In(m, "calib_shared_axes").At(ValidateSharedAxes(q.calib_shared_axes)));
  if (m.has_scale_stop_grad()) q.scale_stop_grad = m.scale_stop_grad();
  if (m.has_scale_dtype()) {
    AQT_ASSIGN_OR_RETURN(q.scale_dtype, ReadDType(m.scale_dtype(), path.In(m, "scale_dtype")));
  }
  const absl::Status status = Validate(q);
  // The plan reports configurations that are legal but not implemented.
  if (absl::IsInvalidArgument(status)) return path.At(status);
  return q;
}

namespace {

absl::StatusOr<TensorConfig> Read(const config::Tensor& m, const ConfigPath& path) {
  TensorConfig tensor;
  AQT_ASSIGN_OR_RETURN(tensor.quantizer, Read(m.quantizer(), path.In(m, "quantizer")));
  tensor.use_fwd_quant = m.use_fwd_quant();
  switch (m.dequant_mode()) {
    case config::DEQUANT_MODE_THIS_INPUT: tensor.dequant_mode = DequantMode::kThisInput; break;
    case config::DEQUANT_MODE_OTHER_INPUT: tensor.dequant_mode = DequantMode::kOtherInput; break;
    default: break;
  }
  if (m.calibration_mode() == config::CALIBRATION_MODE_REMAINING_AXIS) {
    tensor.calibration_mode = CalibrationMode::kRemainingAxis;
  }
  const ConfigPath at = m.has_dequant_mode() ? path.In(m, "dequant_mode") : path.In(m, "calibration_mode");
  AQT_RETURN_IF_ERROR(at.At(ValidateTensor(tensor)));
  return tensor;
}

// ---- one contraction

absl::StatusOr<DotGeneralRawConfig> Read(const config::DotGeneralRaw& m, const ConfigPath& path,
                                         AccumulatorCheck check) {
  DotGeneralRawConfig raw;
  AQT_ASSIGN_OR_RETURN(raw.lhs, Read(m.lhs(), path.In(m, "lhs")));
  AQT_ASSIGN_OR_RETURN(raw.rhs, Read(m.rhs(), path.In(m, "rhs")));
  raw.dg_accumulator_dtype = DefaultAccumulator(raw);
  if (m.has_dg_accumulator_dtype()) {
    const ConfigPath at = path.In(m, "dg_accumulator_dtype");
    AQT_ASSIGN_OR_RETURN(raw.dg_accumulator_dtype, ReadDType(m.dg_accumulator_dtype(), at));
    if (check == AccumulatorCheck::kHere) AQT_RETURN_IF_ERROR(at.At(ValidateAccumulator(raw)));
  }
  if (m.has_local_aqt()) {
    LocalAqt& local = raw.local_aqt.emplace();
    const config::LocalAqt& message = m.local_aqt();
    if (message.has_contraction_axis_shard_count()) {
      local.contraction_axis_shard_count = message.contraction_axis_shard_count();
    }
    if (message.has_contraction_axis_shard_size()) {
      local.contraction_axis_shard_size = message.contraction_axis_shard_size();
    }
    local.tile_largest_shape = message.tile_largest_shape();
  }
  if (m.has_lhs_mid_alpha()) raw.lhs_mid_alpha = m.lhs_mid_alpha();
  if (m.has_rhs_mid_alpha()) raw.rhs_mid_alpha = m.rhs_mid_alpha();
  const ConfigPath alpha = path.In(m, m.has_lhs_mid_alpha() ? "lhs_mid_alpha" : "rhs_mid_alpha");
  AQT_RETURN_IF_ERROR(alpha.At(ValidateMidAlphas(raw)));
  if (m.has_hadamard()) {
    Hadamard& hadamard = raw.hadamard.emplace();
    if (m.hadamard().has_block()) hadamard.block = m.hadamard().block();
  }
  AQT_RETURN_IF_ERROR(path.In(m, "hadamard").At(ValidateHadamard(raw)));
  raw.allow_dummy_gradient_into_qtensor = m.allow_dummy_gradient_into_qtensor();
  return raw;
}

absl::StatusOr<std::vector<AxisTiling>> Read(const google::protobuf::RepeatedPtrField<config::AxisTiling>& list,
                                             const ConfigPath& path) {
  std::vector<AxisTiling> tilings;
  for (const config::AxisTiling& m : list) {
    if (!m.has_axis()) return path.Error("an axis to tile needs a number: axis: -1");
    if (!m.has_tile_count() && !m.has_tile_size()) {
      return path.Error(absl::StrCat("axis ", m.axis(), " needs a tile_count or a tile_size"));
    }
    AxisTiling& tiling = tilings.emplace_back(AxisTiling{.axis = m.axis()});
    if (m.has_tile_count()) tiling.tile_count = m.tile_count();
    if (m.has_tile_size()) tiling.tile_size = m.tile_size();
  }
  return tilings;
}

absl::StatusOr<TensorTiling> Read(const config::TensorTiling& m, const ConfigPath& path) {
  TensorTiling tiling;
  AQT_ASSIGN_OR_RETURN(tiling.contraction_axes, Read(m.contraction_axes(), path.In(m, "contraction_axes")));
  AQT_ASSIGN_OR_RETURN(tiling.remaining_axes, Read(m.remaining_axes(), path.In(m, "remaining_axes")));
  return tiling;
}

absl::Status CheckLocalAqt(const DotGeneralRawConfig& raw, const config::DotGeneralRaw& m, const ConfigPath& path) {
  if (!raw.local_aqt.has_value()) return absl::OkStatus();
  AQT_RETURN_IF_ERROR(path.In(m, "local_aqt").At(ValidateLocalAqt(*raw.local_aqt)));
  const auto quantizer = [](const config::Tensor& tensor, const ConfigPath& at) { return at.In(tensor, "quantizer"); };
  AQT_RETURN_IF_ERROR(quantizer(m.lhs(), path.In(m, "lhs")).At(ValidateTensorOfLocalAqt(raw.lhs)));
  return quantizer(m.rhs(), path.In(m, "rhs")).At(ValidateTensorOfLocalAqt(raw.rhs));
}

// Checks for incompatible modes of fwd, and for use_fwd_quant and local_aqt where they have no meaning.
absl::Status CheckPlaces(const DotGeneralConfig& dg, const config::DotGeneral& m, const ConfigPath& path) {
  const ConfigPath fwd = path.In(m, "fwd"), dlhs = path.In(m, "dlhs"), drhs = path.In(m, "drhs");
  const auto use = [](const config::Tensor& tensor, const ConfigPath& at) { return at.In(tensor, "use_fwd_quant"); };
  const auto none = [&](bool set, const config::Tensor& tensor, const ConfigPath& at) {
    if (!set) return absl::OkStatus();
    return use(tensor, at)
        .Error("only the rhs of dlhs and of drhs, the saved operands, can use the forward quantization");
  };
  const auto modes = [](const TensorConfig& tensor, const config::Tensor& tm, const ConfigPath& at) {
    return at.In(tm, tm.has_dequant_mode() ? "dequant_mode" : "calibration_mode").At(ValidateForwardModes(tensor));
  };
  AQT_RETURN_IF_ERROR(modes(dg.fwd.lhs, m.fwd().lhs(), fwd.In(m.fwd(), "lhs")));
  AQT_RETURN_IF_ERROR(modes(dg.fwd.rhs, m.fwd().rhs(), fwd.In(m.fwd(), "rhs")));
  AQT_RETURN_IF_ERROR(none(dg.fwd.lhs.use_fwd_quant, m.fwd().lhs(), fwd.In(m.fwd(), "lhs")));
  AQT_RETURN_IF_ERROR(none(dg.fwd.rhs.use_fwd_quant, m.fwd().rhs(), fwd.In(m.fwd(), "rhs")));
  AQT_RETURN_IF_ERROR(none(dg.dlhs.lhs.use_fwd_quant, m.dlhs().lhs(), dlhs.In(m.dlhs(), "lhs")));
  AQT_RETURN_IF_ERROR(none(dg.drhs.lhs.use_fwd_quant, m.drhs().lhs(), drhs.In(m.drhs(), "lhs")));
  if (dg.dlhs.rhs.use_fwd_quant) {
    AQT_RETURN_IF_ERROR(use(m.dlhs().rhs(), dlhs.In(m.dlhs(), "rhs")).At(ValidateUseFwdQuant(dg.fwd, Side::kRhs)));
  }
  if (dg.drhs.rhs.use_fwd_quant) {
    AQT_RETURN_IF_ERROR(use(m.drhs().rhs(), drhs.In(m.drhs(), "rhs")).At(ValidateUseFwdQuant(dg.fwd, Side::kLhs)));
  }
  if (dg.fwd.local_aqt.has_value()) {
    return fwd.In(m.fwd(), "local_aqt").Error("local_aqt is only supported in dlhs and drhs");
  }
  AQT_RETURN_IF_ERROR(CheckLocalAqt(dg.dlhs, m.dlhs(), dlhs));
  return CheckLocalAqt(dg.drhs, m.drhs(), drhs);
}

}  // namespace

absl::StatusOr<DotGeneralConfig> Read(const config::DotGeneral& m, const ConfigPath& path, AccumulatorCheck check) {
  DotGeneralConfig dg;
  AQT_ASSIGN_OR_RETURN(dg.fwd, Read(m.fwd(), path.In(m, "fwd"), check));
  AQT_ASSIGN_OR_RETURN(dg.dlhs, Read(m.dlhs(), path.In(m, "dlhs"), check));
  AQT_ASSIGN_OR_RETURN(dg.drhs, Read(m.drhs(), path.In(m, "drhs"), check));
  AQT_RETURN_IF_ERROR(CheckPlaces(dg, m, path));
  if (m.has_tiling()) {
    const ConfigPath tiling = path.In(m, "tiling");
    dg.tiling.emplace();
    AQT_ASSIGN_OR_RETURN(dg.tiling->lhs, Read(m.tiling().lhs(), tiling.In(m.tiling(), "lhs")));
    AQT_ASSIGN_OR_RETURN(dg.tiling->rhs, Read(m.tiling().rhs(), tiling.In(m.tiling(), "rhs")));
  }
  return dg;
}

}  // namespace aqt::internal
