#include "aqt/collective/mesh.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aqt/collective/collective.h"
#include "aqt/collective/thread_group.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Ranks = std::vector<std::vector<int>>;

TEST(Mesh, GroupsAreThoseThatDifferAlongTheNames) {
  const Mesh mesh = *Mesh::Make({{"data", 4}, {"model", 2}});
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_EQ(mesh.ToString(), "data 4 x model 2");
  EXPECT_EQ(mesh.Groups({"data"}), (Ranks{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(mesh.Groups({"model"}), (Ranks{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(mesh.Groups({"model", "data"}), (Ranks{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(mesh.Groups({}).size(), 8);
}

TEST(Mesh, PositionsHaveTheLastAxisFastest) {
  const Mesh mesh = *Mesh::Make({{"a", 2}, {"b", 3}, {"c", 5}});
  for (int rank = 0; rank < mesh.size(); ++rank) {
    EXPECT_EQ((mesh.PositionOf(rank, "a") * 3 + mesh.PositionOf(rank, "b")) * 5 + mesh.PositionOf(rank, "c"), rank);
  }
  EXPECT_EQ(mesh.SizeOf("b"), 3);
  EXPECT_EQ(mesh.SizeOf("d"), 1);
  EXPECT_EQ(mesh.PositionOf(29, "d"), 0);
  EXPECT_FALSE(mesh.HasAxis("d"));
}

TEST(Mesh, RefusesAxesThatAreNone) {
  EXPECT_THAT(Mesh::Make({}), FailsWith(absl::StatusCode::kInvalidArgument, {"without axes"}));
  for (const std::vector<MeshAxis>& axes : std::vector<std::vector<MeshAxis>>{
           {{"", 2}}, {{"a,b", 2}}, {{"a", 0}}, {{"a", 2}, {"a", 2}}, {{"a", 1 << 16}, {"b", 1 << 15}}}) {
    EXPECT_THAT(Mesh::Make(axes), FailsWith(absl::StatusCode::kInvalidArgument, {axes.back().name, "different names"}));
  }
}

TEST(MeshGroups, EachProcessFindsItsGroups) {
  const Mesh mesh = *Mesh::Make({{"data", 3}, {"model", 2}});
  EXPECT_THAT(RunOnThreads(6,
                           [&](Collective& collective) -> absl::Status {
                             const MeshGroups groups = *MeshGroups::Make(mesh, collective);
                             const int rank = collective.rank();
                             EXPECT_EQ(groups.Along("data")->size(), 3);
                             EXPECT_EQ(groups.Along("data")->rank(), rank / 2);
                             EXPECT_EQ(groups.Along("model")->rank(), rank % 2);
                             EXPECT_EQ(groups.Along("data,model")->rank(), rank);
                             EXPECT_EQ(groups.Along("model,data"), nullptr);
                             int first = rank;
                             const absl::Status status = groups.Along("data")->Broadcast(&first, sizeof(first), 0);
                             EXPECT_EQ(first, rank % 2);
                             return status;
                           }),
              IsOk());
}

TEST(MeshGroups, RefusesAnotherNumberOfProcesses) {
  OneProcess alone;
  EXPECT_THAT(MeshGroups::Make(*Mesh::Make({{"data", 2}}), alone),
              FailsWith(absl::StatusCode::kInvalidArgument, {"data 2", "1 processes"}));
}

}  // namespace
}  // namespace aqt
