#include "examples/precision/f16_training.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "examples/digits/dataset.h"
#include "gtest/gtest.h"

namespace precision {
namespace {

digits::Dataset Data() { return *digits::ReadDataset("examples/digits/digits.csv"); }

void ExpectClaims(const std::vector<Curve>& curves) {
  ASSERT_EQ(curves.size(), 4u);
  const double first = curves[0].loss.front(), f32 = curves[0].loss.back();
  EXPECT_LT(f32, 0.5 * first);
  EXPECT_TRUE(std::isfinite(curves[1].loss.front()));
  EXPECT_FALSE(std::isfinite(curves[1].loss.back())) << "f16 without help";
  for (const size_t i : {2, 3}) {
    EXPECT_NEAR(curves[i].loss.back(), f32, 0.02 * f32) << curves[i].name;
  }
}

TEST(F16Training, NeedsHelpAtSmallSizeToo) {
  const absl::StatusOr<std::vector<Curve>> curves = TrainInF16(Data(), {.rows = 64, .hidden = 16, .steps = 60});
  ASSERT_TRUE(curves.ok()) << curves.status();
  ExpectClaims(*curves);
}

// Only the gradients exceed f16: with a smaller loss, f16 needs no help.
TEST(F16Training, ASmallLossNeedsNoHelp) {
  const absl::StatusOr<std::vector<Curve>> curves =
      TrainInF16(Data(), {.rows = 64, .hidden = 16, .steps = 60, .loss_factor = 8});
  ASSERT_TRUE(curves.ok()) << curves.status();
  const double f32 = (*curves)[0].loss.back();
  for (const Curve& curve : *curves) EXPECT_NEAR(curve.loss.back(), f32, 0.02 * f32) << curve.name;
}

TEST(F16Training, ThePictureIsWhatTheCommandDraws) {
  const absl::StatusOr<std::vector<Curve>> curves = TrainInF16(Data(), {});
  ASSERT_TRUE(curves.ok()) << curves.status();
  ExpectClaims(*curves);
  const absl::StatusOr<std::string> picture =
      aqt::io::ReadFile(aqt::io::LocalFileSystem(), "examples/precision/f16_training.svg", 1 << 20);
  ASSERT_TRUE(picture.ok()) << picture.status();
  EXPECT_EQ(F16TrainingSvg(*curves), *picture) << "./bazelw run //examples/precision:f16_training -- --out=...";
}

}  // namespace
}  // namespace precision
