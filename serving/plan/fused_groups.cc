#include "serving/plan/fused_groups.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/families/module_name.h"

namespace aqt::serving {
namespace {

constexpr size_t kMaxNames = 6;

// The weights of a group, in the order of the checkpoint.
using Group = std::vector<TensorPlan*>;

// The group of a module: the path of its experts; or its parent, and the parts of the group.
std::string GroupOf(const ModuleRoles& roles, absl::string_view module) {
  if (const absl::string_view experts = ExpertsOf(module); !experts.empty()) return std::string(experts);
  const absl::string_view last = LastPartOf(module);
  for (const std::vector<std::string>& parts : roles.fused()) {
    if (!absl::c_linear_search(parts, last)) continue;
    const absl::string_view parent = ParentOf(module);
    return absl::StrCat(parent, parent.empty() ? "" : ".", "(", absl::StrJoin(parts, ", "), ")");
  }
  return "";
}

bool IsSplit(const Group& group) {
  return std::any_of(group.begin(), group.end(), [&](const TensorPlan* tensor) {
    return tensor->decision.scheme != group.front()->decision.scheme;
  });
}

// The strongest on_split_group of the rules that quantize a part, and that part.
std::pair<OnSplitGroup, const TensorPlan*> WishOf(const Group& group) {
  std::pair<OnSplitGroup, const TensorPlan*> wish{OnSplitGroup::kWarn, nullptr};
  for (const TensorPlan* tensor : group) {
    if (tensor->quantized() && tensor->decision.on_split_group > wish.first) {
      wish = {tensor->decision.on_split_group, tensor};
    }
  }
  return wish;
}

void KeepFloat(const std::string& name, const Group& group) {
  for (TensorPlan* tensor : group) {
    if (!tensor->quantized()) continue;
    tensor->decision.scheme.reset();
    tensor->decision.left_out = true;
    absl::StrAppend(&tensor->decision.reason, ", kept with the rest of ", name);
  }
}

absl::Status QuantizeAll(const std::string& name, const TensorPlan& like, const Group& group) {
  const Scheme scheme = *like.decision.scheme;
  for (TensorPlan* tensor : group) {
    if (tensor->decision.scheme == scheme) continue;
    absl::Status fits = CheckApplicable(scheme, tensor->input->dtype, tensor->input->shape);
    if (fits.ok()) fits = CheckInputGroups(scheme, tensor->input->shape);
    if (fits.ok() && tensor->decision.non_finite) {
      fits = absl::InvalidArgumentError("it holds a NaN or an infinity");
    }
    if (!fits.ok()) {
      return absl::Status(fits.code(),
                          absl::StrCat(io::Printable(tensor->name()), ", as a part of the fused group ", name, ", by ",
                                       like.decision.reason, " (on_split_group): ", fits.message()));
    }
    tensor->decision.scheme = scheme;
    tensor->decision.left_out = false;
    tensor->decision.warning.clear();
    tensor->decision.reason = absl::StrCat(like.decision.reason, ", quantized with the rest of ", name);
  }
  return absl::OkStatus();
}

// "k_proj stays in floating point, q_proj, v_proj: int8 per channel, ..."
std::string Describe(absl::string_view parent, const Group& group) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_scheme;  // in the order of the checkpoint
  for (const TensorPlan* tensor : group) {
    std::string scheme = tensor->quantized() ? serving::Describe(*tensor->decision.scheme) : "in floating point";
    auto it =
        std::find_if(by_scheme.begin(), by_scheme.end(), [&](const auto& entry) { return entry.first == scheme; });
    if (it == by_scheme.end()) it = by_scheme.insert(it, {std::move(scheme), {}});
    absl::string_view name = tensor->module();
    if (!parent.empty()) name.remove_prefix(parent.size() + 1);
    it->second.push_back(io::Printable(name));
  }
  std::vector<std::string> texts;
  for (auto& [scheme, names] : by_scheme) {
    const size_t more = names.size() - std::min(names.size(), kMaxNames);
    names.resize(names.size() - more);
    if (more > 0) names.push_back(absl::StrCat("and ", more, " more"));
    texts.push_back(absl::StrCat(absl::StrJoin(names, ", "), ": ", scheme));
  }
  return absl::StrJoin(texts, "; ");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SettleFusedGroups(const ModuleRoles& roles, std::vector<TensorPlan>& tensors) {
  absl::btree_map<std::string, Group> groups;
  for (TensorPlan& tensor : tensors) {
    if (!tensor.decision.candidate) continue;
    if (std::string name = GroupOf(roles, tensor.module()); !name.empty()) groups[std::move(name)].push_back(&tensor);
  }
  struct Split {
    std::string text;
    int count = 0;
  };
  std::vector<std::pair<std::string, Split>> splits;
  std::map<std::string, size_t> split_of;  // a group without its numbers, and its parts -> index
  for (auto& [group_name, group] : groups) {
    if (!IsSplit(group)) continue;
    const std::string name = io::Printable(group_name);
    const auto [wish, part] = WishOf(group);
    if (wish == OnSplitGroup::kKeepFloat) {
      KeepFloat(name, group);
      continue;
    }
    if (wish == OnSplitGroup::kQuantize) {
      AQT_RETURN_IF_ERROR(QuantizeAll(name, *part, group));
      continue;
    }
    const bool experts = group_name.back() != ')';
    const absl::string_view parent = experts ? absl::string_view(group_name) : ParentOf(group.front()->module());
    const std::string parts = Describe(parent, group);
    const auto [it, inserted] =
        split_of.try_emplace(absl::StrCat(WithoutNumbers(group_name), "\n", parts), splits.size());
    if (inserted) {
      splits.push_back(
          {name,
           {absl::StrCat(experts ? "servers load all experts of a layer together" : "servers load this group together",
                         ", as one weight, and need one scheme: ", parts)}});
    }
    ++splits[it->second].second.count;
  }
  std::vector<std::string> warnings;
  for (const auto& [name, split] : splits) {
    warnings.push_back(absl::StrCat(name, split.count > 1 ? absl::StrCat(" and ", split.count - 1, " like it") : "",
                                    ": ", split.text,
                                    "; a rule's on_split_group keeps or quantizes the group as a whole"));
  }
  return warnings;
}

}  // namespace aqt::serving
