#include "aqt/transforms/quantize/inject_outline.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "aqt/core/aval.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/ops/attention/attention_op.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/transforms/quantize/inject_rules.h"
#include "re2/re2.h"

namespace aqt {
namespace {

// A variable: "f32[2,3]", and whether it depends only on parameters, frozen inputs and constants.
struct Variable {
  std::string aval;
  bool from_params = false;
};

struct Patterns {
  RE2 input{R"(in %(\d+): (\S+) (param|stat|frozen|key|data) ".*")"};
  RE2 constant{R"(const %(\d+): (\S+) = .*)"};
  RE2 output{R"(out %\d+ (?:param|stat|frozen|key|data) ".*")"};
  RE2 equation{R"((%.*?) = ([a-z0-9_]+)\(((?:%\d+(?:, )?)*)\)(.*))"};
  RE2 declared{R"(%(\d+): ([a-z0-9]+\[[0-9,]*\])(?:, )?)"};
  RE2 used{R"(%(\d+)(?:, )?)"};
};

// The scope at the end of an equation: it follows " @", after the attributes and before the source line.
std::string ScopeOf(absl::string_view tail) {
  if (const size_t line = tail.rfind("  # "); line != absl::string_view::npos) tail = tail.substr(0, line);
  const size_t at = absl::StartsWith(tail, " {") ? tail.rfind("} @") : tail.find(" @");
  if (at == absl::string_view::npos) return "";
  return std::string(tail.substr(tail.find('@', at) + 1));
}

// The aval with this text, such as "f32[2,3]"; without axes if it is no such text.
Aval AvalOf(absl::string_view text) {
  const size_t bracket = text.find('[');
  const std::optional<DType> dtype = DTypeFromString(text.substr(0, bracket));
  if (bracket == absl::string_view::npos || !dtype.has_value() || !absl::ConsumeSuffix(&text, "]")) return {};
  Aval aval{*dtype, {}};
  for (const absl::string_view extent : absl::StrSplit(text.substr(bracket + 1), ',', absl::SkipEmpty())) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(extent, &number)) return {};
    aval.shape.push_back(number);
  }
  return aval;
}

class Outline {
 public:
  Outline(const InjectConfig& config, const internal::RuleMatcher& matcher) : config_(config), matcher_(matcher) {
    report_.hits.assign(config.rules.size(), 0);
  }

  absl::Status AddLine(absl::string_view text) {
    const re2::StringPiece line(text.data(), text.size());
    std::string number, aval, kind, declared, op, operands, tail;
    if (RE2::FullMatch(line, patterns_.input, &number, &aval, &kind)) {
      variables_[number] = {aval, kind == "param" || kind == "frozen"};
      return absl::OkStatus();
    }
    if (RE2::FullMatch(line, patterns_.constant, &number, &aval)) {
      variables_[number] = {aval, true};
      return absl::OkStatus();
    }
    if (RE2::FullMatch(line, patterns_.output)) return absl::OkStatus();
    if (!RE2::FullMatch(line, patterns_.equation, &declared, &op, &operands, &tail)) {
      return absl::InvalidArgumentError("this is not a line of a program's text as ToText writes it");
    }
    std::vector<Variable> used;
    for (re2::StringPiece rest = operands; RE2::Consume(&rest, patterns_.used, &number);) {
      const auto it = variables_.find(number);
      if (it == variables_.end())
        return absl::InvalidArgumentError(absl::StrCat("reads %", number, ", which is not defined"));
      used.push_back(it->second);
    }
    const bool from_params = std::all_of(used.begin(), used.end(), [](const Variable& v) { return v.from_params; });
    re2::StringPiece rest = declared;
    while (RE2::Consume(&rest, patterns_.declared, &number, &aval)) variables_[number] = {aval, from_params};
    if (!rest.empty())
      return absl::InvalidArgumentError(
          absl::StrCat("declares \"", rest.as_string(), "\", expected %number: dtype[shape]"));
    if (op == internal::kAttentionName) AddAttention(used, ScopeOf(tail));
    if (ValidateKind(op).ok()) return AddContraction(op, used, ScopeOf(tail));
    return absl::OkStatus();
  }

  InjectReport Finish() {
    internal::AddUnmatched(config_, report_);
    return std::move(report_);
  }

 private:
  absl::Status AddContraction(const std::string& kind, const std::vector<Variable>& operands, std::string scope) {
    if (operands.size() < 2)
      return absl::InvalidArgumentError(absl::StrCat(kind, " has ", operands.size(), " operands, expected 2 or more"));
    const internal::Candidate candidate{kind, std::move(scope), {operands[0].from_params, operands[1].from_params}};
    const auto aval = [](std::string* text, const Variable& v) { *text += v.aval; };
    internal::AddContraction(config_, candidate, ContractionName(candidate.scope, ordinals_[candidate.scope]++),
                             absl::StrJoin(operands, ", ", aval), matcher_.Find(candidate), report_);
    return absl::OkStatus();
  }

  void AddAttention(const std::vector<Variable>& operands, const std::string& scope) {
    std::vector<Aval> avals;
    std::vector<bool> from_params;
    for (const Variable& operand : operands) {
      avals.push_back(AvalOf(operand.aval));
      from_params.push_back(operand.from_params);
    }
    for (const auto& [candidate, sides] : internal::CandidatesOfAttention(scope, avals, from_params)) {
      internal::AddContraction(config_, candidate, ContractionName(candidate.scope, ordinals_[candidate.scope]++),
                               sides, matcher_.Find(candidate), report_);
    }
  }

  const InjectConfig& config_;
  const internal::RuleMatcher& matcher_;
  const Patterns patterns_;
  absl::flat_hash_map<std::string, Variable> variables_;
  absl::flat_hash_map<std::string, int> ordinals_;  // by scope
  InjectReport report_;
};

}  // namespace

absl::StatusOr<InjectReport> ReportInjection(absl::string_view program_text, const InjectConfig& config) {
  AQT_ASSIGN_OR_RETURN(const internal::RuleMatcher matcher, internal::RuleMatcher::Make(config));
  Outline outline(config, matcher);
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(program_text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty()) continue;
    AQT_RETURN_IF_ERROR(
        Annotate(outline.AddLine(line), absl::StrCat("line ", number, ", \"", line.substr(0, 80), "\"")));
  }
  return outline.Finish();
}

}  // namespace aqt
