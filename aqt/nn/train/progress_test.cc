#include "aqt/nn/train/progress.h"

#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

TEST(ProgressLineTest, RatesAndTimes) {
  double now = 1000;
  const ProgressLine line(100, 16, 0, [&] { return now; });
  EXPECT_EQ(line.At(0, 2), "step 0/100  loss 2.0000  0 examples/s  0.0 steps/s  0:00 elapsed  ? left");
  now += 2;
  EXPECT_EQ(line.At(20, 0.43214), "step 20/100  loss 0.4321  160 examples/s  10.0 steps/s  0:02 elapsed  0:08 left");
  now += 60;
  // 31 steps in 62 s: 69 more take 138 s.
  EXPECT_EQ(line.At(31, 0.5), "step 31/100  loss 0.5000  8 examples/s  0.5 steps/s  1:02 elapsed  2:18 left");
  EXPECT_EQ(line.At(100, 0.1), "step 100/100  loss 0.1000  26 examples/s  1.6 steps/s  1:02 elapsed  0:00 left");
}

// Only the steps of this run count.
TEST(ProgressLineTest, AResumedRun) {
  double now = 0;
  const ProgressLine line(10000, 1, 4000, [&] { return now; });
  now = 100;
  EXPECT_EQ(line.At(4050, 1), "step 4050/10000  loss 1.0000  0 examples/s  0.5 steps/s  1:40 elapsed  3:18:20 left");
}

TEST(ProgressLineTest, TheMachinesClock) {
  const ProgressLine line(2, 1);
  EXPECT_EQ(line.At(0, 1).find("step 0/2  loss 1.0000  0 examples/s"), 0u);
}

}  // namespace
}  // namespace aqt::nn
