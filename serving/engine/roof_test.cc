#include "serving/engine/roof.h"

#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "gtest/gtest.h"
#include "serving/engine/engine_testing.h"

namespace aqt::serving {
namespace {

using ::aqt::testing::IsOk;

TEST(RoofTest, ProductsOfAFloatAndAQuantizedProgram) {
  const Program program = *PositionsProgram(/*batch=*/3, /*length=*/5);  // 16 -> 8 features
  const absl::StatusOr<Products> in_float = ProductsOf(program);
  ASSERT_THAT(in_float, IsOk());
  EXPECT_EQ(in_float->floating, 3 * 5 * 16 * 8);
  EXPECT_EQ(in_float->integer, 0);
  const absl::StatusOr<Products> in_int8 = ProductsOf(*Inject(program, Int8()));
  ASSERT_THAT(in_int8, IsOk());
  EXPECT_EQ(in_int8->floating, 0);
  EXPECT_EQ(in_int8->integer, 3 * 5 * 16 * 8);
}

TEST(RoofTest, AShareIsTheTimeOfTheProducts) {
  const absl::StatusOr<Products> roof = MeasureRoof(nullptr);
  ASSERT_THAT(roof, IsOk());
  EXPECT_GT(roof->integer, 0);
  EXPECT_GT(roof->floating, 0);
  // A second of integer products and one of floating point, in four seconds.
  EXPECT_NEAR(ShareOfRoof(*roof, *roof, 4), 0.5, 1e-12);
  EXPECT_EQ(ShareOfRoof(*roof, *roof, 0), 0);
}

}  // namespace
}  // namespace aqt::serving
