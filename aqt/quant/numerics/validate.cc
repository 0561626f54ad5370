#include "aqt/quant/numerics/validate.h"

#include <cmath>
#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/kernels/quantize/hadamard.h"
#include "aqt/quant/numerics/numerics.h"

namespace aqt {
namespace {

bool HasBias(const TensorConfig& tensor) {
  if (!IsQuantized(tensor.quantizer.numerics) || !tensor.quantizer.calibration.has_value()) return false;
  const auto* constant = std::get_if<Constant>(&*tensor.quantizer.calibration);
  return constant != nullptr && constant->bias.has_value();
}

}  // namespace

absl::Status ValidateSharedAxes(const SharedAxes& shared) {
  if (!shared.per_tensor || shared.axes.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("calib_shared_axes: per_tensor and axes exclude each other");
}

absl::Status ValidateForwardModes(const TensorConfig& tensor) {
  const bool contracting = tensor.calibration_mode == CalibrationMode::kContractingAxis;
  if (tensor.dequant_mode == DequantMode::kOutput && !contracting) {
    return absl::InvalidArgumentError(
        "DEQUANT_MODE_OUTPUT with CALIBRATION_MODE_REMAINING_AXIS: a scale that varies along a contracting axis cannot "
        "be applied to the product; use CALIBRATION_MODE_CONTRACTING_AXIS, or DEQUANT_MODE_THIS_INPUT");
  }
  if (tensor.dequant_mode == DequantMode::kOtherInput && contracting) {
    return absl::InvalidArgumentError(
        "DEQUANT_MODE_OTHER_INPUT with CALIBRATION_MODE_CONTRACTING_AXIS: a scale that varies along a remaining axis "
        "cannot be applied to the other operand; use CALIBRATION_MODE_REMAINING_AXIS");
  }
  return absl::OkStatus();
}

absl::Status ValidateTensor(const TensorConfig& tensor) {
  if (HasBias(tensor) && tensor.dequant_mode != DequantMode::kThisInput) {
    return absl::InvalidArgumentError(
        absl::StrCat("a calibration with a bias needs DEQUANT_MODE_THIS_INPUT, not ", ToString(tensor.dequant_mode)));
  }
  return absl::OkStatus();
}

std::optional<DType> ProductDType(const TensorConfig& tensor) {
  if (tensor.dequant_mode == DequantMode::kThisInput) return std::nullopt;
  const DType dtype = QvalueDType(tensor.quantizer.numerics, /*scaled=*/DType::kF32);
  return dtype == DType::kF32 ? std::nullopt : std::optional(dtype);
}

absl::Status ValidateAccumulator(const DotGeneralRawConfig& raw) {
  if (!raw.dg_accumulator_dtype.has_value()) return absl::OkStatus();
  const DType accumulator = *raw.dg_accumulator_dtype;
  if (accumulator == DType::kF32 || accumulator == DType::kBF16 || accumulator == DType::kF16) return absl::OkStatus();
  if (accumulator != DType::kS32) {
    return absl::InvalidArgumentError(
        absl::StrCat("accumulator dtype ", ToString(accumulator), ", expected s32, f32, bf16, f16 or none"));
  }
  for (const TensorConfig* tensor : {&raw.lhs, &raw.rhs}) {
    const std::optional<DType> dtype = ProductDType(*tensor);
    if (dtype == DType::kS4 || dtype == DType::kS8) continue;
    return absl::InvalidArgumentError(absl::StrCat("the accumulator is s32, but ", tensor == &raw.lhs ? "lhs" : "rhs",
                                                   " enters the product as ",
                                                   dtype.has_value() ? ToString(*dtype) : "a float",
                                                   "; s32 needs s4 or s8 on both sides (so no "
                                                   "DEQUANT_MODE_THIS_INPUT): leave dg_accumulator_dtype out"));
  }
  return absl::OkStatus();
}

absl::Status ValidateMidAlphas(const DotGeneralRawConfig& raw) {
  if (!raw.lhs_mid_alpha.has_value() && !raw.rhs_mid_alpha.has_value()) return absl::OkStatus();
  for (const TensorConfig* tensor : {&raw.lhs, &raw.rhs}) {
    const bool lhs = tensor == &raw.lhs;
    if (tensor->calibration_mode == CalibrationMode::kRemainingAxis) {
      return absl::InvalidArgumentError(
          absl::StrCat("mid alphas need CALIBRATION_MODE_CONTRACTING_AXIS on both sides, but ", lhs ? "lhs" : "rhs",
                       " has CALIBRATION_MODE_REMAINING_AXIS"));
    }
    const std::optional<double> alpha = lhs ? raw.lhs_mid_alpha : raw.rhs_mid_alpha;
    if (!alpha.has_value() || std::isfinite(*alpha)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(lhs ? "lhs" : "rhs", "_mid_alpha = ", *alpha, ", expected a finite number"));
  }
  return absl::OkStatus();
}

absl::Status ValidateHadamard(const DotGeneralRawConfig& raw) {
  if (!raw.hadamard.has_value()) return absl::OkStatus();
  const auto invalid = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("hadamard: ", what));
  };
  const int64_t block = raw.hadamard->block;
  if (block < kernels::kMinHadamardBlock || block > kernels::kMaxHadamardBlock || (block & (block - 1)) != 0) {
    return invalid(absl::StrCat("block = ", block, ", expected a power of two from ", kernels::kMinHadamardBlock,
                                " to ", kernels::kMaxHadamardBlock));
  }
  if (!IsQuantized(raw.lhs.quantizer.numerics) && !IsQuantized(raw.rhs.quantizer.numerics)) {
    return invalid("neither operand is quantized, so a rotation would change nothing; leave hadamard out");
  }
  if (raw.lhs_mid_alpha.has_value() || raw.rhs_mid_alpha.has_value()) {
    return invalid("does not go together with mid alphas, which also balance the operands; leave one of them out");
  }
  return absl::OkStatus();
}

