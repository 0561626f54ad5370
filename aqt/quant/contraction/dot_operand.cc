#include "aqt/quant/contraction/dot_operand.h"

#include "aqt/quant/contraction/prepared_operand_impl.h"

namespace aqt {

const QTensor& PreparedOperand::qtensor() const { return impl_->qtensor; }

}  // namespace aqt
