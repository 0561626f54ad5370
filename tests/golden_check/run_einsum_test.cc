// Recorded configurations of equations.

#include "absl/status/statusor.h"
#include "aqt/core/aval.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/einsum.h"
#include "gtest/gtest.h"
#include "tests/golden_check/golden_case.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {
namespace {

// The product gets the recorded configuration, whatever the plan exchanges.
TEST(ConfigOfEquation, OfAProductReachesIt) {
  EinsumConfig config{.equation = "bc,ab->ac", .config = DotGeneralMake(8, 4), .of_product = true};
  config.config.fwd.lhs_mid_alpha = 0.25;
  config.config.fwd.rhs_mid_alpha = 0.75;
  const Aval lhs{DType::kF32, {2, 3}}, rhs{DType::kF32, {5, 2}};
  for (const Compat& compat : {Compat(), Compat::Original()}) {
    const Semantics semantics{.compat = compat};
    const absl::StatusOr<DotGeneralConfig> sides = ConfigOfEquation(config, lhs, rhs, semantics);
    ASSERT_TRUE(sides.ok()) << sides.status();
    const absl::StatusOr<EinsumPlan> plan =
        EinsumPlan::Make(config.equation, *sides, lhs, rhs, {.semantics = semantics});
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(plan->swapped());
    EXPECT_EQ(plan->dot_general().config(), config.config) << (compat == Compat() ? "default" : "original");
  }
}

}  // namespace
}  // namespace aqt::golden
