#include "aqt/ops/fp8/fp8_sharding.h"

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "aqt/collective/mesh.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Ranks = std::vector<std::vector<int>>;

const std::array<std::string, 2> kX = {"batch", "embed"}, kKernel = {"hidden", "mlp"};

Mesh TestMesh() { return *Mesh::Make({{"data", 4}, {"model", 2}}); }
const Ranks kNone = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
const Ranks kData = {{0, 2, 4, 6}, {1, 3, 5, 7}};
const Ranks kModel = {{0, 1}, {2, 3}, {4, 5}, {6, 7}};
const Ranks kAll = {{0, 1, 2, 3, 4, 5, 6, 7}};

// The groups along axes separated by commas.
Ranks Groups(const std::string& axes) {
  return TestMesh().Groups(std::vector<std::string>(absl::StrSplit(axes, ',', absl::SkipEmpty())));
}

struct Row {
  std::vector<AxisRule> rules;
  Ranks x, kernel, dy;  // the groups of the largest magnitudes
  Ranks y_sum, dk_sum;  // the groups of sums
  std::string gathered_x, gathered_kernel = "";
};

// The groups in NVIDIA's partition tests of the layer for Flax, on data 4 x model 2. The last row also adds dk over
// data: its rows are divided there.
TEST(Fp8Sharding, GroupsAreThoseOfTheOriginal) {
  const AxisRule batch{"batch", "data"}, hidden{"hidden", "model"}, mlp{"mlp", "model"}, embed{"embed", "model"};
  const Row rows[] = {
      {{batch}, kData, kNone, kData, kNone, kData, ""},
      {{hidden}, kNone, kModel, kNone, kModel, kNone, ""},
      {{mlp}, kNone, kModel, kModel, kNone, kNone, ""},
      {{batch, hidden}, kData, kModel, kData, kModel, kData, ""},
      {{batch, mlp}, kData, kModel, kAll, kNone, kData, ""},
      {{batch, embed, hidden}, kAll, kModel, kData, kModel, kData, ""},
      {{batch, {"hidden", "data"}, embed, mlp}, kAll, kAll, kAll, kNone, kData, "model", "data"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(&row - rows);
    const auto plan = PlanFp8Dot(row.rules, TestMesh(), kX, kKernel);
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(Groups(plan->AxesOf(plan->x)), row.x);
    EXPECT_EQ(Groups(plan->AxesOf(plan->kernel)), row.kernel);
    EXPECT_EQ(Groups(plan->AxesOf(plan->y)), row.dy);
    EXPECT_EQ(Groups(plan->YSum()), row.y_sum);
    EXPECT_EQ(Groups(plan->DkSum()), row.dk_sum);
    EXPECT_EQ(plan->x.columns == plan->contracted ? "" : plan->x.columns, row.gathered_x);
    EXPECT_EQ(plan->kernel.rows == plan->contracted ? "" : plan->kernel.rows, row.gathered_kernel);
    EXPECT_EQ(plan->kernel.columns, plan->y.columns);
  }
}

// dx is a sum over the processes that divide the columns of y. The original's tests take no gradient of x.
TEST(Fp8Sharding, GradientOfTheInputIsASumOverTheColumns) {
  EXPECT_EQ(PlanFp8Dot({{"mlp", "model"}}, TestMesh(), kX, kKernel)->DxSum(), "model");
  EXPECT_EQ(PlanFp8Dot({{"batch", "data"}}, TestMesh(), kX, kKernel)->DxSum(), "");
}

TEST(Fp8Sharding, AnAxisOfTheMeshDividesAMatrixOnce) {
  const std::vector<AxisRule> rules = {{"embed", "data"}, {"batch", "data"}, {"embed", "model"}, {"mlp", "data"}};
  const auto plan = PlanFp8Dot(rules, TestMesh(), kX, kKernel);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->x, (MatrixLayout{"data", "model"}));
  // The columns of y would be divided along data, like its rows: the kernel is gathered.
  EXPECT_EQ(plan->kernel, (MatrixLayout{"", "data"}));
  EXPECT_EQ(plan->y, (MatrixLayout{"data", ""}));
  EXPECT_EQ(plan->KernelInProduct(), (MatrixLayout{"model", ""}));
}

TEST(Fp8Sharding, TheFirstRuleHolds) {
  EXPECT_EQ(*LayoutOf({{"batch", ""}, {"batch", "data"}}, TestMesh(), kX), (MatrixLayout{"", ""}));
}

TEST(Fp8Sharding, RefusesAnAxisThatTheMeshHasNot) {
  EXPECT_THAT(PlanFp8Dot({{"batch", "pipe"}}, TestMesh(), kX, kKernel),
              FailsWith(absl::StatusCode::kInvalidArgument, {"\"batch\" -> \"pipe\"", "data 4 x model 2"}));
}

}  // namespace
}  // namespace aqt
