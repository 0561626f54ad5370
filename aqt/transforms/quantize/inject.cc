#include "aqt/transforms/quantize/inject.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/graph/interpret/depends_on.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/ops/attention/attention_op.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/transforms/quantize/inject_rules.h"

namespace aqt {
namespace {

// For each variable, whether it depends only on parameters, statistics, frozen inputs and constants.
std::vector<bool> FromParams(const Program& program) {
  return DependsOnlyOn(program, [](const Slot& slot) {
    return slot.kind == SlotKind::kParam || slot.kind == SlotKind::kStat || slot.kind == SlotKind::kFrozen;
  });
}

// The contractions inside an equation; empty unless it is an attention.
std::vector<internal::InnerCandidate> InnerCandidates(const Program& program, const Equation& eqn,
                                                      const std::vector<bool>& from_params) {
  if (!FieldsOf<internal::AttentionFields>(eqn.op).has_value()) return {};
  std::vector<Aval> avals;
  std::vector<bool> origins;
  for (const VarId var : eqn.in) {
    avals.push_back(program.aval(var));
    origins.push_back(from_params[var]);
  }
  return internal::CandidatesOfAttention(program.scope(eqn), avals, origins);
}

// The program in which each attention with a contraction that a rule quantizes is replaced by its parts.
absl::StatusOr<Program> WithVisibleContractions(const Program& program, const InjectConfig& config,
                                                const internal::RuleMatcher& matcher) {
  const std::vector<bool> from_params = FromParams(program);
  const auto is_quantized = [&](const internal::InnerCandidate& inner) {
    const int rule = matcher.Find(inner.candidate);
    return rule >= 0 && config.rules[rule].dot_general.has_value();
  };
  const auto expands = [&](const Equation& eqn) {
    const std::vector<internal::InnerCandidate> inner = InnerCandidates(program, eqn, from_params);
    return std::any_of(inner.begin(), inner.end(), is_quantized);
  };
  if (std::none_of(program.eqns.begin(), program.eqns.end(), expands)) return program;
  return Rewrite(program, [&](const Equation& eqn, absl::Span<const Value> operands) {
    return expands(eqn) ? std::get<CompositeOp>(eqn.op).impl->Expand(operands) : BindAgain(eqn, operands);
  });
}

class Injector {
 public:
  Injector(const Program& program, const InjectConfig& config, internal::RuleMatcher matcher, const SlotValues* frozen)
      : program_(program),
        config_(config),
        matcher_(std::move(matcher)),
        frozen_(frozen),
        from_params_(FromParams(program)) {
    report_.hits.assign(config.rules.size(), 0);
    for (const Equation& eqn : program.eqns) {
      const CompositeOp* op = std::get_if<CompositeOp>(&eqn.op);
      const std::optional<std::string> name = op != nullptr ? op->impl->instance_name() : std::nullopt;
      if (name.has_value()) names_.insert(*name);
    }
  }

  absl::StatusOr<std::vector<Value>> Rule(const Equation& eqn, absl::Span<const Value> operands) {
    for (const auto& [candidate, avals] : InnerCandidates(program_, eqn, from_params_)) {
      internal::AddContraction(config_, candidate, NameFor(candidate.scope), avals, matcher_.Find(candidate), report_);
    }
    const std::optional<ContractionDims> dims = ContractionOf(eqn.op);
    if (!dims.has_value()) return BindAgain(eqn, operands);
    const internal::Candidate candidate{
        std::string(KindOf(*dims)), program_.scope(eqn), {from_params_[eqn.in[0]], from_params_[eqn.in[1]]}};
    const int rule = matcher_.Find(candidate);
    const auto aval = [](std::string* out, const Value& operand) { *out += operand.aval().ToString(); };
    internal::AddContraction(config_, candidate, NameFor(candidate.scope), absl::StrJoin(operands, ", ", aval), rule,
                             report_);
    if (rule < 0) return BindAgain(eqn, operands);
    if (!config_.rules[rule].dot_general.has_value()) return BindAgain(eqn, operands);
    AQT_ASSIGN_OR_RETURN(const QuantizedDotOptions options, OptionsFor(config_.rules[rule], eqn, *dims));
    const Value out = QuantizedContraction(operands, *dims, options, report_.contractions.back().name, eqn.where);
    return std::vector<Value>{ops::Cast(out, program_.aval(eqn.out[0]).dtype)};
  }

  absl::Status Finish() {
    internal::AddUnmatched(config_, report_);
    if (!config_.strict) return absl::OkStatus();
    if (!report_.unmatched.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("inject: hit nothing: ", absl::StrJoin(report_.unmatched, ", "),
                                                     "; the program's contractions:\n", report_.ToString(config_)));
    }
    const bool wants = config_.param_mode == QuantMode::kCalibrate || config_.data_mode == QuantMode::kCalibrate;
    if (wants && !calibrates_) {
      return absl::InvalidArgumentError(absl::StrCat("inject: QUANT_MODE_CALIBRATE updates statistics, but ",
                                                     WhyNoneCalibrates(), "; the program's contractions:\n",
                                                     report_.ToString(config_)));
    }
    return absl::OkStatus();
  }

  InjectReport TakeReport() { return std::move(report_); }

