#include "serving/convert/rules.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "re2/re2.h"

namespace aqt::serving {
namespace {

re2::StringPiece Piece(absl::string_view s) { return re2::StringPiece(s.data(), s.size()); }

// An entry of the built-in list. The pattern must match the whole module name, in any case; most look at its last part.
struct BuiltIn {
  const char* what;
  RE2 pattern;
};
const BuiltIn& Embeddings() {
  static const auto* const built_in =
      new BuiltIn{"embedding", RE2(R"((?i)(?:.*\.)?(?:[^.]*embed[^.]*|wte|wpe|shared))")};
  return *built_in;
}
const BuiltIn& Heads() {
  static const auto* const built_in =
      new BuiltIn{"output head", RE2(R"((?i)(?:.*\.)?(?:lm_head|embed_out|output_projection)|output)")};
  return *built_in;
}
const BuiltIn& Norms() {
  static const auto* const built_in = new BuiltIn{"norm", RE2(R"((?i)(?:.*\.)?(?:[^.]*norm[^.]*|ln_[^.]*))")};
  return *built_in;
}
const BuiltIn& Routers() {
  static const auto* const built_in =
      new BuiltIn{"router", RE2(R"((?i)(?:.*\.)?(?:gate|router|shared_expert_gate)|(?:.*\.)?router\..*)")};
  return *built_in;
}
std::array<const BuiltIn*, 4> BuiltIns() { return {&Embeddings(), &Heads(), &Norms(), &Routers()}; }

bool Matches(const BuiltIn& built_in, absl::string_view module) {
  return RE2::FullMatch(Piece(module), built_in.pattern);
}

// A rule's pattern: the whole name of the tensor or of its module.
std::function<bool(absl::string_view, absl::string_view)> FullMatcher(const std::string& pattern) {
  const auto re = std::make_shared<const RE2>(pattern, RE2::Quiet);
  return [re](absl::string_view tensor, absl::string_view module) {
    return RE2::FullMatch(Piece(tensor), *re) || RE2::FullMatch(Piece(module), *re);
  };
}

bool IsRegexTarget(absl::string_view target) { return absl::StartsWith(target, "re:"); }
constexpr char kLinear[] = "Linear";

// True for a text that a loader may take for the name of a class: letters and digits, beginning with a capital.
bool MayBeClass(absl::string_view text) {
  return !text.empty() && absl::ascii_isupper(text[0]) && std::all_of(text.begin(), text.end(), absl::ascii_isalnum);
}

}  // namespace

bool IsEmbeddingName(absl::string_view module) { return Matches(Embeddings(), module); }
bool IsHeadName(absl::string_view module) { return Matches(Heads(), module); }

std::string TargetOf(absl::string_view module) {
  if (!MayBeClass(module) && !IsRegexTarget(module)) return std::string(module);
  return absl::StrCat("re:^", RE2::QuoteMeta(Piece(module)), "$");
}

// An entry of `targets` or `ignore`.
absl::StatusOr<RuleSet::Matcher> RuleSet::MakeMatcher(absl::string_view entry) {
  if (IsRegexTarget(entry)) {
    const absl::string_view pattern = absl::StripPrefix(entry, "re:");
    const auto re = std::make_shared<const RE2>(Piece(pattern), RE2::Quiet);
    if (!re->ok()) {
      return absl::UnimplementedError(absl::StrCat("\"", io::Printable(entry),
                                                   "\" is not a regular expression that RE2 supports (", re->error(),
                                                   "); look-around and back-references are not supported"));
    }
    return Matcher([re](absl::string_view, absl::string_view module) {
      return re->Match(Piece(module), 0, module.size(), RE2::ANCHOR_START, nullptr, 0);
    });
  }
  if (entry == kLinear) {
    return Matcher([](absl::string_view, absl::string_view module) { return !IsEmbeddingName(module); });
  }
  return Matcher([name = std::string(entry)](absl::string_view, absl::string_view module) { return module == name; });
}

void RuleSet::AddBuiltInIgnores() {
  for (const BuiltIn* built_in : BuiltIns()) {
    Ignore ignore;
    ignore.label = absl::StrCat("built-in ignore list (", built_in->what, ")");
    ignore.matches = [built_in](absl::string_view, absl::string_view module) { return Matches(*built_in, module); };
    ignore.built_in = true;
    ignores_.push_back(std::move(ignore));
  }
}

absl::StatusOr<RuleSet> RuleSet::FromConfig(const ConvertConfig& config) {
  RuleSet set;
  for (const std::string& pattern : config.ignore) {
    Ignore ignore;
    ignore.label = absl::StrCat("ignore \"", io::Printable(pattern), "\"");
    ignore.matches = FullMatcher(pattern);
    set.ignores_.push_back(std::move(ignore));
  }
  if (config.default_ignore) set.AddBuiltInIgnores();
  for (size_t i = 0; i < config.rules.size(); ++i) {
    const ConfigRule& from = config.rules[i];
    Rule rule;
    rule.label = absl::StrCat("rule ", i + 1, " \"", io::Printable(from.name), "\"");
    rule.matches = FullMatcher(from.match);
    rule.scheme = from.scheme;
    rule.heeds_ignore = rule.heeds_built_in = !from.override_ignore;
    rule.keep_unsuitable = from.keep_unsuitable;
    set.rules_.push_back(std::move(rule));
  }
  return set;
}

absl::StatusOr<RuleSet> RuleSet::FromQuantizationConfig(const QuantizationConfig& config, const IsModule& is_module) {
  RuleSet set;
  for (const std::string& entry : config.ignore) {
    Ignore ignore;
    ignore.label = absl::StrCat("ignore \"", io::Printable(entry), "\"");
    AQT_ASSIGN_OR_RETURN(ignore.matches, MakeMatcher(entry));
    set.ignores_.push_back(std::move(ignore));
  }
  set.AddBuiltInIgnores();

  struct Target {
    int precedence;  // 0 exact, 1 pattern, 2 class
    std::string text;
    const ConfigGroup* group;
  };
  std::vector<Target> targets;
  for (const ConfigGroup& group : config.groups) {
    for (const std::string& text : group.targets) {
      if (text != kLinear && MayBeClass(text) && !is_module(text)) {
        return absl::UnimplementedError(absl::StrCat(
            "config_groups.", group.name, ".targets: \"", io::Printable(text),
            "\" is neither a module of this checkpoint nor a known class; module names, \"re:\" patterns and "
            "the class \"Linear\" are"));
      }
      targets.push_back({IsRegexTarget(text) ? 1 : text == kLinear ? 2 : 0, text, &group});
    }
  }
  std::stable_sort(targets.begin(), targets.end(), [](const Target& a, const Target& b) {
    return a.precedence != b.precedence ? a.precedence < b.precedence : a.text < b.text;
  });
  for (const Target& target : targets) {
    Rule rule;
    rule.label = absl::StrCat(io::Printable(target.group->name), " target \"", io::Printable(target.text), "\"");
    absl::StatusOr<Matcher> matcher = MakeMatcher(target.text);
    if (!matcher.ok()) return Annotate(matcher.status(), rule.label);
    rule.matches = *std::move(matcher);
    rule.scheme = target.group->scheme;
    rule.heeds_built_in = target.precedence == 2;
    rule.keep_unsuitable = target.precedence == 2;
    rule.as_written = target.precedence < 2;
    set.rules_.push_back(std::move(rule));
  }
  return set;
}

const RuleSet::Ignore* RuleSet::FindIgnore(absl::string_view tensor, absl::string_view module, bool user,
                                           bool built_in) {
  const Ignore* found = nullptr;
  for (Ignore& ignore : ignores_) {
    if (!(ignore.built_in ? built_in : user) || !ignore.matches(tensor, module)) continue;
    ignore.used = true;  // every entry that matches counts as used, not only the first
    if (found == nullptr) found = &ignore;
  }
  return found;
}

absl::StatusOr<Decision> RuleSet::Decide(const io::TensorSpec& tensor, bool tied, std::vector<std::string>* trace) {
  const auto note = [trace](absl::string_view line) {
    if (trace != nullptr) trace->emplace_back(line);
  };
  Decision decision;
  const std::optional<absl::string_view> module = ModuleOf(tensor.name);
  if (!module.has_value() || tensor.shape.rank() < 2) {
    decision.reason = module.has_value() ? absl::StrCat("rank ", tensor.shape.rank()) : "not named *.weight";
    if (!module.has_value() && tensor.shape.rank() == 3) {
      decision.warning =
          "rank 3 and not named *.weight: carried over as it is; if these are the weights of experts, split them";
    }
    // An entry of the ignore list may name such a tensor; then it counts as used.
    const size_t dot = tensor.name.rfind('.');
    FindIgnore(tensor.name, absl::string_view(tensor.name).substr(0, dot == std::string::npos ? 0 : dot), true, false);
    note(absl::StrCat("no candidate: ", decision.reason));
    return decision;
  }
  decision.candidate = true;
  const Ignore* const by_user = FindIgnore(tensor.name, *module, true, false);
  const Ignore* const by_us = FindIgnore(tensor.name, *module, false, true);
  for (Rule& rule : rules_) {
    if (!rule.matches(tensor.name, *module)) {
      note(absl::StrCat(rule.label, ": does not match"));
      continue;
    }
    if (!rule.scheme.has_value()) {
      rule.used = true;
      decision.left_out = false;
      decision.reason = rule.label;
      note(absl::StrCat(rule.label, ": matches, keep in floating point"));
      return decision;
    }
    const Ignore* const ignored = rule.heeds_ignore && by_user != nullptr ? by_user
                                  : rule.heeds_built_in                   ? by_us
                                                                          : nullptr;
    if (ignored != nullptr) {
      if (ignored->built_in) decision.left_out = true;
      note(absl::StrCat(rule.label, ": matches, but gives way to ", ignored->label));
      if (decision.reason.empty()) decision.reason = ignored->label;
      continue;
    }
    rule.used = true;
    decision.left_out = false;
    decision.reason = rule.label;
    absl::Status suitable = CheckApplicable(*rule.scheme, tensor.dtype, tensor.shape);
    if (suitable.ok()) {
      const absl::Status groups = CheckInputGroups(*rule.scheme, tensor.shape);
      if (!rule.as_written) suitable = groups;
      else if (!groups.ok()) decision.warning = std::string(groups.message());
    }
    if (suitable.ok() && tied && (IsEmbeddingName(*module) || IsHeadName(*module))) {
      suitable = absl::InvalidArgumentError(
          "input and output embeddings are tied (tie_word_embeddings): quantizing one would change both; keep "
          "it in floating point");
    }
    if (!suitable.ok() && !rule.keep_unsuitable) {
      return absl::Status(suitable.code(), absl::StrCat(io::Printable(tensor.name), " ", tensor.shape.ToString(),
                                                        ", by ", rule.label, ": ", suitable.message()));
    }
    if (!suitable.ok()) {
      decision.left_out = true;
      decision.warning = std::string(suitable.message());
      note(absl::StrCat(rule.label, ": matches, but stays in floating point: ", suitable.message()));
      return decision;
    }
    decision.scheme = rule.scheme;
    note(absl::StrCat(rule.label, ": matches, ", Describe(*rule.scheme)));
    return decision;
  }
  if (decision.reason.empty()) {
    decision.reason = by_user != nullptr ? by_user->label : "no rule matches";
    note(decision.reason);
  }
  return decision;
}

bool RuleSet::IsBuiltInIgnored(absl::string_view module) {
  const std::array<const BuiltIn*, 4> all = BuiltIns();
  return std::any_of(all.begin(), all.end(), [module](const BuiltIn* built_in) { return Matches(*built_in, module); });
}

std::vector<std::string> RuleSet::Unused() const {
  std::vector<std::string> labels;
  for (const Rule& rule : rules_) {
    if (!rule.used) labels.push_back(rule.label);
  }
  for (const Ignore& ignore : ignores_) {
    if (!ignore.used && !ignore.built_in) labels.push_back(ignore.label);
  }
  return labels;
}

}  // namespace aqt::serving
