#ifndef AQT_QUANT_CONTRACTION_DOT_OPERAND_H_
#define AQT_QUANT_CONTRACTION_DOT_OPERAND_H_

// An operand of the forward pass of a contraction.

#include <cstdint>
#include <memory>
#include <utility>

#include "aqt/core/array.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

// An operand fixed ahead of time (a weight), or only its scales (a static activation range), as returned by a plan's
// Prepare. Immutable; cheap to copy. Plans that differ only in the other operand's free axes (the batch) can share it.
//
// Besides the tensor it holds panels, the packed form that the kernels of one instruction set read, so that a call
// packs nothing. Panels take one byte per integer of up to 8 bits (8, 4 or 2 bits if lhs is a float:
// WeightOnly::kDigits), two per bf16 or 8-bit float, and four per other float or where a side is dequantized before the
// product. A plan that cannot use the panels (other axes, dtypes or instructions) packs the tensor in each call. There
// are no panels for the lhs of a convolution, of a ragged contraction or of WeightOnly::kDigits, nor for an operand
// that is multiplied by the scales of the other one (DEQUANT_MODE_OTHER_INPUT there). For integers in tiles of k, an
// rhs may also take 8, 4 or 2 bits, with its scales (kernels::PrefersDigitsOfIntegers); lhs then has no panels.
//
// With DotGeneralRawConfig::hadamard the tensor is that of the rotated operand. A plan without the same rotation
// refuses it.
class PreparedOperand {
 public:
  PreparedOperand() = default;
  // The tensor. It has no qvalue if it holds only scales, or after WithoutValues. A float operand is stored as the
  // qvalue, without scales.
  const QTensor& qtensor() const;

  // The size of the panels; 0 if there are none.
  int64_t panel_bytes() const;
  // Only the panels and the scales: half the memory. Calls that need the values fail with FailedPrecondition: calls
  // with Residuals, an Observer or a user's product, and calls of plans that cannot use the panels. Returns the operand
  // unchanged if it has no panels.
  PreparedOperand WithoutValues() const;

  // For the plans.
  struct Impl;
  explicit PreparedOperand(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// A float operand, a float operand with prepared scales (which replace the calibration), or a prepared qvalue (which
// replaces the operand). With Residuals:
//   scales only   gradients are those of the operand quantized with these scales
//   qvalue        no gradient flows into it: an error, unless fwd.allow_dummy_gradient_into_qtensor passes it on as if
//                 the operand had been quantized here. The other side's gradient multiplies with the float operand
//                 `value`, which is then required, or with the prepared qvalue if use_fwd_quant is set.
struct DotOperand {
  ArrayRef value;  // when `prepared` has a qvalue: read only for gradients
  const PreparedOperand* prepared = nullptr;
  // The memory of `value` changes after Forward: Residuals copy it even if they borrow operands.
  bool transient = false;

  DotOperand(const ArrayRef& value_in) : value(value_in) {}
  DotOperand(const MutableArrayRef& value_in) : value(value_in) {}
  DotOperand(const Array& value_in) : value(value_in.ref()) {}
  DotOperand(const PreparedOperand& prepared_in) : prepared(&prepared_in) {}
  DotOperand(const ArrayRef& value_in, const PreparedOperand& prepared_in) : value(value_in), prepared(&prepared_in) {}
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_DOT_OPERAND_H_
