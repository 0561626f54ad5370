#include "aqt/ops/panel_cache.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

class PanelCacheTest : public ::testing::Test {
 protected:
  Array Get(const std::vector<Array>& sources, absl::string_view form) {
    return *cache_.Get(sources, form, [&]() -> absl::StatusOr<Array> {
      ++packs_;
      return Array::Of<uint8_t>({1, 2, 3}, {3});
    });
  }
  PanelCache cache_;
  int packs_ = 0;
};

TEST_F(PanelCacheTest, SharesWhatIsPackedFromOneArrayInOneForm) {
  const Array a = Array::Of<float>({1, 2}, {2}), same_values = Array::Of<float>({1, 2}, {2});
  const Array first = Get({a}, "wide"), second = Get({a}, "wide");
  EXPECT_EQ(first.data(), second.data());
  EXPECT_EQ(packs_, 1);
  const Array narrow = Get({a}, "narrow"), other = Get({same_values}, "wide"), both = Get({a, same_values}, "wide");
  EXPECT_EQ(packs_, 4);
  EXPECT_EQ(cache_.size(), 4u);
}

TEST_F(PanelCacheTest, HoldsNothingAlive) {
  std::optional<Array> source = Array::Of<float>({1, 2}, {2}), panels = Get({*source}, "wide");
  panels.reset();
  EXPECT_EQ(cache_.size(), 0u);
  panels = Get({*source}, "wide");
  EXPECT_EQ(packs_, 2);
  source.reset();
  EXPECT_EQ(cache_.size(), 0u);
}

// A new array may have the address of a dead one.
TEST_F(PanelCacheTest, AnAddressIsNotAnArray) {
  alignas(64) static float memory = 0;
  std::vector<Array> kept;
  for (int i = 0; i < 3; ++i) {
    memory = static_cast<float>(i);
    kept.push_back(Get({Array({DType::kF32, {}}, std::shared_ptr<const void>(&memory, [](const void*) {}))}, "wide"));
  }
  EXPECT_EQ(packs_, 3);
}

TEST_F(PanelCacheTest, AFailureIsNotKept) {
  const Array source = Array::Scalar(1.0f);
  const auto fails = [] { return absl::StatusOr<Array>(absl::InternalError("no")); };
  EXPECT_EQ(cache_.Get({source}, "wide", fails).status(), absl::InternalError("no"));
  Get({source}, "wide");
  EXPECT_EQ(packs_, 1);
}

}  // namespace
}  // namespace aqt::internal
