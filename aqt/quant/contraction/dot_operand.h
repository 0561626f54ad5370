#ifndef AQT_QUANT_CONTRACTION_DOT_OPERAND_H_
#define AQT_QUANT_CONTRACTION_DOT_OPERAND_H_

// What the forward pass of a contraction takes on a side.

#include <cstdint>
#include <memory>
#include <utility>

#include "aqt/core/array.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

// An operand fixed ahead of time (a weight), or only its scales (a static activation range): what a plan's Prepare
// returns. Immutable; cheap to copy. Plans that differ only in the other operand's free axes (the batch) can share it.
//
// Besides the tensor it holds what the kernels of one instruction set read, so that a call packs nothing: a byte for
// each integer of up to 8 bits (8, 4 or 2 bits where a float lhs meets it: WeightOnly::kDigits), two for bf16 and the
// 8-bit floats, four for other floats and where a side is dequantized before the product. A plan for which this form
// does not fit (other axes, dtypes or instructions) packs the tensor in each call. There is no such form for lhs of a
// convolution, of a ragged contraction and of WeightOnly::kDigits, and for an operand that takes the scales of the
// other one (DEQUANT_MODE_OTHER_INPUT there). Of integers in tiles of k, an rhs may take 8, 4 or 2 bits, too, with its
// scales (kernels::PrefersDigitsOfIntegers); there is none for lhs then.
class PreparedOperand {
 public:
  PreparedOperand() = default;
  // Without a qvalue if it holds only scales, or after WithoutValues. A float operand is its qvalue, without scales.
  const QTensor& qtensor() const;

  // The size of the form that the kernels read; 0 if there is none.
  int64_t panel_bytes() const;
  // Only that form and the scales: half of the memory. Calls that need the values fail with FailedPrecondition: those
  // with Residuals, with an Observer or a user's product, and of plans for which the form does not fit. Without such a
  // form it stays as it is.
  PreparedOperand WithoutValues() const;

  // For the plans.
  struct Impl;
  explicit PreparedOperand(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// A float operand; one with prepared scales, which replace the calibration; or a prepared qvalue, which replaces the
// operand. With Residuals:
//   scales only   gradients are those of the operand quantized with these scales
//   qvalue        no gradient flows into it: refused, unless fwd.allow_dummy_gradient_into_qtensor asks to pass it on
//                 as if the operand had been quantized here. The other side's gradient is the product with the float
//                 operand `value`, which is then needed, too, or with the prepared qvalue if use_fwd_quant is set.
struct DotOperand {
  ArrayRef value;  // when `prepared` has a qvalue: read only for gradients
  const PreparedOperand* prepared = nullptr;
  // The memory of `value` changes after Forward: Residuals copy it even if they would borrow.
  bool transient = false;

  DotOperand(const ArrayRef& value_in) : value(value_in) {}
  DotOperand(const MutableArrayRef& value_in) : value(value_in) {}
  DotOperand(const Array& value_in) : value(value_in.ref()) {}
  DotOperand(const PreparedOperand& prepared_in) : prepared(&prepared_in) {}
  DotOperand(const ArrayRef& value_in, const PreparedOperand& prepared_in) : value(value_in), prepared(&prepared_in) {}
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_DOT_OPERAND_H_
