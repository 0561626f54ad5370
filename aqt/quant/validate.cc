#include "aqt/quant/validate.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "aqt/quant/numerics.h"

namespace aqt {
namespace {

bool HasBias(const Tensor& tensor) {
  if (!IsQuantized(tensor.quantizer.numerics) || !tensor.quantizer.calibration.has_value()) return false;
  const auto* constant = std::get_if<Constant>(&*tensor.quantizer.calibration);
  return constant != nullptr && constant->bias.has_value();
}

}  // namespace

absl::Status ValidateTensor(const Tensor& tensor) {
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
  if (HasBias(tensor) && tensor.dequant_mode != DequantMode::kThisInput) {
    return absl::InvalidArgumentError(absl::StrCat("a calibration with a bias needs DEQUANT_MODE_THIS_INPUT, not ",
                                                   ToString(tensor.dequant_mode)));
  }
  return absl::OkStatus();
}

std::optional<DType> ProductDType(const Tensor& tensor) {
  if (tensor.dequant_mode == DequantMode::kThisInput) return std::nullopt;
  const Numerics& numerics = tensor.quantizer.numerics;
  if (const auto* integer = std::get_if<IntSymmetric>(&numerics)) return integer->dtype;
  if (const auto* fp8 = std::get_if<Fp8>(&numerics)) return fp8->dtype;
  return std::nullopt;
}

absl::Status ValidateAccumulator(const DotGeneralRaw& raw) {
  if (!raw.dg_accumulator_dtype.has_value()) return absl::OkStatus();
  const DType accumulator = *raw.dg_accumulator_dtype;
  if (accumulator == DType::kF32 || accumulator == DType::kBF16 || accumulator == DType::kF16) return absl::OkStatus();
  if (accumulator != DType::kS32) {
    return absl::InvalidArgumentError(
        absl::StrCat("accumulator dtype ", ToString(accumulator), ", expected s32, f32, bf16, f16 or none"));
  }
  for (const Tensor* tensor : {&raw.lhs, &raw.rhs}) {
    const std::optional<DType> dtype = ProductDType(*tensor);
    if (dtype == DType::kS4 || dtype == DType::kS8) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the accumulator is s32, but ", tensor == &raw.lhs ? "lhs" : "rhs", " enters the product as ",
        dtype.has_value() ? ToString(*dtype) : "a float", "; s32 needs s4 or s8 on both sides (so no "
        "DEQUANT_MODE_THIS_INPUT): leave dg_accumulator_dtype out"));
  }
  return absl::OkStatus();
}

absl::Status ValidateUseFwdQuant(const Tensor& forward) {
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
