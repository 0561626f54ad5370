#ifndef EXAMPLES_DIGITS_MLP_H_
#define EXAMPLES_DIGITS_MLP_H_

// A classifier of digits, trained in f32 with only the standard library: Linear, ReLU, Linear, ReLU, Linear, softmax
// cross-entropy, stochastic gradient descent with momentum.
//
// The result is the same to the last bit on every machine: one thread, a fixed order of every sum, no fused
// multiply-add (BITS_COPTS), no function of the C library (exp is spelled out below), and only + - * / and comparisons,
// which IEEE 754 fixes.

#include <cstdint>
#include <functional>
#include <vector>

#include "examples/digits/dataset.h"

namespace digits {

// y = weight x + bias
struct Linear {
  int64_t in = 0;
  int64_t out = 0;
  std::vector<float> weight;  // [out, in]
  std::vector<float> bias;    // [out]
};
using Mlp = std::vector<Linear>;  // with max(0, y) between two layers

struct TrainOptions {
  std::vector<int64_t> hidden = {320, 256};  // 104,960 weights
  int epochs = 20;
  int64_t batch = 32;          // rows per step; the rest of an epoch that does not fill a batch is dropped
  float learning_rate = 0.1f;  // halved after every 10 epochs
  float momentum = 0.9f;
  uint64_t seed = 1;
};

// `progress`, if set, is called after each epoch (1, 2, ...) with the mean loss over its rows.
Mlp Train(const Dataset& data, const TrainOptions& options,
          const std::function<void(int epoch, double mean_loss)>& progress = nullptr);

// The share of rows in which the label has the largest logit.
double Accuracy(const Mlp& mlp, const Dataset& data);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_MLP_H_
