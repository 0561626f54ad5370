#ifndef AQT_OPS_CONTRACTION_AQT_DOT_PARTS_H_
#define AQT_OPS_CONTRACTION_AQT_DOT_PARTS_H_

// The parts that define the operations of an AqtDot (aqt_dot_general.h), for serialization. Internal.

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/program.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"

namespace aqt::internal {

// The arguments of AqtDot::Make; with is_float, of AqtDot::MakeFloat.
struct ContractionParts {
  Aval lhs, rhs;
  PlannedDims dims;
  bool is_float = false;
  DotGeneral config = {};
  Semantics semantics = {};
  AqtDot::Modes modes = {};
};

// The form of one side: AqtDot::Operand.
enum class OperandForm { kFloat, kFloatWithScale, kQvalueWithScale };

// <name>, or <name>_fwd if with_residuals.
struct DotForwardParts {
  ContractionParts contraction;
  bool with_residuals = false;
  OperandForm lhs = OperandForm::kFloat, rhs = OperandForm::kFloat;
  bool has_backward_state = false;  // the statistics of the gradient are operands, too
  bool has_key = false;
  std::vector<Slot> backward_slots = {};  // outputs for the statistics of a gradient
  std::optional<std::string> name = std::nullopt;
};

// <name>_bwd
struct DotBackwardParts {
  ContractionParts contraction;
  bool has_key = false;
};

// aqt_quantize. It takes a key if the side rounds stochastically.
struct DotQuantizeParts {
  ContractionParts contraction;
  Side side = Side::kLhs;
  bool has_scale = false;
};

using DotParts = std::variant<DotForwardParts, DotBackwardParts, DotQuantizeParts>;

// The parts of `op`; null for any other operation. Unimplemented for operands that are packed for this machine.
absl::StatusOr<std::optional<DotParts>> DotPartsOf(const Composite& op);

// The contraction of any operation of an AqtDot, packed or not; null for others.
std::optional<ContractionParts> ContractionPartsOf(const Composite& op);

// The operation. InvalidArgument for illegal parts, as AqtDot::Make, and where AqtDot would refuse to bind it: without
// a key or a scale that it needs.
absl::StatusOr<std::shared_ptr<const Composite>> MakeDotOp(const DotParts& parts);

}  // namespace aqt::internal

#endif  // AQT_OPS_CONTRACTION_AQT_DOT_PARTS_H_
