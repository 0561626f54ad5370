#include "aqt/quant/contraction/quant_dot.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

// The bits of a container; no bits for floats.
absl::StatusOr<Bits> BitsOf(DType container) {
  switch (container) {
    case DType::kS4: return Bits(4);
    case DType::kS8: return Bits(8);
    case DType::kE4M3FN: return Bits::E4M3();
    case DType::kE5M2: return Bits::E5M2();
    default: break;
  }
  if (internal::IsArithmeticFloat(container)) return Bits();
  return absl::InvalidArgumentError(
      absl::StrCat("a qvalue of ", ToString(container), ", expected s4, s8, e4m3fn, e5m2, f32, bf16 or f16"));
}

// One side in the form that the plan takes.
struct PlanInput {
  ArrayRef value;                         // of a float operand
  std::optional<Array> owned;             // memory of `value`, if it was converted
  std::optional<QTensor> quantized = {};  // instead for a float operand
  Bits bits = {};
  DType dtype = DType::kF32;  // requested for the product
  Shape shape = {};
};

absl::StatusOr<PlanInput> Read(Side side, const QuantDotOperand& in) {
  PlanInput operand;
  absl::Status status;
  if (in.qtensor == nullptr) {
    operand.value = in.array;
    operand.dtype = in.array.dtype;
    operand.shape = in.array.shape;
  } else if (!in.qtensor->IsFull()) {
    status = absl::FailedPreconditionError("the tensor has no qvalue");
  } else {
    absl::StatusOr<Bits> bits = BitsOf(in.qtensor->qvalue->dtype());
    if (!bits.ok()) {
      status = bits.status();
    } else if (bits->quantized()) {
      operand.bits = *bits;
      operand.quantized = *in.qtensor;
      operand.dtype = in.qtensor->dequant_dtype;
      operand.shape = in.qtensor->qvalue->shape();
    } else {
      absl::StatusOr<Array> dequantized = in.qtensor->Dequantize();
      status = dequantized.status();
      if (status.ok()) {
        operand.owned = *std::move(dequantized);
        operand.value = *operand.owned;
        operand.dtype = operand.owned->dtype();
        operand.shape = operand.owned->shape();
      }
    }
  }
  if (status.ok() && !internal::IsArithmeticFloat(operand.dtype)) {
    status = absl::InvalidArgumentError(absl::StrCat(operand.quantized.has_value() ? "dequant_dtype is " : "is ",
                                                     ToString(operand.dtype), ", expected f32, bf16 or f16"));
  }
  if (!status.ok()) return Annotate(status, absl::StrCat("QuantDotGeneral: ", internal::Name(side)));
  return operand;
}

TensorConfig TensorOf(const PlanInput& operand, DequantMode mode) {
  TensorConfig tensor;
  tensor.quantizer = QuantizerMake(operand.bits);
  if (!operand.quantized.has_value()) return tensor;
  tensor.dequant_mode = mode;
  if (mode == DequantMode::kOtherInput) tensor.calibration_mode = CalibrationMode::kRemainingAxis;
  return tensor;
}

}  // namespace

absl::StatusOr<QTensor> QuantizeToBits(const ArrayRef& x, Bits bits,
                                       std::optional<absl::Span<const int64_t>> shared_axes,
                                       const Semantics& semantics) {
  if (!bits.quantized()) {
    return absl::InvalidArgumentError("QuantizeToBits: no bits to quantize to, expected 1 to 22, e4m3 or e5m2");
  }
  const Quantizer quantizer = QuantizerMake(bits, /*preserve_max_val=*/false, /*scale_stop_grad=*/true, DType::kF32);
  Axes axes;
  if (shared_axes.has_value()) {
    axes.assign(shared_axes->begin(), shared_axes->end());
  } else {
    for (int64_t axis = 0; axis < x.shape.rank(); ++axis) axes.push_back(axis);
  }
  absl::StatusOr<QTensor> qtensor = Quantize(quantizer, x, axes, {}, semantics);
  if (!qtensor.ok()) return Annotate(qtensor.status(), "QuantizeToBits");
  qtensor->dequant_dtype = DType::kF32;
  return qtensor;
}

absl::StatusOr<Array> QuantDotGeneral(const QuantDotOperand& lhs, const QuantDotOperand& rhs, const DotDims& dims,
                                      const QuantDotOptions& options, const Runtime& runtime) {
  if (options.out_dtype.has_value() && !internal::IsArithmeticFloat(*options.out_dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("QuantDotGeneral: out_dtype is ", ToString(*options.out_dtype), ", expected f32, bf16 or f16"));
  }
  AQT_ASSIGN_OR_RETURN(PlanInput left, Read(Side::kLhs, lhs));
  AQT_ASSIGN_OR_RETURN(PlanInput right, Read(Side::kRhs, rhs));
  const DType dtype = internal::Promote(left.dtype, right.dtype);
  DotGeneralConfig config;
  config.fwd.lhs = TensorOf(left, options.lhs_dequant_mode);
  config.fwd.rhs = TensorOf(right, options.rhs_dequant_mode);
  const bool both_output = left.quantized.has_value() && right.quantized.has_value() &&
                           options.lhs_dequant_mode == DequantMode::kOutput &&
                           options.rhs_dequant_mode == DequantMode::kOutput;
  if (both_output) config.fwd.dg_accumulator_dtype = DotGeneralRawMake(left.bits, right.bits).dg_accumulator_dtype;
  AQT_ASSIGN_OR_RETURN(const DotGeneralPlan plan,
                       DotGeneralPlan::Make(config, {dtype, left.shape}, {dtype, right.shape}, dims,
                                            {PlanPasses::kForwardOnly, options.semantics, options.target}));

  std::vector<PreparedOperand> prepared;
  prepared.reserve(2);
  std::vector<DotOperand> operands;
  for (PlanInput* operand : {&left, &right}) {
    if (operand->quantized.has_value()) {
      operand->quantized->dequant_dtype = dtype;
      AQT_ASSIGN_OR_RETURN(PreparedOperand p, plan.Prepare(operand == &left ? Side::kLhs : Side::kRhs,
                                                           *std::move(operand->quantized), runtime));
      prepared.push_back(std::move(p));
      operands.emplace_back(prepared.back());
    } else {
      if (operand->value.dtype != dtype) {
        operand->owned = Cast(operand->value, dtype);
        operand->value = *operand->owned;
      }
      operands.emplace_back(operand->value);
    }
  }
  ArrayBuilder out = ArrayBuilder::ForOverwrite(plan.out_aval());
  AQT_RETURN_IF_ERROR(plan.Forward(operands[0], operands[1], {}, out.ref(), nullptr, runtime));
  Array result = std::move(out).Build();
  return options.out_dtype.has_value() ? Cast(result, *options.out_dtype) : result;
}

}  // namespace aqt
