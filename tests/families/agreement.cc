#include "tests/families/agreement.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "re2/re2.h"

namespace aqt::families {
namespace {

using Json = nlohmann::json;

constexpr char kWeight[] = ".weight";

std::set<std::string> Strings(const Json& json, const char* key) { return json.value(key, std::set<std::string>()); }

VllmNames ParseVllm(const Json& json) {
  VllmNames names;
  names.substrings = json.value("substrings", VllmNames::Renames());
  names.prefixes = json.value("prefixes", VllmNames::Renames());
  names.suffixes = json.value("suffixes", VllmNames::Renames());
  names.packed = json.value("packed", names.packed);
  names.expert_names = json.value("expert_names", names.expert_names);
  return names;
}

// The entries of `ignore`: names, and "re:" with a pattern that matches from the start of a name.
class IgnoreList {
 public:
  explicit IgnoreList(const std::vector<std::string>& entries) {
    for (const std::string& entry : entries) {
      absl::string_view pattern = entry;
      if (absl::ConsumePrefix(&pattern, "re:")) {
        patterns_.push_back(std::make_unique<RE2>(absl::StrCat("^(?:", pattern, ")")));
      } else {
        names_.insert(entry);
      }
    }
  }

  bool Covers(const std::string& module) const {
    return names_.contains(module) || std::any_of(patterns_.begin(), patterns_.end(), [&](const auto& pattern) {
             return RE2::PartialMatch(module, *pattern);
           });
  }

 private:
  std::set<std::string> names_;
  std::vector<std::unique_ptr<RE2>> patterns_;
};

// A module or an entry of `ignore` after the renames. vLLM does not change patterns and names without a dot.
std::string Renamed(const VllmNames& vllm, std::string name) {
  if (!absl::StrContains(name, '.') || absl::StartsWith(name, "re:")) return name;
  for (const auto& [from, to] : vllm.substrings) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
  }
  for (const auto& [from, to] : vllm.prefixes) {
    if (absl::StartsWith(name, from)) name = absl::StrCat(to, absl::StripPrefix(name, from));
  }
  for (const auto& [from, to] : vllm.suffixes) {
    if (absl::EndsWith(name, from)) name = absl::StrCat(absl::StripSuffix(name, from), to);
  }
  return name;
}

// Modules that the plan leaves in float, but that a loader treats as quantized unless `ignore` has them.
std::set<std::string> LeftInFloat(const FamilyRecord& record, const PlanFacts& plan) {
  std::set<std::string> left = record.ignore;
  for (const std::set<std::string>* names : {&record.quantized, &record.free}) {
    std::set_difference(names->begin(), names->end(), plan.quantized.begin(), plan.quantized.end(),
                        std::inserter(left, left.end()));
  }
  return left;
}

bool IsHead(const FamilyRecord& record, const std::string& module) {
  const auto why = record.kept.find(absl::StrCat(module, kWeight));
  return record.tied.contains(module) ||
         (why != record.kept.end() && (why->second == "head" || why->second == "classifier"));
}

}  // namespace

absl::StatusOr<FamilyRecord> ParseRecord(absl::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("a record of a family is a JSON object");
  FamilyRecord record;
  record.family = json.value("family", "");
  record.config = json.value("config", Json::object()).dump();
  for (const auto& [name, shape] : json.value("tensors", std::map<std::string, std::vector<int64_t>>())) {
    record.tensors.emplace(name, Shape(shape));
  }
  record.integers = Strings(json, "integers");
  record.classes = json.value("classes", record.classes);
  record.tied = Strings(json, "tied");
  record.quantized = Strings(json, "quantized");
  record.ignore = Strings(json, "ignore");
  record.ask = Strings(json, "ask");
  record.ask_quantized = Strings(json, "ask_quantized");
  record.experts = Strings(json, "experts");
  record.free = Strings(json, "either");
  record.free.merge(Strings(json, "vllm_float"));
  record.kept = json.value("kept", record.kept);
  for (const auto& [prefix, kind] : json.value("towers", std::map<std::string, std::string>())) {
    record.towers.push_back(prefix);
  }
  record.in_vllm = json.contains("vllm");
  if (record.in_vllm) record.vllm = ParseVllm(json.at("vllm"));
  if (record.family.empty() || record.tensors.empty()) {
    return absl::InvalidArgumentError("a record of a family has the keys \"family\" and \"tensors\"");
  }
  return record;
}

