#ifndef AQT_QUANT_CONTRACTION_QUANT_DOT_H_
#define AQT_QUANT_CONTRACTION_QUANT_DOT_H_

// Quantization and contraction as separate steps, without a configuration: the stand-alone functions that AQT offers to
// kernel authors.
//
//   QTensor w = *QuantizeToBits(weights, 8, {{0}});                     // one scale per column
//   Array y = *QuantDotGeneral(x, w, MatMulDims());                     // weight only
//   Array z = *QuantDotGeneral(*QuantizeToBits(x, 8, {{1}}), w, MatMulDims());   // s8 x s8 -> s32
//
// DotGeneralPlan with PreparedOperands does the same without planning and packing in each call.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

// Quantizes x by AbsMax with f32 scales and dequant_dtype f32.
//   scale = max|x| over the axes / quant_bound of `bits`;  q as NumericsFromBits(bits) says, from x * (1 / scale)
// x: f32, bf16 or f16; bits: 1 to 22, e4m3 or e5m2. Without axes there is one scale for the tensor (an empty list gives
// one per element). InvalidArgument for other dtypes, for other or no bits, and for axes out of range.
absl::StatusOr<QTensor> QuantizeToBits(const ArrayRef& x, Bits bits,
                                       std::optional<absl::Span<const int64_t>> shared_axes = std::nullopt,
                                       const Semantics& semantics = {});

// A float array or a quantized tensor. Only a view: the data must outlive the call.
struct QuantDotOperand {
  ArrayRef array;
  const QTensor* qtensor = nullptr;

  QuantDotOperand(const ArrayRef& array_in) : array(array_in) {}
  QuantDotOperand(const Array& array_in) : array(array_in.ref()) {}
  QuantDotOperand(const QTensor& qtensor_in) : qtensor(&qtensor_in) {}
};

// Options of QuantDotGeneral.
struct QuantDotOptions {
  // For quantized operands. kOtherInput needs the other operand to enter the product as a float, and a scale shared
  // along the remaining axes; kOutput needs a scale shared along the contracting axes.
  DequantMode lhs_dequant_mode = DequantMode::kOutput, rhs_dequant_mode = DequantMode::kOutput;
  // f32, bf16 or f16; null: the widest of the dtypes of the arrays and the dequant_dtypes of the tensors.
  std::optional<DType> out_dtype = std::nullopt;
  Semantics semantics = {};
  std::optional<kernels::Target> target = std::nullopt;  // as in PlanOptions
};

// lhs x rhs in the widest of the dtypes of the arrays and the dequant_dtypes of the tensors (a float operand is
// converted to it first), computed as DotGeneral's forward pass with the given qvalues, then rounded to out_dtype. Two
// operands in s4 or s8 that are both dequantized on the output are summed in s32, two such 8-bit floats in f32. A
// quantized tensor whose qvalue is a float array is dequantized first. Errors: InvalidArgument as for
// DotGeneralPlan::Make and Prepare, and for dtypes other than f32, bf16 and f16; FailedPrecondition for a tensor
// without a qvalue.
absl::StatusOr<Array> QuantDotGeneral(const QuantDotOperand& lhs, const QuantDotOperand& rhs, const DotDims& dims,
                                      const QuantDotOptions& options = {}, const Runtime& runtime = {});

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_QUANT_DOT_H_
