#include "serving/plan/rules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "re2/re2.h"
#include "serving/families/module_name.h"

namespace aqt::serving {
namespace {

re2::StringPiece Piece(absl::string_view s) { return re2::StringPiece(s.data(), s.size()); }

// A rule's pattern: it matches the full name of the tensor or of its module.
std::function<bool(absl::string_view, absl::string_view)> FullMatcher(const std::string& pattern) {
  const auto re = std::make_shared<const RE2>(pattern, RE2::Quiet);
  return [re](absl::string_view tensor, absl::string_view module) {
    return RE2::FullMatch(Piece(tensor), *re) || RE2::FullMatch(Piece(module), *re);
  };
}

bool IsRegexTarget(absl::string_view target) { return absl::StartsWith(target, "re:"); }
constexpr char kLinear[] = "Linear";
constexpr char kEmbedding[] = "Embedding";
bool IsClass(absl::string_view target) { return target == kLinear || target == kEmbedding; }

// True for a text that a loader may read as the name of a class: letters and digits, beginning with a capital.
bool MayBeClass(absl::string_view text) {
  return !text.empty() && absl::ascii_isupper(text[0]) && std::all_of(text.begin(), text.end(), absl::ascii_isalnum);
}

// Adds an entry of `targets` or `ignore`; see MakeMatcher.
void AddEntry(absl::string_view entry, EntryIndex& index) {
  if (IsRegexTarget(entry)) {
    index.AddPrefixPattern(absl::StripPrefix(entry, "re:"));
  } else if (entry == kLinear) {
    index.AddAny();
  } else {
    index.AddName(entry);
  }
}

}  // namespace

std::string TargetOf(absl::string_view module) {
  if (!MayBeClass(module) && !IsRegexTarget(module)) return std::string(module);
  return absl::StrCat("re:^", RE2::QuoteMeta(Piece(module)), "$");
}

// Matches an entry of `targets` or `ignore`.
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

absl::StatusOr<RuleSet> RuleSet::FromConfig(const ConvertConfig& config, const ModuleRoles& roles) {
  RuleSet set(roles);
  for (const std::string& pattern : config.ignore) {
    Ignore ignore;
    ignore.label = absl::StrCat("ignore \"", io::Printable(pattern), "\"");
    ignore.matches = FullMatcher(pattern);
    set.ignores_.push_back(std::move(ignore));
    set.ignore_index_.AddFullPattern(pattern);
  }
  if (!config.default_ignore) set.passed_over_ = [](Role) { return false; };
  for (size_t i = 0; i < config.rules.size(); ++i) {
    const ConfigRule& from = config.rules[i];
    Rule rule;
    rule.label = absl::StrCat("rule ", i + 1, " \"", io::Printable(from.name), "\"");
    if (from.gguf.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(rule.label, " writes the GGUF type ", ggml::InfoOf(*from.gguf).name,
                       ", which only GGUF files have: name a GGUF file as IN, and an OUT ", "that ends in .gguf"));
    }
    rule.matches = FullMatcher(from.match);
    rule.scheme = from.scheme;
    rule.heeds_ignore = rule.heeds_built_in = !from.override_ignore;
    rule.keep_unsuitable = from.keep_unsuitable;
    rule.quantize_tied = from.quantize_tied;
    rule.on_split_group = from.on_split_group;
    set.rules_.push_back(std::move(rule));
    set.rule_index_.AddFullPattern(from.match);
  }
  return set;
}

