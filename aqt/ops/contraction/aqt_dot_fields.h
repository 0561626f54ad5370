#ifndef AQT_OPS_CONTRACTION_AQT_DOT_FIELDS_H_
#define AQT_OPS_CONTRACTION_AQT_DOT_FIELDS_H_

// The fields of the operations of an AqtDot (aqt_dot_general.h), as graph/composite_fields.h has them, and the
// operations. Internal.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/aval.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"

namespace aqt::internal {

// The arguments of AqtDot::Make; without a config, of AqtDot::MakeFloat.
struct ContractionFields {
  Aval lhs, rhs;
  PlannedDims dims;
  std::optional<DotGeneralConfig> config = std::nullopt;
  // Only with a config.
  Semantics semantics = {};
  QuantMode lhs_mode = QuantMode::kTrain, rhs_mode = QuantMode::kTrain;
  static void VisitFields(auto& fields, auto&& visit) {
    auto& [lhs, rhs, dims, config, semantics, lhs_mode, rhs_mode] = fields;
    visit("lhs", lhs);
    visit("rhs", rhs);
    visit("dims", dims);
    visit("config", config);
    if (!config.has_value()) return;
    visit("semantics", semantics);
    visit("lhs_mode", lhs_mode);
    visit("rhs_mode", rhs_mode);
  }
  bool operator==(const ContractionFields&) const = default;
};

// The form of one side: AqtDot::Operand, or packed for the kernels of this machine (packed_contraction.h).
enum class OperandForm { kFloat, kFloatWithScale, kQvalueWithScale, kPacked, kPackedWithScale };

// <name>, or <name>_fwd if with_residuals.
struct DotForwardFields {
  ContractionFields contraction;
  bool with_residuals = false;
  OperandForm lhs = OperandForm::kFloat, rhs = OperandForm::kFloat;
  bool has_backward_state = false;  // the statistics of the gradient are operands, too
  bool has_key = false;
  std::vector<Slot> backward_slots = {};  // outputs for the statistics of a gradient
  std::optional<std::string> name = std::nullopt;
  static constexpr const char* kFieldNames[] = {"contraction", "with_residuals", "lhs", "rhs", "has_backward_state",
                                                "has_key",     "backward_slots", "name"};
  bool operator==(const DotForwardFields&) const = default;
};

// <name>_bwd
struct DotBackwardFields {
  ContractionFields contraction;
  bool has_key = false;
  static constexpr const char* kFieldNames[] = {"contraction", "has_key"};
  bool operator==(const DotBackwardFields&) const = default;
};

// aqt_quantize. It takes a key if the side rounds stochastically.
struct DotQuantizeFields {
  ContractionFields contraction;
  Side side = Side::kLhs;
  bool has_scale = false;
  static constexpr const char* kFieldNames[] = {"contraction", "is_rhs", "has_scale"};
  bool operator==(const DotQuantizeFields&) const = default;
};

// The contraction of any operation of an AqtDot, packed or not; null for others.
std::optional<ContractionFields> ContractionFieldsOf(const Op& op);

// The operation. InvalidArgument for illegal fields, as AqtDot::Make, and where AqtDot would refuse to bind it: without
// a key or a scale that it needs, or with a packed operand (only BindPacked makes those).
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const DotForwardFields& fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const DotBackwardFields& fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const DotQuantizeFields& fields);

}  // namespace aqt::internal

#endif  // AQT_OPS_CONTRACTION_AQT_DOT_FIELDS_H_
