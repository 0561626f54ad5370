#include "aqt/jax/plans.h"

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/jax/bounded_cache.h"
#include "aqt/jax/contraction_spec.h"

namespace aqt::jax {

void AppendAval(const Aval& aval, std::string* key) {
  const auto append = [&](int64_t number) { key->append(reinterpret_cast<const char*>(&number), sizeof(number)); };
  append(static_cast<int64_t>(aval.dtype));
  append(aval.shape.rank());
  for (const int64_t extent : aval.shape) append(extent);
}

absl::StatusOr<Aval> ParseAval(absl::string_view text) {
  const size_t bracket = text.find('[');
  const std::optional<DType> dtype = DTypeFromString(text.substr(0, bracket));
  const auto error = [&] {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a dtype and a shape, such as f32[2,3]"));
  };
  if (!dtype.has_value() || bracket == absl::string_view::npos || text.back() != ']') return error();
  Aval aval{*dtype, {}};
  for (const absl::string_view extent :
       absl::StrSplit(text.substr(bracket + 1, text.size() - bracket - 2), ',', absl::SkipEmpty())) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(extent, &value) || value < 0) return error();
    aval.shape.push_back(value);
  }
  AQT_RETURN_IF_ERROR(CheckedNumElements(aval.shape.extents(), SizeOf(aval.dtype)).status());
  return aval;
}

absl::StatusOr<std::shared_ptr<const DotGeneralPlan>> PlanOf(absl::string_view spec, const Aval& lhs, const Aval& rhs,
                                                             PlanPasses passes) {
  constexpr size_t kMostPlans = 256;
  static auto* const plans = new BoundedCache<DotGeneralPlan>(kMostPlans);  // lives as long as the process
  std::string key(spec);
  key.push_back(passes == PlanPasses::kForwardOnly ? 'f' : 'b');
  AppendAval(lhs, &key);
  AppendAval(rhs, &key);
  return plans->Get(key, [&]() -> absl::StatusOr<DotGeneralPlan> {
    AQT_ASSIGN_OR_RETURN(const ContractionSpec parsed, ParseContractionSpec(spec));
    return MakePlan(parsed, lhs, rhs, passes);
  });
}

}  // namespace aqt::jax
