#include "aqt/transforms/quantize/inject_rules.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/ops/attention/attention_op.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/tensor/calibration.h"
#include "re2/re2.h"

namespace aqt::internal {
namespace {

bool HasOrigin(OperandOrigin wanted, bool from_params) {
  return wanted == OperandOrigin::kAny || (wanted == OperandOrigin::kParam) == from_params;
}

}  // namespace

std::string RuleName(const InjectConfig& config, size_t rule) {
  const std::string& name = config.rules[rule].name;
  return name.empty() ? absl::StrCat("rule ", rule + 1) : absl::StrCat("rule \"", name, "\"");
}

struct RuleMatcher::Impl {
  const InjectConfig& config;
  std::vector<std::unique_ptr<RE2>> scopes;
};

RuleMatcher::RuleMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RuleMatcher::RuleMatcher(RuleMatcher&&) noexcept = default;
RuleMatcher::~RuleMatcher() = default;

absl::StatusOr<RuleMatcher> RuleMatcher::Make(const InjectConfig& config) {
  auto impl = std::make_unique<Impl>(Impl{config, {}});
  for (size_t i = 0; i < config.rules.size(); ++i) {
    const InjectRule& rule = config.rules[i];
    RE2::Options options;
    options.set_log_errors(false);
    impl->scopes.push_back(std::make_unique<RE2>(rule.scope, options));
    if (!impl->scopes.back()->ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("inject: ", RuleName(config, i), ": scope \"", rule.scope,
                       "\" is not a valid regular expression: ", impl->scopes.back()->error()));
    }
    for (const std::string& op : rule.ops) {
      AQT_RETURN_IF_ERROR(Annotate(ValidateKind(op), absl::StrCat("inject: ", RuleName(config, i))));
    }
  }
  return RuleMatcher(std::move(impl));
}

int RuleMatcher::Find(const Candidate& candidate) const {
  for (size_t i = 0; i < impl_->config.rules.size(); ++i) {
    const InjectRule& rule = impl_->config.rules[i];
    if (std::find(rule.ops.begin(), rule.ops.end(), candidate.kind) != rule.ops.end() &&
        HasOrigin(rule.lhs_origin, candidate.from_params[0]) && HasOrigin(rule.rhs_origin, candidate.from_params[1]) &&
        RE2::FullMatch(candidate.scope, *impl_->scopes[i])) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

QuantMode ModeOf(const InjectConfig& config, const std::optional<QuantMode>& mode, const TensorConfig& tensor,
                 bool from_params) {
  if (mode.has_value()) return *mode;
  if (std::holds_alternative<NoNumerics>(tensor.quantizer.numerics)) return QuantMode::kTrain;
  const bool has_state = HasState(tensor.quantizer);
  const QuantMode wanted = from_params ? config.param_mode : has_state ? config.data_mode : QuantMode::kTrain;
  return wanted == QuantMode::kCalibrate && !has_state ? QuantMode::kTrain : wanted;
}

std::string DescribeSide(const InjectConfig& config, const InjectRule& rule, Side side, bool from_params) {
  const bool is_lhs = side == Side::kLhs;
  const TensorConfig& tensor = is_lhs ? rule.dot_general->fwd.lhs : rule.dot_general->fwd.rhs;
  const QuantMode mode = ModeOf(config, is_lhs ? rule.lhs_mode : rule.rhs_mode, tensor, from_params);
  return absl::StrCat(Describe(tensor.quantizer.numerics), mode == QuantMode::kTrain ? "" : " in ",
                      mode == QuantMode::kTrain ? "" : ToString(mode));
}

std::vector<InnerCandidate> CandidatesOfAttention(absl::string_view scope, absl::Span<const Aval> operands,
                                                  const std::vector<bool>& from_params) {
  std::vector<InnerCandidate> candidates;
  for (const InnerContraction& inner : ContractionsOfAttention(operands)) {
    const auto all = [&](const std::vector<int>& from) {
      return std::all_of(from.begin(), from.end(), [&](int operand) { return from_params[operand]; });
    };
    const std::string own_scope = scope.empty() ? inner.scope : absl::StrCat(scope, "/", inner.scope);
    candidates.push_back({{"dot_general", own_scope, {all(inner.lhs_from), all(inner.rhs_from)}},
                          absl::StrCat(inner.lhs.ToString(), ", ", inner.rhs.ToString())});
  }
  return candidates;
}

void AddContraction(const InjectConfig& config, const Candidate& candidate, std::string name, std::string operands,
                    int rule, InjectReport& report) {
  InjectReport::Contraction contraction{
      .op = candidate.kind, .name = std::move(name), .operands = std::move(operands), .rule = rule};
  if (rule >= 0) {
    ++report.hits[rule];
    const InjectRule& hit = config.rules[rule];
    if (hit.dot_general.has_value()) {
      contraction.lhs = DescribeSide(config, hit, Side::kLhs, candidate.from_params[0]);
      contraction.rhs = DescribeSide(config, hit, Side::kRhs, candidate.from_params[1]);
    }
  }
  report.contractions.push_back(std::move(contraction));
}

void AddUnmatched(const InjectConfig& config, InjectReport& report) {
  for (size_t i = 0; i < config.rules.size(); ++i) {
    if (report.hits[i] == 0) report.unmatched.push_back(RuleName(config, i));
  }
}

}  // namespace aqt::internal

namespace aqt {

std::string InjectReport::ToString(const InjectConfig& config) const {
  std::vector<absl::string_view> kinds;
  for (const Contraction& c : contractions) {
    if (std::find(kinds.begin(), kinds.end(), c.op) == kinds.end()) kinds.push_back(c.op);
  }
  std::string text;
  for (const absl::string_view kind : kinds) {
    int all = 0, quantized = 0;
    std::string lines;
    for (const Contraction& c : contractions) {
      if (c.op != kind) continue;
      ++all;
      quantized += c.lhs.empty() ? 0 : 1;
      absl::StrAppend(&lines, "  ", c.op, " [", c.name, "] (", c.operands,
                      "): ", c.rule < 0 ? std::string("no rule") : internal::RuleName(config, c.rule));
      if (c.rule >= 0 && c.lhs.empty()) lines += ", stays as it is";
      if (!c.lhs.empty()) absl::StrAppend(&lines, ": lhs ", c.lhs, ", rhs ", c.rhs);
      if (!c.requantized.empty()) absl::StrAppend(&lines, ", requantizes ", absl::StrJoin(c.requantized, " and "));
      lines += "\n";
    }
    absl::StrAppend(&text, kind, ": ", quantized, " of ", all, " quantized\n", lines);
  }
  for (const std::string& rule : unmatched) absl::StrAppend(&text, rule, " hit nothing\n");
  return text;
}

}  // namespace aqt
