#ifndef AQT_QUANT_CONTRACTION_PREPARED_OPERAND_IMPL_H_
#define AQT_QUANT_CONTRACTION_PREPARED_OPERAND_IMPL_H_

// A prepared operand as the plans see it. Internal.

#include <memory>

#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/packed_side.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

struct PreparedOperand::Impl {
  QTensor qtensor;
  std::shared_ptr<const internal::Panels> panels;  // null: packed in each call
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_PREPARED_OPERAND_IMPL_H_
