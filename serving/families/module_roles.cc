#include "serving/families/module_roles.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/io/printable.h"
#include "re2/re2.h"
#include "serving/families/module_name.h"

namespace aqt::serving {
namespace {

re2::StringPiece Piece(absl::string_view s) { return re2::StringPiece(s.data(), s.size()); }

RE2::Options Options() {
  RE2::Options options(RE2::Quiet);
  options.set_case_sensitive(false);
  options.set_max_mem(int64_t{256} << 20);  // for patterns that are valid individually
  return options;
}

std::string AnyOf(const std::vector<std::string>& patterns) {
  return absl::StrCat("(?:", absl::StrJoin(patterns, "|"), ")");
}

// The reason for a role that the family determines.
std::string WhyOf(const ModelFamily& family) {
  return family.for_every_model() ? "" : absl::StrCat("model family ", family.name);
}

}  // namespace

// All roles are one expression with a group for each, in order: compiling takes longer than matching a small model.
class ModuleRoles::Names {
 public:
  explicit Names(const ModelFamily& family) : why_(WhyOf(family)), pattern_(Pattern(family), Options()) {
    const std::map<std::string, int>& groups = pattern_.NamedCapturingGroups();
    for (const auto& [role, patterns] : family.patterns) {
      if (const auto it = groups.find(GroupOf(role)); it != groups.end()) groups_.emplace_back(role, it->second);
    }
  }

  const std::string& why() const { return why_; }

  // The first role with a pattern that matches the full name, or all of it after one of its dots.
  std::optional<Role> Find(absl::string_view name) const {
    if (groups_.empty() || !RE2::FullMatch(Piece(name), pattern_)) return std::nullopt;
    std::vector<re2::StringPiece> found(static_cast<size_t>(pattern_.NumberOfCapturingGroups()) + 1);
    pattern_.Match(Piece(name), 0, name.size(), RE2::ANCHOR_BOTH, found.data(), static_cast<int>(found.size()));
    for (const auto& [role, group] : groups_) {
      if (found[static_cast<size_t>(group)].data() != nullptr) return role;
    }
    return std::nullopt;
  }

 private:
  static std::string GroupOf(Role role) { return absl::StrCat("aqt_role_", static_cast<int>(role)); }
  static std::string Pattern(const ModelFamily& family) {
    std::vector<std::string> roles;
    for (const auto& [role, patterns] : family.patterns) {
      roles.push_back(absl::StrCat("(?P<", GroupOf(role), ">(?:.*\\.)?", AnyOf(patterns), ")"));
    }
    return absl::StrJoin(roles, "|");
  }

