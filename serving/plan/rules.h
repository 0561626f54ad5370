#ifndef AQT_SERVING_PLAN_RULES_H_
#define AQT_SERVING_PLAN_RULES_H_

// Which weights are quantized, and how: an ordered list of rules, made from a converter configuration or from another
// model's quantization_config, and applied to the tensors in order.
//
// Only tensors named `<module>.weight` of rank 2 or more are candidates; all others are copied unchanged. For a
// candidate the rules are tried in order. The first match decides, but a rule that quantizes is skipped for a weight on
// an ignore list, unless the rule overrides it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/families/module_roles.h"
#include "serving/formats/quantization_config.h"
#include "serving/formats/scheme.h"
#include "serving/plan/convert_config.h"
#include "serving/plan/entry_index.h"

namespace aqt::serving {

struct Decision {
  std::optional<Scheme> scheme;  // null: copied unchanged
  bool candidate = false;
  // A rule asks for a scheme and the user does not exclude the weight, yet it stays in floating point: it is on the
  // built-in ignore list, or does not suit the scheme.
  bool left_out = false;
  Role role = Role::kLinear;                          // of a candidate, or of a tensor of rank 3 or more
  std::string tower;                                  // the enclosing tower's module
  bool non_finite = false;                            // left in floating point because of a NaN or an infinity
  std::string reason;                                 // the deciding rule or property: "rule 1 \"attention\"", "rank 1"
  std::string warning;                                // not empty if the user should check: an unsuitable weight
  OnSplitGroup on_split_group = OnSplitGroup::kWarn;  // of the rule that quantizes it
};

class RuleSet {
 public:
  // `roles` gives the roles of modules; it must outlive the rules.
  static absl::StatusOr<RuleSet> FromConfig(const ConvertConfig& config, const ModuleRoles& roles);
  // Whether the checkpoint has a module of that name.
  using IsModule = std::function<bool(absl::string_view)>;
  // Targets in the package's order of precedence: exact names, then "re:" patterns in bytewise order, then classes. The
  // class Linear covers every rank-2 `*.weight` except those of IsOutsideOfLinear, and the class Embedding embeddings
  // and tables of positions; weights that do not suit the scheme stay in floating point. For a name or a pattern,
  // groups of dynamic activations that do not fit are only a warning: the package writes such weights, too.
  // Unimplemented for patterns that RE2 does not support (look-around), and for other classes: a target written like
  // one ("LlamaMLP") that is not the name of a module.
  static absl::StatusOr<RuleSet> FromQuantizationConfig(const QuantizationConfig& config, const ModuleRoles& roles,
                                                        const IsModule& is_module);

  RuleSet(RuleSet&&) = default;
  RuleSet& operator=(RuleSet&&) = default;

  // Counts which rules decide. InvalidArgument or Unimplemented, naming tensor, rule and remedy, if a rule asks for an
  // unsuitable scheme. `tied`: the model's input and output embeddings are one tensor. `trace`, if not null, receives
  // one line per rule that was tried.
  absl::StatusOr<Decision> Decide(const io::TensorSpec& tensor, bool tied, std::vector<std::string>* trace = nullptr);
  // The same, with the role that RoleOf gives for the tensor.
  absl::StatusOr<Decision> Decide(const io::TensorSpec& tensor, const std::optional<ModuleRole>& role, bool tied,
                                  std::vector<std::string>* trace = nullptr);

  // How the experts of the source came about.
  struct ExpertsOfSource {
    // For the name of a weight that is a part of another tensor of the checkpoint: the name of that tensor. Otherwise
    // empty. An ignore entry that names the tensor applies to its parts.
    std::function<absl::string_view(absl::string_view)> part_of;
    std::string why_kept;  // why tensors of all experts are not split, or what to do about it
  };
  void SetExperts(ExpertsOfSource experts) { experts_ = std::move(experts); }

  // The role of a candidate's module; null for a tensor that is not a candidate.
  static std::optional<ModuleRole> RoleOf(const io::TensorSpec& tensor, const ModuleRoles& roles);

  // The labels of the rules and ignore entries that have had no effect so far.
  std::vector<std::string> Unused() const;

 private:
  using Matcher = std::function<bool(absl::string_view tensor, absl::string_view module)>;
  struct Ignore {
    std::string label;
    Matcher matches;
    bool used = false;
  };
  struct Rule {
    std::string label;
    Matcher matches;
    std::optional<Scheme> scheme;
    bool heeds_ignore = true;    // the user's list
    bool heeds_built_in = true;  // the built-in list
    bool keep_unsuitable = false;
    bool as_written = false;  // activations that do not fit are a warning
    bool embeddings = false;  // only modules of the class Embedding
    bool quantize_tied = false;
    OnSplitGroup on_split_group = OnSplitGroup::kWarn;
    bool used = false;
  };

  explicit RuleSet(const ModuleRoles& roles) : roles_(&roles) {}
  static absl::StatusOr<Matcher> MakeMatcher(absl::string_view entry);
  const Ignore* FindIgnore(absl::string_view tensor, absl::string_view module);
  // The same for the tensor, or the one that it is a part of.
  const Ignore* FindIgnoreOf(absl::string_view tensor, absl::string_view module);
  Decision NoCandidate(const io::TensorSpec& tensor);
  absl::Status CheckSuitable(const Rule& rule, const io::TensorSpec& tensor, const ModuleRole& role, bool tied,
                             Decision& decision) const;

  const ModuleRoles* roles_;
  ExpertsOfSource experts_;
  std::vector<Ignore> ignores_;
  // The roles skipped by rules that follow the built-in list.
  bool (*passed_over_)(Role) = &IsBuiltInIgnored;
  std::vector<Rule> rules_;
  // Candidate lookup; entry i of an index is the i-th of the list.
  EntryIndex ignore_index_;
  EntryIndex rule_index_;
};

// The entry of `targets` or `ignore` that means only this module: its name, or "re:^Linear$" for a name that a loader
// would also read as a class or a pattern.
std::string TargetOf(absl::string_view module);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_RULES_H_
