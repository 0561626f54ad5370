#include "aqt/jax/describe.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/program.h"
#include "aqt/io/json.h"
#include "aqt/jax/plans.h"
#include "aqt/jax/program_calls.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/engine/planned_contraction_impl.h"
#include "aqt/quant/text/compat_names.h"
#include "aqt/quant/text/config_proto.h"

namespace aqt::jax {
namespace {

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

absl::string_view NameOf(ResidualKind kind) {
  switch (kind) {
    case ResidualKind::kValue: return "value";
    case ResidualKind::kQvalue: return "qvalue";
    case ResidualKind::kScale: return "scale";
    case ResidualKind::kClipMask: return "mask";
  }
  return "";
}

absl::string_view NameOf(Side side) { return side == Side::kLhs ? "lhs" : "rhs"; }

// How an operand of a product draws random numbers.
std::string Draw(const internal::SidePlan& side) {
  if (!side.draws()) return Quoted("");
  const auto* integers = std::get_if<IntSymmetric>(&side.config.quantizer.numerics);
  return Quoted(integers != nullptr ? "noise" : "bits");
}

bool CanSplit(const internal::SidePlan& side, int64_t axis) {
  if (!side.is_quantized()) return true;
  const internal::QuantizeSpec& spec = *side.spec;
  if (spec.has_state()) return false;
  if (const auto* constant = std::get_if<Constant>(&spec.calibration)) {
    if (std::holds_alternative<ConstantArray>(constant->bound) || constant->bias.has_value()) return false;
  } else if (std::find(spec.shared_axes.begin(), spec.shared_axes.end(), axis) != spec.shared_axes.end()) {
    return false;
  }
  return !side.draws() || (*spec.draws_shape)[axis] == 1;
}

// "splits" of one operand. A tiling moves its axes, and mid scales are found from both whole operands.
std::string Splits(const internal::ProductPlan& product, const internal::SidePlan& side) {
  std::vector<int64_t> axes;
  const int64_t rank = product.tiled.has_value() || product.HasMidScales() ? 0 : side.x.shape.rank();
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (CanSplit(side, axis)) axes.push_back(axis);
  }
  return absl::StrCat("[", absl::StrJoin(axes, ","), "]");
}

std::string Quantized(const DotGeneralPlan& plan, Side side) {
  const absl::StatusOr<PlannedContraction::QuantizedAvals> avals = plan.quantized_avals(side);
  if (!avals.ok()) return "null";
  return absl::StrCat("[", Quoted(avals->qvalue.ToString()), ",", Quoted(avals->scale.ToString()), "]");
}

// A text that differs if the bytes of panels may differ.
std::string KeyText(const internal::PanelKey& key) {
  const auto& [format, digits, scale_group, axes, feature_groups, hadamard_block, dequantized, dtype] = key;
  const auto& [layout, element, has_correction, width, k_group] = format;
  const auto list = [](const Axes& of) { return absl::StrJoin(of, ","); };
  return absl::StrCat(ToString(dtype), dequantized ? " dequantized" : "", " layout ", static_cast<int>(layout),
                      " element ", static_cast<int>(element), has_correction ? " corrected " : " ", width, "x", k_group,
                      " axes ", list(axes.batch), "|", list(axes.rows), "|", list(axes.k),
                      digits ? absl::StrCat(" digits by ", scale_group) : "",
                      hadamard_block != 0 ? absl::StrCat(" hadamard ", hadamard_block) : "",
                      feature_groups != 1 ? absl::StrCat(" groups ", feature_groups) : "");
}

std::string PanelsOf(const internal::ContractionPlan& engine, Side side) {
  const std::optional<internal::PanelKey>& key = engine.forward().panels(side);
  if (!key.has_value()) return "null";
  const Shape& shape = engine.forward().side(side).x.shape;
  return absl::StrCat("[", Quoted(absl::StrCat(KeyText(*key), " of ", shape.ToString())), ",",
                      *engine.PanelBytesOf(side), "]");
}

absl::StatusOr<std::string> Ports(const Program& program, const std::vector<Program::Port>& ports) {
  std::vector<std::string> items;
  for (const Program::Port& port : ports) {
    AQT_ASSIGN_OR_RETURN(const std::string path, io::JsonQuote(port.slot.path));
    items.push_back(absl::StrCat("{\"kind\":", Quoted(ToString(port.slot.kind)), ",\"path\":", path,
                                 ",\"aval\":", Quoted(program.aval(port.var).ToString()), "}"));
  }
  return absl::StrCat("[", absl::StrJoin(items, ","), "]");
}

}  // namespace

