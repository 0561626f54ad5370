#include "serving/convert/plan_input.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/tensor_views.h"

namespace aqt::serving {
namespace {

bool QuantizesAnExpert(const Plan& plan, const io::ViewSource& split) {
  return std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const TensorPlan& tensor) {
    return tensor.quantized() && split.ViewedBy(tensor.name()) != nullptr;
  });
}

// The weights of `split` and the tensors that they are parts of.
RuleSet::ExpertsOfSource PartsOf(const io::ViewSource& split) {
  return {.part_of = [&split](absl::string_view name) -> absl::string_view {
            const io::TensorInfo* const whole = split.ViewedBy(name);
            return whole == nullptr ? absl::string_view() : whole->name;
          },
          .why_kept = kSplitExperts};
}

}  // namespace

absl::StatusOr<Plan> PlanInput(ModelInput& input, const Recipe& recipe, CheckpointPlanOptions options) {
  AQT_RETURN_IF_ERROR(input.CheckFloat());  // before its parts look incomplete
  if (recipe.experts == Experts::kKeep) {
    options.experts.why_kept = "--experts keep";
    return MakePlan(input.tensors(), input.model(), recipe, options);
  }
  if (recipe.experts == Experts::kSplit) {
    AQT_RETURN_IF_ERROR(input.NeedSplit());
  } else if (const absl::Status status = input.Split(); !status.ok()) {
    // Nobody asked for it: what the table says of this kind of model does not fit this one.
    const std::string why = absl::StrCat("they cannot be split: ", status.message());
    options.experts.why_kept = why;
    return MakePlan(input.tensors(), input.model(), recipe, options);
  }
  const io::ViewSource* const split = input.split();
  if (split == nullptr) return MakePlan(input.tensors(), input.model(), recipe, options);
  CheckpointPlanOptions split_options = options;
  split_options.experts = PartsOf(*split);
  absl::StatusOr<Plan> plan = MakePlan(*split, input.model(), recipe, split_options);
  if (plan.ok()) plan->experts = input.DescribeExperts();
  if (recipe.experts == Experts::kSplit || (plan.ok() && QuantizesAnExpert(*plan, *split))) return plan;
  input.Unsplit();
  options.experts.why_kept = "no rule quantizes them";
  absl::StatusOr<Plan> kept = MakePlan(input.tensors(), input.model(), recipe, options);
  if (plan.ok() || !kept.ok()) return kept;
  return absl::Status(plan.status().code(),
                      absl::StrCat(plan.status().message(),
                                   "; --experts keep leaves the experts of a layer in one tensor, in floating point"));
}

absl::StatusOr<Explanation> ExplainInput(ModelInput& input, const Recipe& recipe, absl::string_view tensor) {
  // Decides whether experts are split; the errors of the plan belong to other tensors.
  CheckpointPlanOptions options;
  const absl::StatusOr<Plan> plan = PlanInput(input, recipe, options);
  if (!plan.ok() && recipe.experts != Experts::kKeep) AQT_RETURN_IF_ERROR(input.Split());
  const io::ViewSource* const split = input.split();
  if (split == nullptr) return Explain(input.tensors(), input.model(), recipe, tensor, options);
  Explanation explanation;
  std::string first, last;
  for (const io::TensorInfo& part : split->tensors()) {
    const io::TensorInfo* const whole = split->ViewedBy(part.name);
    if (whole == nullptr || whole->name != tensor) continue;
    explanation.tensor = *whole;
    if (first.empty()) first = part.name;
    last = part.name;
  }
  if (!first.empty()) {
    explanation.split = absl::StrCat("split into one weight for each expert, from ", io::Printable(first), " to ",
                                     io::Printable(last), ", which are explained by their own names");
    return explanation;
  }
  options.experts = PartsOf(*split);
  return Explain(*split, input.model(), recipe, tensor, options);
}

}  // namespace aqt::serving
