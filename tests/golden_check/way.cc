#include "tests/golden_check/way.h"

#include <algorithm>
#include <set>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace aqt::golden {
namespace {

// Whether the case has a configuration of one of these types.
template <class... Configs>
bool HasAnyOf(const GoldenCase& golden_case) {
  return golden_case.config.ok() && (std::holds_alternative<Configs>(*golden_case.config) || ...);
}
bool IsContraction(const GoldenCase& golden_case) {
  return HasAnyOf<DotConfig, EinsumConfig, ConvGeneralConfig, RaggedDotConfig>(golden_case);
}
bool IsModel(const GoldenCase& golden_case) {
  return HasAnyOf<MlpConfig, ServingConfig, ServedDotConfig, TrainingConfig>(golden_case);
}

}  // namespace

absl::string_view ToString(Way way) {
  switch (way) {
    case Way::kPlan: return "plan";
    case Way::kProgram: return "program";
    case Way::kPrepared: return "prepared";
  }
  return "?";
}

std::vector<Way> AllWays() { return {Way::kPlan, Way::kProgram, Way::kPrepared}; }

absl::StatusOr<std::vector<Way>> ParseWays(absl::string_view list) {
  std::set<Way> ways;
  for (const absl::string_view name : absl::StrSplit(list, ',')) {
    const std::vector<Way> all = AllWays();
    const auto way = std::find_if(all.begin(), all.end(), [&](Way known) { return ToString(known) == name; });
    if (way == all.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no way \"", name, "\"; there are plan, program and prepared"));
    }
    if (!ways.insert(*way).second) return absl::InvalidArgumentError(absl::StrCat("the way ", name, " comes twice"));
  }
  return std::vector<Way>(ways.begin(), ways.end());
}

std::vector<Way> WaysOf(const GoldenCase& golden_case) {
  if (IsContraction(golden_case)) return AllWays();
  if (IsModel(golden_case)) return {Way::kProgram, Way::kPrepared};
  return {Way::kPlan};
}

bool IsShown(const GoldenCase& golden_case, Way way, absl::string_view tensor) {
  if (way == Way::kPlan || !IsContraction(golden_case)) return true;
  if (tensor == "out" || tensor == "dlhs" || tensor == "drhs") return true;
  absl::ConsumePrefix(&tensor, "fwd.");
  return tensor == "lhs.scale" || tensor == "lhs.qvalue" || tensor == "rhs.scale" || tensor == "rhs.qvalue";
}

}  // namespace aqt::golden