absl::StatusOr<RuleSet> RuleSet::FromQuantizationConfig(const QuantizationConfig& config, const ModuleRoles& roles,
                                                        const IsModule& is_module) {
  RuleSet set(roles);
  set.passed_over_ = &IsOutsideOfLinear;
  for (const std::string& entry : config.ignore) {
    Ignore ignore;
    ignore.label = absl::StrCat("ignore \"", io::Printable(entry), "\"");
    AQT_ASSIGN_OR_RETURN(ignore.matches, MakeMatcher(entry));
    ignore.used = roles.IsLoaderName(entry);
    set.ignores_.push_back(std::move(ignore));
    AddEntry(entry, set.ignore_index_);
  }

  struct Target {
    int precedence;  // 0 exact, 1 pattern, 2 class
    std::string text;
    const ConfigGroup* group;
  };
  std::vector<Target> targets;
  for (const ConfigGroup& group : config.groups) {
    for (const std::string& text : group.targets) {
      if (!IsClass(text) && MayBeClass(text) && !is_module(text)) {
        return absl::UnimplementedError(absl::StrCat(
            "config_groups.", group.name, ".targets: \"", io::Printable(text),
            "\" is neither a module of this checkpoint nor a known class; module names, \"re:\" patterns and "
            "the classes \"Linear\" and \"Embedding\" are"));
      }
      targets.push_back({IsRegexTarget(text) ? 1 : IsClass(text) ? 2 : 0, text, &group});
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
    rule.embeddings = target.text == kEmbedding;
    if (rule.embeddings) rule.matches = [](absl::string_view, absl::string_view) { return true; };
    rule.scheme = target.group->scheme;
    rule.heeds_built_in = target.precedence == 2 && !rule.embeddings;
    rule.keep_unsuitable = target.precedence == 2;
    rule.as_written = target.precedence < 2;
    rule.used = target.precedence == 0 && roles.IsLoaderName(target.text);
    set.rules_.push_back(std::move(rule));
    if (target.text == kEmbedding) set.rule_index_.AddAny();
    else AddEntry(target.text, set.rule_index_);
  }
  return set;
}

const RuleSet::Ignore* RuleSet::FindIgnore(absl::string_view tensor, absl::string_view module) {
  const Ignore* found = nullptr;
  for (const size_t i : ignore_index_.Candidates(tensor, module)) {
    Ignore& ignore = ignores_[i];
    if (!ignore.matches(tensor, module)) continue;
    ignore.used = true;  // every entry that matches counts as used, not only the first
    if (found == nullptr) found = &ignore;
  }
  return found;
}

const RuleSet::Ignore* RuleSet::FindIgnoreOf(absl::string_view tensor, absl::string_view module) {
  const Ignore* const found = FindIgnore(tensor, module);
  if (found != nullptr || !experts_.part_of) return found;
  const absl::string_view whole = experts_.part_of(tensor);
  return whole.empty() ? nullptr : FindIgnore(whole, ParentOf(whole));
}

// The decision for a tensor that is not a module's weight of rank 2 or more.
Decision RuleSet::NoCandidate(const io::TensorSpec& tensor) {
  Decision decision;
  const bool is_weight = ModuleOf(tensor.name).has_value();
  decision.reason = is_weight ? absl::StrCat("rank ", tensor.shape.rank()) : "not named *.weight";
  if (!is_weight && tensor.shape.rank() >= 3) {
    decision.role = roles_->Of(tensor.name, tensor.shape).role;
    if (decision.role == Role::kExperts) {
      decision.warning =
          absl::StrCat("rank ", tensor.shape.rank(), ": all experts in one tensor, carried over as it is",
                       experts_.why_kept.empty() ? "" : "; ", experts_.why_kept);
    }
  }
  // An entry of the ignore list that names this tensor counts as used.
  FindIgnore(tensor.name, ParentOf(tensor.name));
  return decision;
}

absl::Status RuleSet::CheckSuitable(const Rule& rule, const io::TensorSpec& tensor, const ModuleRole& role, bool tied,
                                    Decision& decision) const {
  if (role.role == Role::kConvolution) {
    return absl::UnimplementedError(absl::StrCat(
        "rank ", tensor.shape.rank(), ", as in a convolution; only weights of rank 2 [out, in] can be quantized"));
  }
  if (role.role == Role::kTransposed) {
    return absl::UnimplementedError(absl::StrCat("stored transposed, as [in, out] (class Conv1D; ", role.why,
                                                 "): the scales of its rows would belong to inputs, and no loader "
                                                 "expects it quantized; to quantize it, transpose "
                                                 "it and make the model's class Linear"));
  }
  AQT_RETURN_IF_ERROR(CheckApplicable(*rule.scheme, tensor.dtype, tensor.shape));
  if (const absl::Status groups = CheckInputGroups(*rule.scheme, tensor.shape); !groups.ok()) {
    if (!rule.as_written) return groups;
    decision.warning = std::string(groups.message());
  }
  if (tied && !rule.quantize_tied && (role.role == Role::kEmbedding || role.role == Role::kHead)) {
    return absl::InvalidArgumentError(
        "input and output embeddings are tied (tie_word_embeddings): quantizing one would change both; keep "
        "it in floating point, or set quantize_tied in a rule of a --config to quantize it for both uses");
  }
  return absl::OkStatus();
}

std::optional<ModuleRole> RuleSet::RoleOf(const io::TensorSpec& tensor, const ModuleRoles& roles) {
  const std::optional<absl::string_view> module = ModuleOf(tensor.name);
  if (!module.has_value() || tensor.shape.rank() < 2) return std::nullopt;
  return roles.Of(*module, tensor.shape);
}

absl::StatusOr<Decision> RuleSet::Decide(const io::TensorSpec& tensor, bool tied, std::vector<std::string>* trace) {
  return Decide(tensor, RoleOf(tensor, *roles_), tied, trace);
}

absl::StatusOr<Decision> RuleSet::Decide(const io::TensorSpec& tensor, const std::optional<ModuleRole>& role_of,
                                         bool tied, std::vector<std::string>* trace) {
  const auto note = [trace](absl::string_view line) {
    if (trace != nullptr) trace->emplace_back(line);
  };
  if (!role_of.has_value()) {
    Decision decision = NoCandidate(tensor);
    note(absl::StrCat("not a candidate: ", decision.reason));
    return decision;
  }
  const ModuleRole& role = *role_of;
  const absl::string_view module = *ModuleOf(tensor.name);
  Decision decision;
  decision.candidate = true;
  decision.role = role.role;
  decision.tower = role.tower;
  const std::string what = absl::StrCat(ToString(role.role), role.why.empty() ? "" : ", ", role.why);
  if (role.role != Role::kLinear) note(absl::StrCat("the module is: ", what));
  const std::string built_in = absl::StrCat("built-in ignore list (", what, ")");
  const bool on_built_in_list = passed_over_(role.role);
  const Ignore* const by_user = FindIgnoreOf(tensor.name, module);
  for (const size_t i : trace != nullptr ? rule_index_.All() : rule_index_.Candidates(tensor.name, module)) {
    Rule& rule = rules_[i];
    const bool of_class = !rule.embeddings || role.role == Role::kEmbedding || role.role == Role::kPositions;
    if (!of_class || !rule.matches(tensor.name, module)) {
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
    const bool ignored_by_user = rule.heeds_ignore && by_user != nullptr;
    if (ignored_by_user || (rule.heeds_built_in && on_built_in_list)) {
      const std::string& label = ignored_by_user ? by_user->label : built_in;
      if (!ignored_by_user) decision.left_out = true;
      note(absl::StrCat(rule.label, ": matches, but gives way to ", label));
      if (decision.reason.empty()) decision.reason = label;
      continue;
    }
    rule.used = true;
    decision.left_out = false;
    decision.reason = rule.label;
    const absl::Status suitable = CheckSuitable(rule, tensor, role, tied, decision);
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
    decision.on_split_group = rule.on_split_group;
    note(absl::StrCat(rule.label, ": matches, ", Describe(*rule.scheme)));
    return decision;
  }
  if (decision.reason.empty()) {
    decision.reason = by_user != nullptr ? by_user->label : "no rule matches";
    note(decision.reason);
  }
  return decision;
}

std::vector<std::string> RuleSet::Unused() const {
  std::vector<std::string> labels;
  for (const Rule& rule : rules_) {
    if (!rule.used) labels.push_back(rule.label);
  }
  for (const Ignore& ignore : ignores_) {
    if (!ignore.used) labels.push_back(ignore.label);
  }
  return labels;
}

}  // namespace aqt::serving
