#include "serving/cli/flags/suggest.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace aqt::serving {
namespace {

constexpr absl::string_view kBegin = "suggest:";  // of the name of such a validator

}  // namespace

CLI::Validator Suggest(const std::vector<std::string>& values) {
  return CLI::Validator([](std::string&) { return std::string(); }, /*validator_desc=*/"",
                        absl::StrCat(kBegin, absl::StrJoin(values, ",")));
}

Suggestions SuggestionsOf(const CLI::Option& option) {
  // The library lists validators only of options that may change.
  CLI::Option& changeable = const_cast<CLI::Option&>(option);
  try {
    for (int i = 0;; ++i) {
      const CLI::Validator& validator = *changeable.get_validator(i);
      absl::string_view name = validator.get_name();
      if (absl::ConsumePrefix(&name, kBegin)) return {absl::StrSplit(name, ',', absl::SkipEmpty()), false};
      const std::string description = validator.get_description();
      absl::string_view members = description;  // "{a,b}", of IsMember
      if (absl::ConsumePrefix(&members, "{") && absl::ConsumeSuffix(&members, "}")) {
        return {absl::StrSplit(members, ',', absl::SkipEmpty()), true};
      }
    }
  } catch (const CLI::OptionNotFound&) {  // that was the last one
  }
  return {};
}

}  // namespace aqt::serving
