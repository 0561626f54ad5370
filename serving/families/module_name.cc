#include "serving/families/module_name.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace aqt::serving {
namespace {

bool IsNumber(absl::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit);
}

}  // namespace

absl::string_view ParentOf(absl::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == absl::string_view::npos ? absl::string_view() : module.substr(0, dot);
}

absl::string_view LastPartOf(absl::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == absl::string_view::npos ? module : module.substr(dot + 1);
}

absl::string_view WithoutTrailingNumbers(absl::string_view module) {
  absl::string_view name = module;
  while (IsNumber(LastPartOf(name))) {
    if (name.find('.') == absl::string_view::npos) return module;
    name = ParentOf(name);
  }
  return name;
}

absl::string_view BeforeFirstNumber(absl::string_view module) {
  size_t begin = 0;
  while (begin <= module.size()) {
    const size_t end = std::min(module.find('.', begin), module.size());
    if (IsNumber(module.substr(begin, end - begin))) return module.substr(0, begin == 0 ? 0 : begin - 1);
    begin = end + 1;
  }
  return module;
}

std::string WithoutNumbers(absl::string_view module) {
  std::vector<absl::string_view> parts = absl::StrSplit(module, '.');
  for (absl::string_view& part : parts) {
    if (IsNumber(part)) part = "#";
  }
  return absl::StrJoin(parts, ".");
}

absl::string_view ExpertsOf(absl::string_view name) {
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const absl::string_view part = name.substr(begin, end - begin);
    if (part == "experts" || part == "local_experts" || part == "expert") return name.substr(0, end);
    begin = end + 1;
  }
  return absl::string_view();
}

}  // namespace aqt::serving
