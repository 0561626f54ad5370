#ifndef AQT_QUANT_CONTRACTION_ENGINE_RESIDUALS_IMPL_H_
#define AQT_QUANT_CONTRACTION_ENGINE_RESIDUALS_IMPL_H_

// Residuals as the plans see them. Internal.

#include <cstddef>
#include <memory>
#include <vector>

#include "aqt/core/array_ref.h"
#include "aqt/quant/contraction/residuals.h"

namespace aqt {

struct Residuals::Impl {
  struct Slot {
    Aval aval;
    std::shared_ptr<void> owned;         // memory of this object
    std::shared_ptr<const void> shared;  // memory of an Array
    ArrayRef view;
  };
  Operands operands = Operands::kCopy;
  std::vector<Slot> slots = {};
  std::vector<void*> memory = {};  // of Residuals::Into, by slot; else empty

  // Memory for a slot, dense; allocated if there is none yet.
  void* Reserve(size_t index, const Aval& aval);
  // Copies or borrows what the caller owns: a float operand, or the qvalue of a prepared one. Transient memory is
  // always copied.
  void Keep(size_t index, const ArrayRef& operand, bool transient = false);
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_ENGINE_RESIDUALS_IMPL_H_
