#include "aqt/models/coded_weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/status_macros.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/transforms/expand.h"
#include "re2/re2.h"

namespace aqt::models {
namespace {

// The longest sum of products of 8-bit integers, -128 included, that fits 32 bits.
constexpr int64_t kMaxTerms = (int64_t{1} << 17) - 1;

// How often each variable is used.
std::vector<int> CountUses(const Program& program) {
  std::vector<int> uses(program.vars.size());
  for (const Equation& eqn : program.eqns) {
    for (const VarId var : eqn.in) ++uses[var];
  }
  for (const Program::Port& output : program.outputs) ++uses[output.var];
  return uses;
}

int64_t Extent(const Shape& shape, const Axes& axes) {
  return std::accumulate(axes.begin(), axes.end(), int64_t{1},
                         [&](int64_t n, int64_t axis) { return n * shape[axis]; });
}

// The numerics of integers that a file stores: s4 where it holds them.
IntSymmetric Integers(int bits, DType dtype) { return {.bits = bits, .dtype = dtype}; }

}  // namespace

// w [o, i] is a parameter whose contracting axes hold i, in the order of the file.
struct CodedWeights::Layout {
  Shape shape;       // of the parameter
  Axes contracting;  // its axes, ascending
  Axes lhs;          // those of the other operand, in the same order
  Axes sizes;        // of a tile along each: together a group

  // The view in which each group is a tile; with extent 1 inside the tiles if `scales`.
  Shape Tiled(bool scales) const {
    Shape tiled;
    for (int64_t axis = 0; axis < shape.rank(); ++axis) {
      const auto at = std::find(contracting.begin(), contracting.end(), axis);
      if (at == contracting.end()) {
        tiled.push_back(shape[axis]);
        continue;
      }
      const int64_t size = sizes[at - contracting.begin()];
      if (size != shape[axis]) tiled.push_back(shape[axis] / size);
      tiled.push_back(scales ? 1 : size);
    }
    return tiled;
  }

  std::optional<DotTiling> Tiling() const {
    DotTiling tiling;
    for (size_t i = 0; i < contracting.size(); ++i) {
      if (sizes[i] == shape[contracting[i]]) continue;
      tiling.lhs.contraction_axes.push_back({.axis = lhs[i], .tile_size = sizes[i]});
      tiling.rhs.contraction_axes.push_back({.axis = contracting[i], .tile_size = sizes[i]});
    }
    if (tiling.lhs.contraction_axes.empty()) return std::nullopt;
    return tiling;
  }

  // All axes of the other operand that hold i, in its tiled shape.
  absl::StatusOr<TilingState> LhsTiling(const Shape& lhs_shape) const {
    const std::optional<DotTiling> tiling = Tiling();
    return TilingState::Make(lhs_shape, tiling.has_value() ? tiling->lhs.contraction_axes : std::vector<AxisTiling>());
  }

