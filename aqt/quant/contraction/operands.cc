// Prepared operands and residuals.

#include <utility>

#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/engine/prepared_operand_impl.h"
#include "aqt/quant/contraction/engine/residuals_impl.h"
#include "aqt/quant/contraction/residuals.h"

namespace aqt {

const QTensor& PreparedOperand::qtensor() const { return impl_->qtensor; }

int64_t PreparedOperand::panel_bytes() const { return impl_->panels != nullptr ? impl_->panels->bytes : 0; }

PreparedOperand PreparedOperand::WithoutValues() const {
  if (impl_->panels == nullptr) return *this;
  Impl packed = *impl_;
  packed.qtensor.qvalue.reset();
  return PreparedOperand(std::make_shared<const Impl>(std::move(packed)));
}

Residuals::Residuals(Operands operands) : impl_(std::make_unique<Impl>(Impl{.operands = operands})) {}
Residuals::~Residuals() = default;
Residuals::Residuals(Residuals&&) noexcept = default;
Residuals& Residuals::operator=(Residuals&&) noexcept = default;

int64_t Residuals::num_bytes() const {
  int64_t bytes = 0;
  for (const Impl::Slot& slot : impl_->slots) bytes += slot.owned != nullptr ? slot.aval.num_bytes() : 0;
  return bytes;
}

std::vector<Array> Residuals::Release() && {
  std::vector<Array> arrays;
  for (Impl::Slot& slot : impl_->slots) {
    arrays.push_back(slot.owned != nullptr ? Array(slot.aval, std::move(slot.owned)) : Array::CopyOf(slot.view));
  }
  impl_->slots.clear();
  return arrays;
}

Residuals Residuals::FromArrays(absl::Span<const Array> arrays) {
  Residuals residuals;
  for (const Array& array : arrays) {
    residuals.impl_->slots.push_back(
        {.aval = array.aval(), .owned = nullptr, .shared = array.buffer(), .view = array.ref()});
  }
  return residuals;
}

Residuals Residuals::Into(absl::Span<void* const> memory) {
  Residuals residuals(Operands::kBorrow);
  residuals.impl_->memory.assign(memory.begin(), memory.end());
  return residuals;
}

void* Residuals::Impl::Reserve(size_t index, const Aval& aval) {
  Slot& slot = slots[index];
  if (!memory.empty()) {
    slot = {.aval = aval, .owned = nullptr, .shared = nullptr, .view = ArrayRef(aval.dtype, aval.shape, memory[index])};
    return memory[index];
  }
  if (slot.owned == nullptr || slot.aval != aval) {
    slot = {.aval = aval, .owned = AllocateUninitialized(aval.num_bytes()), .shared = nullptr, .view = {}};
    slot.view = ArrayRef(aval.dtype, aval.shape, slot.owned.get());
  }
  return slot.owned.get();
}

void Residuals::Impl::Keep(size_t index, const ArrayRef& operand, bool transient) {
  if (operands == Operands::kBorrow && !transient) {
    slots[index] = {.aval = operand.aval(), .owned = nullptr, .shared = nullptr, .view = operand};
    return;
  }
  void* copy = Reserve(index, operand.aval());
  AQT_CHECK(CopyArray(operand, MutableArrayRef(operand.dtype, operand.shape, copy)).ok());
}

}  // namespace aqt
