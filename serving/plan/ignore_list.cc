#include "serving/plan/ignore_list.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "re2/re2.h"
#include "serving/families/module_name.h"

namespace aqt::serving {
namespace {

// A regular expression for names.
struct NamePattern {
  absl::string_view name;
  bool any_prefix = false;  // may follow any prefix
  const char* end = "$";    // what may follow the name

  std::string Text(bool any_number) const {
    std::vector<std::string> parts = absl::StrSplit(name, '.');
    for (std::string& part : parts) {
      const bool number = any_number && !part.empty() && absl::c_all_of(part, absl::ascii_isdigit);
      part = number ? "[0-9]+" : RE2::QuoteMeta(part);
    }
    return absl::StrCat(any_prefix ? "(?:.*\\.)?" : "", absl::StrJoin(parts, "\\."), end);
  }
};

constexpr char kAllInside[] = "\\..*";
constexpr char kWithAllInside[] = "(?:\\..*)?$";

// The end of a name without the prefix of its part of the model: "layers.0.mlp.gate", "lm_head".
absl::string_view WithoutPrefix(absl::string_view module) {
  const absl::string_view before = BeforeFirstNumber(module);
  return module.substr(before.size() - LastPartOf(before).size());
}

// Collects entries without duplicates.
class Entries {
 public:
  Entries(const ModuleRoles& roles, const std::vector<TensorPlan>& tensors) : roles_(roles) {
    for (const TensorPlan& tensor : tensors) {
      if (!tensor.quantized()) continue;
      quantized_.insert(tensor.module());
      kinds_.insert(absl::StrReplaceAll(WithoutNumbers(tensor.module()), {{"#", "0"}}));
    }
  }

  // Adds a module by its name, and by the names under which loaders may ask for it.
  void AddModule(absl::string_view module) {
    // Some loaders apply a plain name to everything below it.
    Add(IsParentOfQuantized(module) ? absl::StrCat("re:^", NamePattern{.name = module}.Text(/*any_number=*/false))
                                    : TargetOf(module));
    if (!ExpertsOf(module).empty()) {
      if (const absl::string_view asked = roles_.AskedName(LastPartOf(module)); !asked.empty()) {
        Add(absl::StrCat(ParentOf(module), ".", asked));
      }
    }
    if (!roles_.has_parts()) return;
    const NamePattern pattern{.name = WithoutPrefix(module), .any_prefix = true};
    if (!MatchesQuantized(pattern)) Add(absl::StrCat("re:", pattern.Text(/*any_number=*/true)));
  }

  // Adds everything in `parent`. False if something in it is quantized.
  bool AddAllOf(absl::string_view parent) {
    if (quantized_.contains(parent) || IsParentOfQuantized(parent)) return false;
    // Loaders that rename modules rename plain entries, but not patterns.
    NamePattern pattern{.name = WithoutPrefix(parent), .any_prefix = true, .end = kAllInside};
    if (MatchesQuantized(pattern)) pattern = {.name = parent, .end = kAllInside};
    Add(absl::StrCat("re:", pattern.Text(/*any_number=*/false)));
    return true;
  }

  // Adds `tower` and everything in it, after any prefix. False if such a name is quantized.
  bool AddTower(absl::string_view tower) {
    const NamePattern pattern{.name = LastPartOf(tower), .any_prefix = true, .end = kWithAllInside};
    if (MatchesQuantized(pattern)) return false;
    Add(absl::StrCat("re:", pattern.Text(/*any_number=*/false)));
    return true;
  }

  std::vector<std::string> Take() { return std::move(entries_); }

 private:
  bool IsParentOfQuantized(absl::string_view module) const {
    const std::string prefix = absl::StrCat(module, ".");
    const auto it = quantized_.lower_bound(prefix);
    return it != quantized_.end() && absl::StartsWith(*it, prefix);
  }

  // Ignores the numbers in names.
  bool MatchesQuantized(const NamePattern& pattern) {
    const std::string text = pattern.Text(/*any_number=*/true);
    const auto [it, inserted] = matches_quantized_.try_emplace(text, false);
    if (!inserted) return it->second;
    const RE2 re(text, RE2::Quiet);
    it->second = absl::c_any_of(
        kinds_, [&](const std::string& kind) { return re.Match(kind, 0, kind.size(), RE2::ANCHOR_START, nullptr, 0); });
    return it->second;
  }

  void Add(std::string entry) {
    if (added_.insert(entry).second) entries_.push_back(std::move(entry));
  }

  const ModuleRoles& roles_;
  absl::btree_set<absl::string_view> quantized_;
  absl::btree_set<std::string> kinds_;  // names of quantized modules, with each number 0
  absl::flat_hash_map<std::string, bool> matches_quantized_;
  absl::flat_hash_set<std::string> added_;
  std::vector<std::string> entries_;
};

// Adds a tensor that is not quantized.
void AddTensor(const TensorPlan& tensor, bool embeddings, Entries& entries) {
  const Decision& decision = tensor.decision;
  const absl::string_view name = decision.candidate ? tensor.module() : absl::string_view(tensor.name());
  if (tensor.input->shape.rank() < 2) return;
  if (const absl::string_view experts = ExpertsOf(name); !experts.empty() && entries.AddAllOf(experts)) {
    entries.AddModule(experts);
    return;
  }
  if (decision.role == Role::kExperts) {  // servers turn it into a module `experts`
    const absl::string_view parent = ParentOf(name);
    if (decision.candidate) entries.AddModule(name);
    const std::string experts = absl::StrCat(parent, parent.empty() ? "" : ".", "experts");
    if (entries.AddAllOf(experts)) entries.AddModule(experts);
    return;
  }
  if (!decision.candidate || tensor.input->shape.rank() != 2) return;  // not a module of the class Linear
  if (decision.role == Role::kTower && entries.AddTower(decision.tower)) return;
  if (embeddings || !IsEmbeddingName(name)) entries.AddModule(name);
}

}  // namespace

std::vector<std::string> IgnoreEntries(const ModuleRoles& roles, const std::vector<TensorPlan>& tensors,
                                       const IgnoreOptions& options) {
  Entries entries(roles, tensors);
  for (const TensorPlan& tensor : tensors) {
    if (tensor.quantized()) continue;
    const bool left_out = tensor.decision.left_out || tensor.decision.role == Role::kExperts;
    if (left_out || !options.only_left_out) AddTensor(tensor, options.embeddings, entries);
  }
  for (const std::string& head : options.heads) entries.AddModule(head);
  return entries.Take();
}

}  // namespace aqt::serving