  // Divides i into groups. False if no tiles do.
  bool SetGroup(int64_t group) {
    sizes.assign(contracting.size(), 1);
    for (size_t i = contracting.size(); i-- > 0;) {
      const int64_t extent = shape[contracting[i]];
      if (group % extent != 0 && extent % group != 0) return false;
      sizes[i] = std::min(group, extent);
      group /= sizes[i];
    }
    return group == 1;
  }
};

absl::StatusOr<CodedWeights> CodedWeights::Of(const Program& program) {
  // The report also has the contractions inside an attention.
  AQT_ASSIGN_OR_RETURN(const Program model, Expand(program, {"attention"}));
  InjectReport report;
  AQT_RETURN_IF_ERROR(Inject(model, InjectConfig(), nullptr, &report).status());
  const std::vector<int> uses = CountUses(model);
  std::vector<const Slot*> params(model.vars.size());
  for (const int input : model.InputsOfKind(SlotKind::kParam))
    params[model.inputs[input].var] = &model.inputs[input].slot;
  CodedWeights weights;
  std::map<std::string, int> in_scope;  // products with parameters
  size_t number = 0;
  for (const Equation& eqn : model.eqns) {
    const std::optional<ContractionDims> dims = ContractionOf(eqn.op);
    if (!dims.has_value()) continue;
    const std::string& name = report.contractions[number++].name;
    const auto* const dot = std::get_if<DotDims>(&*dims);
    const VarId rhs = eqn.in[1];
    if (dot == nullptr || params[rhs] == nullptr || uses[rhs] != 1 || !dot->rhs_batch.empty()) continue;
    const std::string& scope = model.scope(eqn);
    ++in_scope[scope];
    weights.products_.emplace(*params[rhs], Product{name, scope, *dot, model.aval(eqn.in[0]).shape});
  }
  std::erase_if(weights.products_, [&](const auto& product) { return in_scope[product.second.scope] > 1; });
  std::vector<int> look_ups(model.vars.size());
  for (const Equation& eqn : model.eqns) {
    const auto* const take = std::get_if<TakeOp>(&eqn.op);
    if (take != nullptr && take->axis == 0) ++look_ups[eqn.in[0]];
  }
  for (size_t var = 0; var < params.size(); ++var) {
    if (params[var] != nullptr && uses[var] > 0 && look_ups[var] == uses[var]) weights.looked_up_.insert(*params[var]);
  }
  return weights;
}

namespace {

// The axes of the parameter that hold the columns of w [o, i]; null if the program takes it in another order.
std::optional<Axes> ColumnAxes(const nn::WeightPlace& place, const DotDims& dims, int64_t columns) {
  const nn::WeightRule& rule = *place.rule;
  const bool transposed = rule.transpose == Axes{1, 0};
  if (place.tensor->shape.rank() != 2 || (!transposed && !rule.transpose.empty() && rule.transpose != Axes{0, 1})) {
    return std::nullopt;
  }
  if (rule.slice.has_value() && rule.slice->axis != 0) return std::nullopt;
  Axes axes = dims.rhs_contracting;
  std::sort(axes.begin(), axes.end());
  const int64_t first = transposed ? 0 : place.aval.shape.rank() - static_cast<int64_t>(axes.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != first + static_cast<int64_t>(i)) return std::nullopt;
  }
  if (Extent(place.aval.shape, axes) != columns) return std::nullopt;
  return axes;
}

// How an input is quantized. Returns why it is not computed, or nothing.
std::string SetInput(const stored::WeightCodes& codes, int64_t group, int64_t columns, const Axes& of_token,
                     TensorConfig& lhs) {
  if (!codes.input_unknown.empty()) return codes.input_unknown;
  if (!codes.input.has_value()) return "";
  const stored::InputArgs& input = *codes.input;
  const bool float_values = IsFloat(codes.values.dtype());
  if (float_values && !input.is_float) return "they are floats, and their inputs are integers";
  if (input.is_float ? input.num_bits != 8 : input.num_bits < 2 || input.num_bits > 8) {
    return absl::StrCat("their inputs are quantized to ", input.num_bits, "-bit ",
                        input.is_float ? "floats" : "integers");
  }
  Quantizer& quantizer = lhs.quantizer;
  if (input.is_float) quantizer.numerics = Fp8{};
  else quantizer.numerics = Integers(static_cast<int>(input.num_bits), DType::kS8);
  quantizer.calibration = AbsMax{};
  const bool dynamic = input.dynamic == "true";
  if (input.strategy == "token" && dynamic) {
    if (group != columns) quantizer.calib_shared_axes.axes = of_token;
    return "";
  }
  if (input.strategy == "tensor" && (dynamic || input.dynamic == "false")) {
    quantizer.calib_shared_axes.per_tensor = true;
    if (!dynamic) quantizer.calibration = MeanOfAbsMax{};  // has a scale that can be frozen
    return "";
  }
  // Groups of the inputs are tiles of the product, or all of it.
  if (input.strategy == "group" && dynamic &&
      (input.group_size == group || (input.group_size >= columns && group == columns))) {
    return "";
  }
  return absl::StrCat("their inputs are quantized by ", input.strategy, dynamic ? ", dynamic" : ", static",
                      input.strategy == "group" ? absl::StrCat(", of ", input.group_size, " elements") : "");
}

}  // namespace

std::string CodedWeights::AddTable(const nn::WeightPlace& place, const stored::WeightCodes& codes) {
  const nn::WeightRule& rule = *place.rule;
  if (!rule.transpose.empty() || rule.slice.has_value() || place.aval.shape != codes.values.shape()) {
    return "the program takes them in another order";
  }
  const DType dtype = codes.values.dtype();
  const float largest = IsFloat(dtype) ? static_cast<float>(MaxFinite(dtype)) : std::ldexp(1.0f, codes.bits - 1);
  for (const float scale : codes.scales.View<float>()) {
    if (!std::isfinite(scale * largest)) return "their scales are too large";
  }
  tables_.emplace(place.slot, StoreTable(place.slot, codes, frozen_));
  return "";
}