absl::StatusOr<std::string> DescribeContraction(absl::string_view spec, absl::string_view lhs, absl::string_view rhs,
                                                bool forward_only) {
  AQT_ASSIGN_OR_RETURN(const Aval lhs_aval, ParseAval(lhs));
  AQT_ASSIGN_OR_RETURN(const Aval rhs_aval, ParseAval(rhs));
  AQT_ASSIGN_OR_RETURN(
      const std::shared_ptr<const DotGeneralPlan> plan,
      PlanOf(spec, lhs_aval, rhs_aval, forward_only ? PlanPasses::kForwardOnly : PlanPasses::kForwardAndBackward));
  const internal::ContractionPlan& engine = internal::EngineOf(*plan);
  std::vector<std::string> residuals;
  for (const ResidualSlot& slot : plan->residuals()) {
    residuals.push_back(absl::StrCat("{\"side\":", Quoted(NameOf(slot.side)), ",\"kind\":", Quoted(NameOf(slot.kind)),
                                     ",\"aval\":", Quoted(slot.aval.ToString()), "}"));
  }
  std::vector<const internal::ProductPlan*> products = {&engine.forward()};
  if (!forward_only) {
    products.push_back(&engine.gradient(Side::kLhs).product);
    products.push_back(&engine.gradient(Side::kRhs).product);
  }
  std::vector<std::string> draws, splits;
  for (const internal::ProductPlan* product : products) {
    draws.push_back(Draw(product->lhs));
    draws.push_back(Draw(product->rhs));
    splits.push_back(Splits(*product, product->lhs));
    splits.push_back(Splits(*product, product->rhs));
  }
  return absl::StrCat("{\"out\":", Quoted(plan->out_aval().ToString()), ",\"residuals\":[",
                      absl::StrJoin(residuals, ","), "],\"draws\":[", absl::StrJoin(draws, ","), "],\"splits\":[",
                      absl::StrJoin(splits, ","), "],\"quantized\":[", Quantized(*plan, Side::kLhs), ",",
                      Quantized(*plan, Side::kRhs), "],\"panels\":[", PanelsOf(engine, Side::kLhs), ",",
                      PanelsOf(engine, Side::kRhs), "]}");
}

absl::StatusOr<std::string> DescribeProgram(absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(const std::string bytes, ReadProgram(path));
  const std::string digest = DigestOf(bytes);
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const Executable> executable, ProgramOf(path, digest));
  const Program& program = executable->program();
  AQT_ASSIGN_OR_RETURN(const std::string inputs, Ports(program, program.inputs));
  AQT_ASSIGN_OR_RETURN(const std::string outputs, Ports(program, program.outputs));
  return absl::StrCat("{\"digest\":", Quoted(digest), ",\"inputs\":", inputs, ",\"outputs\":", outputs, "}");
}

absl::StatusOr<std::string> CompatText(absl::string_view names) {
  AQT_ASSIGN_OR_RETURN(const Compat compat, CompatFromNames(names, ' ', "Compat"));
  std::vector<std::string> fields;
  for (const CompatField& field : CompatFields()) {
    if (compat.*field.member) fields.push_back(absl::StrCat(field.name, ": true"));
  }
  return absl::StrJoin(fields, " ");
}

absl::StatusOr<std::string> CompleteConfig(absl::string_view textproto) {
  AQT_ASSIGN_OR_RETURN(const DotGeneralConfig config, DotGeneralFromText(textproto));
  return ToText(config);
}

}  // namespace aqt::jax
