#ifndef AQT_QUANT_CONTRACTION_ENGINE_PREPARED_OPERAND_IMPL_H_
#define AQT_QUANT_CONTRACTION_ENGINE_PREPARED_OPERAND_IMPL_H_

// A prepared operand as the plans see it. Internal.

#include <memory>

#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

struct PreparedOperand::Impl {
  QTensor qtensor;
  std::shared_ptr<const internal::Panels> panels;  // null: packed in each call
  // The plan (ContractionPlan::identity_) that prepared the operand, and the side. That plan need not check it again.
  std::shared_ptr<const void> checked_by = nullptr;
  Side checked_side = Side::kLhs;
  int64_t hadamard_block = 0;  // with which the tensor is rotated; 0: not at all
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_ENGINE_PREPARED_OPERAND_IMPL_H_
