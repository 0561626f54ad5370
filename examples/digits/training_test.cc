#include "examples/digits/training.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/testing/status_matchers.h"
#include "examples/digits/classifier.h"
#include "examples/digits/cross_validation.h"
#include "examples/digits/dataset.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::testing::ElementsAre;

// Every row once per epoch, except those that do not fill a batch; each epoch in a different order.
TEST(Training, RowsOfStep) {
  TrainingOptions options;
  options.batch = 4;
  EXPECT_EQ(StepsPerEpoch(options, 14), 3);
  std::vector<int64_t> epochs[2];
  for (int64_t step = 0; step < 6; ++step) {
    const std::vector<int64_t> rows = RowsOfStep(options, 14, step);
    EXPECT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows, RowsOfStep(options, 14, step));
    epochs[step / 3].insert(epochs[step / 3].end(), rows.begin(), rows.end());
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (std::vector<int64_t>& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(std::unique(epoch.begin(), epoch.end()), epoch.end());
    EXPECT_GE(epoch.front(), 0);
    EXPECT_LT(epoch.back(), 14);
  }
  TrainingOptions other = options;
  other.seed = 2;
  EXPECT_NE(RowsOfStep(other, 14, 0), RowsOfStep(options, 14, 0));
}

TEST(Training, BatchOfStep) {
  Dataset data{std::vector<float>(3 * kPixels), {7, 0, 9}};
  for (int64_t i = 0; i < 3; ++i) data.pixels[i * kPixels + 5] = static_cast<float>(i);
  TrainingOptions options;
  options.batch = 2;
  const std::vector<int64_t> rows = RowsOfStep(options, 3, 0);
  const aqt::SlotValues batch = BatchOfStep(data, options, 0);
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(batch.at(kPixelsSlot).View<float>()[i * kPixels + 5], static_cast<float>(rows[i]));
    for (int64_t c = 0; c < kClasses; ++c) {
      EXPECT_EQ(batch.at(kLabelsSlot).View<float>()[i * kClasses + c], c == data.labels[rows[i]] ? 1.0f : 0.0f);
    }
  }
}

TEST(Training, AccuracyCountsTheLargestLogit) {
  aqt::ArrayBuilder logits(aqt::DType::kF32, {3, kClasses});  // zeros: the first one counts
  logits.Mutable<float>()[4] = 1;
  logits.Mutable<float>()[kClasses + 4] = -1;
  const aqt::Array array = std::move(logits).Build();
  EXPECT_EQ(Accuracy(array, {4, 4, 0}), 2.0 / 3);
  EXPECT_EQ(Accuracy(array, {}), 0.0);
}

TEST(Training, Options) {
  const auto fails = [](void (*change)(TrainingOptions&)) {
    TrainingOptions options;
    change(options);
    return Validate(options, 100);
  };
  EXPECT_THAT(fails([](TrainingOptions&) {}), IsOk());
  EXPECT_THAT(fails([](TrainingOptions& o) { o.epochs = 0; }), IsOk());
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(fails([](TrainingOptions& o) { o.epochs = -1; }), FailsWith(kCode, {"epochs = -1"}));
  EXPECT_THAT(fails([](TrainingOptions& o) { o.batch = 0; }), FailsWith(kCode, {"batch = 0"}));
  EXPECT_THAT(fails([](TrainingOptions& o) { o.batch = 101; }), FailsWith(kCode, {"batch = 101", "100 rows"}));
  EXPECT_THAT(fails([](TrainingOptions& o) { o.hidden = {8, 0}; }), FailsWith(kCode, {"hidden layer = 0"}));
  EXPECT_THAT(fails([](TrainingOptions& o) { o.learning_rate = 0; }), FailsWith(kCode, {"learning rate = 0"}));
}

TEST(CrossValidation, FoldsCoverAllRowsOnce) {
  const std::vector<Fold> folds = Folds(11, 3, 1);
  ASSERT_EQ(folds.size(), 3u);
  std::vector<int64_t> all;
  for (const Fold& fold : folds) {
    EXPECT_EQ(fold.train.size() + fold.test.size(), 11u);
    EXPECT_GE(fold.test.size(), 3u);
    EXPECT_LE(fold.test.size(), 4u);
    for (const int64_t row : fold.test) EXPECT_EQ(std::count(fold.train.begin(), fold.train.end(), row), 0);
    all.insert(all.end(), fold.test.begin(), fold.test.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_EQ(Folds(11, 3, 1)[0].test, folds[0].test);
  EXPECT_NE(Folds(11, 3, 2)[0].test, folds[0].test);
}

TEST(CrossValidation, Summary) {
  const Summary summary = Summarize({{0.5, {}}, {0.75, {}}, {1.0, {}}});
  EXPECT_EQ(summary.mean, 0.75);
  EXPECT_DOUBLE_EQ(summary.deviation, 0.25);
  EXPECT_EQ(Summarize({{0.5, {}}}).deviation, 0);
}

TEST(CrossValidation, RefusesOneFold) {
  const Dataset data{std::vector<float>(3 * kPixels), {0, 1, 2}};
  for (const int64_t folds : {1, 4}) {
    EXPECT_THAT(CrossValidate(data, folds, {}, {}), FailsWith(absl::StatusCode::kInvalidArgument, {"expected 2 to 3"}));
  }
}

}  // namespace
}  // namespace digits