absl::StatusOr<std::string> CodedWeights::Add(const nn::WeightPlace& place, const stored::WeightCodes& codes) {
  if (looked_up_.contains(place.slot)) return AddTable(place, codes);
  const auto found = products_.find(place.slot);
  if (found == products_.end()) return "they are neither the right operand of one product nor a table";
  const Product& product = found->second;
  const int64_t columns = codes.values.shape()[1], groups = codes.scales.shape()[1];
  const std::optional<Axes> axes = ColumnAxes(place, product.dims, columns);
  if (!axes.has_value()) return "the program takes them in another order";
  Layout layout = {.shape = place.aval.shape, .contracting = *axes};
  for (const int64_t axis : *axes) {
    const auto& rhs = product.dims.rhs_contracting;
    layout.lhs.push_back(product.dims.lhs_contracting[std::find(rhs.begin(), rhs.end(), axis) - rhs.begin()]);
  }
  const int64_t group = columns / groups;
  if (codes.bits < 2) return "they have 1 bit";
  if (!layout.SetGroup(group)) return "their groups do not divide the heads";
  if (group > kMaxTerms) return "their rows are too long for sums of 32 bits";

  DotGeneralConfig config;
  config.tiling = layout.Tiling();
  AQT_ASSIGN_OR_RETURN(const TilingState lhs_tiling, layout.LhsTiling(product.lhs));
  Axes of_token;
  for (const int64_t axis : layout.lhs) {
    const Axes& tiled = lhs_tiling.tile_map[axis];
    of_token.insert(of_token.end(), tiled.begin(), tiled.end());
  }
  const std::string why = SetInput(codes, group, columns, of_token, config.fwd.lhs);
  if (!why.empty()) return why;
  const bool floats = IsFloat(codes.values.dtype());
  const DType dtype = floats ? DType::kE4M3FN : codes.bits == 4 ? DType::kS4 : DType::kS8;
  Quantizer& rhs = config.fwd.rhs.quantizer;
  if (floats) rhs.numerics = Fp8{};
  else rhs.numerics = Integers(codes.bits, dtype);
  rhs.calibration = AbsMax{};
  if (codes.input.has_value()) {
    config.fwd.dg_accumulator_dtype = floats || codes.input->is_float ? DType::kF32 : DType::kS32;
  }

  AQT_ASSIGN_OR_RETURN(const Array values, nn::ArrangeTensor(place, codes.values));
  AQT_ASSIGN_OR_RETURN(const Array scales, nn::ArrangeTensor(place, codes.scales));
  AQT_ASSIGN_OR_RETURN(const Array tiled, values.Reshaped(layout.Tiled(false)));
  frozen_[FrozenSlot(product.name, Side::kRhs, FrozenPart::kValue)] =
      tiled.dtype() == dtype ? tiled : Cast(tiled, dtype);
  AQT_ASSIGN_OR_RETURN(frozen_[FrozenSlot(product.name, Side::kRhs, FrozenPart::kScale)],
                       scales.Reshaped(layout.Tiled(true)));
  if (codes.input_scale.has_value()) {
    const std::vector<int64_t> ones(static_cast<size_t>(lhs_tiling.tiled_shape.rank()), 1);
    AQT_ASSIGN_OR_RETURN(frozen_[FrozenSlot(product.name, Side::kLhs, FrozenPart::kScale)],
                         Array::Scalar(*codes.input_scale).Reshaped(Shape(ones)));
  }
  ++size_;
  const bool is_static = codes.input_scale.has_value();
  const auto same = std::find_if(groups_.begin(), groups_.end(), [&](const Group& other) {
    return other.static_input == is_static && other.config == config;
  });
  if (same != groups_.end()) same->scopes.push_back(product.scope);
  else groups_.push_back({std::move(config), is_static, {product.scope}});
  return "";
}

std::vector<InjectRule> CodedWeights::Rules() const {
  std::vector<InjectRule> rules;
  for (const Group& group : groups_) {
    InjectRule rule = {.name = "weights of the folder"};
    rule.scope = absl::StrJoin(group.scopes, "|", [](std::string* out, const std::string& scope) {
      absl::StrAppend(out, re2::RE2::QuoteMeta(scope));
    });
    rule.rhs_origin = OperandOrigin::kParam;
    rule.dot_general = group.config;
    rule.rhs_mode = QuantMode::kServe;
    if (group.static_input) rule.lhs_mode = QuantMode::kServe;
    rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace aqt::models