 private:
  absl::string_view WhyNoneCalibrates() const {
    if (data_has_state_ && config_.data_mode != QuantMode::kCalibrate) {
      return "param_mode is for weights, and only activations have a calibration with state: set data_mode";
    }
    if (params_have_state_ && config_.param_mode != QuantMode::kCalibrate) {
      return "data_mode is for activations, and only weights have a calibration with state: set param_mode";
    }
    if (data_has_state_ || params_have_state_) {
      return "the rules set lhs_mode and rhs_mode of each operand that has a calibration with state: leave them out";
    }
    return "no operand that a rule quantizes has a calibration with state. Ranges that are found in each tensor need "
           "no "
           "calibration: use QUANT_MODE_TRAIN. Static ranges are those of MeanOfAbsMax, as in the preset int8_static. "
           "With strict = false this is no error";
  }

  // The first ContractionName of the scope that no other contraction has: a layer may have quantized a contraction
  // itself, and a scope may have the name of another scope's ordinal.
  std::string NameFor(const std::string& scope) {
    while (true) {
      std::string name = ContractionName(scope, ordinals_[scope]++);
      if (names_.insert(name).second) return name;
    }
  }

  // A weight is stored in full. An activation only has a scale to store, if its calibration has state.
  FreezerMode FreezerOf(const TensorConfig& tensor, VarId operand) const {
    return from_params_[operand] || !HasState(tensor.quantizer) ? FreezerMode::kValueAndScale : FreezerMode::kScale;
  }

  absl::StatusOr<QuantizedDotOptions> OptionsFor(const InjectRule& rule, const Equation& eqn,
                                                 const ContractionDims& dims) {
    const QuantMode lhs_mode =
        internal::ModeOf(config_, rule.lhs_mode, rule.dot_general->fwd.lhs, from_params_[eqn.in[0]]);
    const QuantMode rhs_mode =
        internal::ModeOf(config_, rule.rhs_mode, rule.dot_general->fwd.rhs, from_params_[eqn.in[1]]);
    const bool trains = config_.param_mode == QuantMode::kTrain && config_.data_mode == QuantMode::kTrain &&
                        lhs_mode == QuantMode::kTrain && rhs_mode == QuantMode::kTrain;
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const bool lhs = side == Side::kLhs;
      if (!HasState((lhs ? rule.dot_general->fwd.lhs : rule.dot_general->fwd.rhs).quantizer)) continue;
      (from_params_[eqn.in[lhs ? 0 : 1]] ? params_have_state_ : data_has_state_) = true;
    }
    calibrates_ = calibrates_ || lhs_mode == QuantMode::kCalibrate || rhs_mode == QuantMode::kCalibrate;
    QuantizedDotOptions options{.config = *rule.dot_general,
                                .lhs_mode = lhs_mode,
                                .rhs_mode = rhs_mode,
                                .lhs_freezer = FreezerOf(rule.dot_general->fwd.lhs, eqn.in[0]),
                                .rhs_freezer = FreezerOf(rule.dot_general->fwd.rhs, eqn.in[1]),
                                .with_gradient = trains,
                                .key_slot = rule.key_slot,
                                .shared_key_slot = config_.shared_key_slot,
                                .semantics = config_.semantics};
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      FreezerMode& freezer = side == Side::kLhs ? options.lhs_freezer : options.rhs_freezer;
      if ((side == Side::kLhs ? lhs_mode : rhs_mode) != QuantMode::kServe || frozen_ == nullptr) continue;
      const Side in_product = SideInProduct(dims, program_.aval(eqn.in[0]), program_.aval(eqn.in[1]), side);
      for (const FrozenPart part : {FrozenPart::kValue, FrozenPart::kScale}) {
        const Slot slot =
            FrozenSlot(report_.contractions.back().name, in_product, part, rule.dot_general->fwd.hadamard);
        const bool needed =
            freezer == FreezerMode::kValueAndScale || (freezer == FreezerMode::kScale && part == FrozenPart::kScale);
        if (!needed || frozen_->contains(slot)) continue;
        if (!config_.allow_requantize) {
          return absl::NotFoundError(absl::StrCat(slot.ToString(),
                                                  " is missing for mode SERVE: convert the model first, or set "
                                                  "allow_requantize to quantize the float operand each time"));
        }
        freezer = FreezerMode::kNothing;
        report_.contractions.back().requantized.push_back(side == Side::kLhs ? "lhs" : "rhs");
      }
    }
    return options;
  }

  const Program& program_;
  const InjectConfig& config_;
  const internal::RuleMatcher matcher_;
  const SlotValues* frozen_;
  const std::vector<bool> from_params_;
  absl::flat_hash_map<std::string, int> ordinals_;           // by scope
  absl::flat_hash_set<std::string> names_;                   // of contractions
  bool calibrates_ = false;                                  // whether a side is in mode CALIBRATE
  bool params_have_state_ = false, data_has_state_ = false;  // whether a weight's or an activation's calibration has
                                                             // state
  InjectReport report_;
};

}  // namespace

absl::StatusOr<Program> Inject(const Program& given, const InjectConfig& config, const SlotValues* frozen,
                               InjectReport* report) {
  AQT_ASSIGN_OR_RETURN(internal::RuleMatcher matcher, internal::RuleMatcher::Make(config));
  AQT_ASSIGN_OR_RETURN(const Program program, WithVisibleContractions(given, config, matcher));
  Injector injector(program, config, std::move(matcher), frozen);
  absl::StatusOr<Program> result = Rewrite(
      program, [&](const Equation& eqn, absl::Span<const Value> operands) { return injector.Rule(eqn, operands); });
  const absl::Status unmatched = injector.Finish();
  if (report != nullptr) *report = injector.TakeReport();
  if (result.ok() && !unmatched.ok()) return unmatched;
  return result;
}

}  // namespace aqt