std::vector<std::string> WrongModules(const FamilyRecord& record, const PlanFacts& plan) {
  std::set<std::string> expected = record.quantized;
  for (const std::string& tower : record.towers) {
    const auto inside = [&](const std::string& module) { return absl::StartsWith(module, tower); };
    if (std::none_of(plan.quantized.begin(), plan.quantized.end(), inside)) {
      std::erase_if(expected, [&](const std::string& module) { return inside(module); });
    }
  }
  std::vector<std::string> wrong;
  for (const std::string& module : plan.quantized) {
    if (expected.contains(module) || record.free.contains(module)) continue;
    const auto why = record.kept.find(absl::StrCat(module, kWeight));
    wrong.push_back(absl::StrCat(module, " is quantized: ", why == record.kept.end() ? "unknown" : why->second));
  }
  for (const std::string& module : expected) {
    if (plan.quantized.contains(module) || record.free.contains(module)) continue;
    const auto cls = record.classes.find(module);
    wrong.push_back(
        absl::StrCat(module, " is not quantized, its class is ", cls == record.classes.end() ? "Linear" : cls->second));
  }
  return wrong;
}

std::vector<std::string> WrongIgnores(const FamilyRecord& record, const PlanFacts& plan) {
  std::set<std::string> asked = LeftInFloat(record, plan);
  asked.insert(record.ask.begin(), record.ask.end());
  const IgnoreList ignore(plan.ignore);
  std::vector<std::string> wrong;
  for (const std::string& module : asked) {
    if (!ignore.Covers(module)) wrong.push_back(absl::StrCat("ignore does not cover ", module));
  }
  for (const std::set<std::string>* names : {&plan.quantized, &record.ask_quantized}) {
    for (const std::string& module : *names) {
      if (ignore.Covers(module)) wrong.push_back(absl::StrCat("ignore covers the quantized ", module));
    }
  }
  return wrong;
}

std::vector<std::string> WrongInVllm(const FamilyRecord& record, const PlanFacts& plan) {
  std::vector<std::string> entries;
  for (const std::string& entry : plan.ignore) entries.push_back(Renamed(record.vllm, entry));
  const IgnoreList ignore(entries);
  std::set<std::string> left, quantized;
  for (const std::string& module : LeftInFloat(record, plan)) {
    if (!IsHead(record, module)) left.insert(Renamed(record.vllm, module));
  }
  for (const std::string& experts : record.experts) {
    for (const std::string& name : record.vllm.expert_names) {
      left.insert(absl::StrCat(Renamed(record.vllm, experts), ".0.", name));
    }
  }
  for (const std::string& module : plan.quantized) quantized.insert(Renamed(record.vllm, module));
  std::vector<std::string> wrong;
  for (const std::string& module : left) {
    if (!ignore.Covers(module)) wrong.push_back(absl::StrCat("ignore does not cover ", module));
  }
  for (const std::string& module : quantized) {
    if (ignore.Covers(module)) wrong.push_back(absl::StrCat("ignore covers the quantized ", module));
    const std::string parent = module.substr(0, module.rfind('.') + 1), last = module.substr(parent.size());
    for (const auto& [fused, parts] : record.vllm.packed) {
      if (std::find(parts.begin(), parts.end(), last) == parts.end()) continue;
      for (const std::string& part : parts) {
        if (left.contains(absl::StrCat(parent, part))) {
          wrong.push_back(absl::StrCat(module, " is quantized, ", part, " is not, and vLLM fuses both"));
        }
      }
    }
  }
  return wrong;
}

}  // namespace aqt::families
