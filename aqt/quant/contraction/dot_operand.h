#ifndef AQT_QUANT_CONTRACTION_DOT_OPERAND_H_
#define AQT_QUANT_CONTRACTION_DOT_OPERAND_H_

// What the forward pass of a contraction takes on a side.

#include <memory>
#include <utility>

#include "aqt/core/array.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

// An operand fixed ahead of time (a weight), or only its scales (a static activation range): what a plan's Prepare
// returns. Immutable; cheap to copy. For a product of integers it also holds the qvalues as the kernels of one target
// read them: the qvalues' size again, rounded up to whole panels. Plans for other targets take it, too, but pack it in
// each call. Plans that differ only in the other operand's shape (the batch) can share it.
class PreparedOperand {
 public:
  PreparedOperand() = default;
  const QTensor& qtensor() const;

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
