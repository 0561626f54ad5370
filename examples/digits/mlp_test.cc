#include "examples/digits/mlp.h"

#include <vector>

#include "examples/digits/dataset.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

Dataset TrainingRows() { return ReadDataset("examples/digits/digits.csv")->Slice(0, kTrainRows); }

TrainOptions Short() {
  TrainOptions options;
  options.hidden = {33};  // one column more than a register tile
  options.epochs = 2;
  return options;
}

TEST(Mlp, TheSameTwice) {
  const Dataset data = TrainingRows();
  const Mlp a = Train(data, Short()), b = Train(data, Short());
  ASSERT_EQ(a.size(), 2u);
  for (size_t l = 0; l < a.size(); ++l) {
    EXPECT_EQ(a[l].weight, b[l].weight);
    EXPECT_EQ(a[l].bias, b[l].bias);
  }
  TrainOptions other = Short();
  other.seed = 2;
  EXPECT_NE(a[0].weight, Train(data, other)[0].weight);
}

TEST(Mlp, Shapes) {
  TrainOptions options;
  options.epochs = 0;
  const Mlp mlp = Train(TrainingRows(), options);
  ASSERT_EQ(mlp.size(), 3u);
  int64_t weights = 0;
  for (const Linear& layer : mlp) {
    EXPECT_EQ(static_cast<int64_t>(layer.weight.size()), layer.in * layer.out);
    EXPECT_EQ(layer.bias, std::vector<float>(layer.out));
    weights += layer.in * layer.out;
  }
  EXPECT_GE(weights, 100000);
}

TEST(Mlp, TheLossFalls) {
  std::vector<double> losses;
  TrainOptions options = Short();
  options.epochs = 4;
  Train(TrainingRows(), options, [&](int epoch, double mean_loss) {
    losses.push_back(mean_loss);
    EXPECT_EQ(epoch, static_cast<int>(losses.size()));
  });
  ASSERT_EQ(losses.size(), 4u);
  EXPECT_LT(losses[0], 2.4);  // ln 10 = 2.303 is the loss of a guess
  for (int i = 1; i < 4; ++i) EXPECT_LT(losses[i], losses[i - 1]);
}

// One layer, one row of zero pixels, one step: all logits are equal, so softmax is 0.1 and only the bias moves, by
// -(0.1 - onehot) * learning_rate.
TEST(Mlp, OneStepByHand) {
  Dataset data{std::vector<float>(kPixels), {3}};
  TrainOptions options;
  options.hidden = {};
  options.epochs = 1;
  options.batch = 1;
  options.learning_rate = 0.5f;
  const Mlp mlp = Train(data, options);
  ASSERT_EQ(mlp.size(), 1u);
  for (int c = 0; c < kClasses; ++c) EXPECT_FLOAT_EQ(mlp[0].bias[c], c == 3 ? 0.45f : -0.05f);
  options.epochs = 0;
  EXPECT_EQ(mlp[0].weight, Train(data, options)[0].weight);
}

TEST(Mlp, AccuracyCountsTheLargestLogit) {
  // weight = 0, bias = onehot(5): every row is a 5.
  Linear layer{kPixels, kClasses, std::vector<float>(kPixels * kClasses), std::vector<float>(kClasses)};
  layer.bias[5] = 1;
  const Dataset data{std::vector<float>(4 * kPixels), {5, 1, 5, 5}};
  EXPECT_EQ(Accuracy({layer}, data), 0.75);
  EXPECT_EQ(Accuracy({layer}, Dataset()), 0.0);
}

}  // namespace
}  // namespace digits