  std::string why_;
  RE2 pattern_;
  std::vector<std::pair<Role, int>> groups_;
};

// The names of towers in one family; a part of a path must be one of them.
struct ModuleRoles::Towers {
  explicit Towers(const ModelFamily& family) : why(WhyOf(family)), pattern(AnyOf(family.towers), Options()) {}
  std::string why;
  RE2 pattern;
};

ModuleRoles::ModuleRoles() { AddFamilies({}, {}); }

ModuleRoles::ModuleRoles(const io::TensorSource& source, const ModelFacts& facts, absl::Span<const ModelFamily> own)
    : evidence_(source, facts),
      embeddings_(facts.embeddings.begin(), facts.embeddings.end()),
      has_parts_(facts.model_types.size() > 1 || !facts.towers.empty()) {
  AddFamilies(facts, own);
}

ModuleRoles::ModuleRoles(ModuleRoles&&) = default;
ModuleRoles& ModuleRoles::operator=(ModuleRoles&&) = default;
ModuleRoles::~ModuleRoles() = default;

std::shared_ptr<const ModuleRoles::Names> ModuleRoles::NamesOf(const ModelFamily& family) {
  // The largest family applies to every model; it is compiled once.
  static const auto* const every_model = new std::pair<const ModelFamily*, std::shared_ptr<const Names>>([] {
    const ModelFamily& last = BuiltInFamilies().back();
    return std::pair(&last, std::make_shared<const Names>(last));
  }());
  return &family == every_model->first ? every_model->second : std::make_shared<const Names>(family);
}

void ModuleRoles::AddFamilies(const ModelFacts& facts, absl::Span<const ModelFamily> own) {
  std::vector<std::string> known;
  const std::vector<const ModelFamily*> families = FamiliesOf(facts, own);
  const auto decides = std::find_if(families.begin(), families.end(),
                                    [](const ModelFamily* family) { return family->has_towers.has_value(); });
  const bool has_towers = decides == families.end() ? !facts.towers.empty() : *(*decides)->has_towers;
  for (const ModelFamily* family : families) {
    if (!family->for_every_model()) known.push_back(family->name);
    // The general names of towers are too common for models without any.
    const bool use_towers = !family->for_every_model() || has_towers;
    names_.push_back(NamesOf(*family));
    if (use_towers && !family->towers.empty()) towers_.push_back(std::make_unique<const Towers>(*family));
    for (const std::string& head : family->tied_heads) {
      if (!absl::c_linear_search(tied_heads_, head)) tied_heads_.push_back(head);
    }
    fused_.insert(fused_.end(), family->fused.begin(), family->fused.end());
    expert_names_.insert(expert_names_.end(), family->expert_names.begin(), family->expert_names.end());
  }
  expects_head_ = (facts.has_output_head && !tied_heads_.empty()) || (facts.empty() && evidence_.has_token_embedding());
  if (tied_heads_.empty()) tied_heads_ = {"lm_head"};
  const std::string type = io::Printable(TypeName(facts));
  if (!facts.empty() && !IsKnown(facts, families)) unknown_type_ = type;
  description_ = facts.empty()            ? "model family: unknown, because no config.json names the model type"
                 : !unknown_type_.empty() ? absl::StrCat("model family: the type ", type, " is not in the table")
                                          : absl::StrCat("model family: ", absl::StrJoin(known, ", "), " (", type, ")");
}

bool ModuleRoles::FindTower(absl::string_view module, ModuleRole& role) const {
  const absl::string_view path = BeforeFirstNumber(module);
  for (const std::unique_ptr<const Towers>& towers : towers_) {
    for (size_t begin = 0; begin < path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      if (RE2::FullMatch(Piece(path.substr(begin, end - begin)), towers->pattern)) {
        role = {Role::kTower, towers->why, std::string(path.substr(0, end))};
        return true;
      }
      begin = end + 1;
    }
  }
  return false;
}

ModuleRole ModuleRoles::Of(absl::string_view module, const Shape& shape) const {
  ModuleRole result;
  if (FindTower(module, result)) return result;
  if (shape.rank() >= 3) return {evidence_.Experts(module, shape) ? Role::kExperts : Role::kConvolution, "", ""};
  const absl::string_view name = WithoutTrailingNumbers(module);
  for (const std::shared_ptr<const Names>& names : names_) {
    if (const std::optional<Role> role = names->Find(name)) return {*role, names->why(), ""};
  }
  if (embeddings_.contains(module)) return {Role::kEmbedding, "its parameter is called `embedding`", ""};
  if (evidence_.Multihead(module)) return {Role::kMultihead, "beside in_proj_weight", ""};
  if (std::string why = evidence_.Vocabulary(module, shape); !why.empty()) return {Role::kHead, std::move(why), ""};
  if (std::string why = evidence_.Router(module, shape); !why.empty()) return {Role::kRouter, std::move(why), ""};
  if (std::string why = evidence_.Transposed(module, shape); !why.empty()) {
    return {Role::kTransposed, std::move(why), ""};
  }
  return result;
}

absl::string_view ModuleRoles::AskedName(absl::string_view stored) const {
  for (const auto& [name, asked] : expert_names_) {
    if (name == stored) return asked;
  }
  return "";
}

std::vector<std::string> ModuleRoles::HeadsWithoutWeight(bool tied) const {
  std::vector<std::string> heads = evidence_.heads_without_weight();
  // Some configurations have no value, or a wrong one. The table has the classes that do not store their head.
  if (tied || expects_head_) heads.insert(heads.end(), tied_heads_.begin(), tied_heads_.end());
  return heads;
}

bool ModuleRoles::IsLoaderName(absl::string_view module) const {
  if (absl::c_linear_search(tied_heads_, module) || absl::c_linear_search(evidence_.heads_without_weight(), module)) {
    return true;
  }
  const absl::string_view experts = ExpertsOf(module);
  if (experts.empty() || !evidence_.HasExperts(ParentOf(experts))) return false;
  return experts == module ||
         absl::c_any_of(expert_names_, [&](const auto& name) { return name.second == LastPartOf(module); });
}

bool IsEmbeddingName(absl::string_view module) {
  static const auto* const pattern =
      new RE2(R"((?i)(?:.*\.)?(?:wte|wpe|shared|emb|embed|embed_(?:in|tokens|positions)|)"
              R"((?:(?:word|token|tok|token_type|(?:absolute_)?position|pos|type|segment|input)_)?embeddings?))");
  return RE2::FullMatch(Piece(WithoutTrailingNumbers(module)), *pattern);
}

}  // namespace aqt::serving