absl::Status ValidateLocalAqt(const LocalAqt& config) {
  const auto invalid = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("local_aqt: ", what));
  };
  const bool has_count = config.contraction_axis_shard_count.has_value();
  const bool has_size = config.contraction_axis_shard_size.has_value();
  if (config.tile_largest_shape) {
    if (!has_size) return invalid("tile_largest_shape needs a contraction_axis_shard_size");
    if (has_count) {
      return invalid("tile_largest_shape cuts by contraction_axis_shard_size; leave contraction_axis_shard_count out");
    }
  } else {
    if (has_size) {
      return invalid(
          "contraction_axis_shard_size belongs to tile_largest_shape; set that, or use "
          "contraction_axis_shard_count");
    }
    if (!has_count) return invalid("needs a contraction_axis_shard_count");
  }
  const char* name = has_count ? "contraction_axis_shard_count" : "contraction_axis_shard_size";
  const int64_t value = has_count ? *config.contraction_axis_shard_count : *config.contraction_axis_shard_size;
  if (value < 1) return invalid(absl::StrCat(name, " = ", value, ", expected at least 1"));
  return absl::OkStatus();
}

absl::Status ValidateTensorOfLocalAqt(const TensorConfig& tensor) {
  if (tensor.quantizer.calib_shared_axes == SharedAxes{}) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "calib_shared_axes cannot be set with local_aqt, which gives each part its own scales");
}

absl::Status ValidateUseFwdQuant(const DotGeneralRawConfig& fwd, Side side) {
  const TensorConfig& forward = side == Side::kLhs ? fwd.lhs : fwd.rhs;
  const char* problem = nullptr;
  if (!IsQuantized(forward.quantizer.numerics)) {
    problem = "is not quantized";
  } else if (forward.calibration_mode == CalibrationMode::kRemainingAxis) {
    problem = "has CALIBRATION_MODE_REMAINING_AXIS; its scale cannot be multiplied into the gradient";
  } else if (HasBias(forward)) {
    problem = "has a bias";
  }
  if (problem == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("use_fwd_quant takes the quantization of the operand in fwd, but that ", problem));
}

}  // namespace aqt
