#include "examples/digits/mlp.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/types/span.h"

namespace digits {
namespace {

// Counter-based: the value depends only on (seed, i) (SplitMix64's finalizer).
uint64_t Hash(uint64_t seed, uint64_t i) {
  uint64_t z = seed * 0xd1342543de82ef95u + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Uniform in [-1, 1), a multiple of 2^-23, so that every step is exact.
float Uniform(uint64_t seed, uint64_t i) { return static_cast<float>(Hash(seed, i) >> 40) * 0x1p-23f - 1.0f; }

// e^x for x <= 0 by 2^n * e^r with |r| <= ln 2 / 2 and a Taylor polynomial in f64: within 1 f32 ulp, 0 below e^-80.
float Exp(float x) {
  if (x < -80.0f) return 0.0f;
  const double n = std::nearbyint(x * 1.4426950408889634);
  const double r = x - n * 0.6931471805599453;
  double sum = 1.0;
  for (int i = 10; i >= 1; --i) sum = 1.0 + sum * r / i;
  return static_cast<float>(std::ldexp(sum, static_cast<int>(n)));
}

// c[m,n] = a x b with a[i,k] at a[i * a_row + k * a_col] and b, c dense. Each sum runs over k in order.
void MatMul(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b, float* c) {
  constexpr int64_t kTile = 32;  // columns whose sums stay in registers
  for (int64_t i = 0; i < m; ++i) {
    int64_t j = 0;
    for (; j + kTile <= n; j += kTile) {
      float sum[kTile] = {};
      for (int64_t p = 0; p < k; ++p) {
        const float x = a[i * a_row + p * a_col];
        for (int64_t t = 0; t < kTile; ++t) sum[t] += x * b[p * n + j + t];
      }
      std::copy(sum, sum + kTile, c + i * n + j);
    }
    for (; j < n; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += a[i * a_row + p * a_col] * b[p * n + j];
      c[i * n + j] = sum;
    }
  }
}

// A layer during training: [in, out], so that the forward product runs along rows.
struct Trained {
  int64_t in, out;
  std::vector<float> weight, bias, weight_velocity, bias_velocity;
};

std::vector<float> Transposed(const std::vector<float>& x, int64_t rows, int64_t cols) {
  std::vector<float> y(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) y[j * rows + i] = x[i * cols + j];
  }
  return y;
}

// He's initial weights: uniform with variance 2 / in; biases 0.
std::vector<Trained> Initial(const TrainOptions& options) {
  std::vector<int64_t> sizes = {kPixels};
  sizes.insert(sizes.end(), options.hidden.begin(), options.hidden.end());
  sizes.push_back(kClasses);
  std::vector<Trained> layers;
  uint64_t counter = 0;
  for (size_t l = 0; l + 1 < sizes.size(); ++l) {
    const int64_t in = sizes[l], out = sizes[l + 1];
    Trained& layer = layers.emplace_back(Trained{in, out, {}, std::vector<float>(out), {}, std::vector<float>(out)});
    layer.weight.resize(in * out);
    layer.weight_velocity.resize(in * out);
    const float bound = std::sqrt(6.0f / static_cast<float>(in));
    for (float& w : layer.weight) w = bound * Uniform(options.seed, counter++);
  }
  return layers;
}

// Activations of every layer for `rows` rows of x: result[0] = x, result.back() = logits.
std::vector<std::vector<float>> Forward(const std::vector<Trained>& layers, std::vector<float> x, int64_t rows) {
  std::vector<std::vector<float>> activations = {std::move(x)};
  for (const Trained& layer : layers) {
    std::vector<float> y(rows * layer.out);
    MatMul(rows, layer.out, layer.in, activations.back().data(), layer.in, 1, layer.weight.data(), y.data());
    const bool last = &layer == &layers.back();
    for (int64_t i = 0; i < rows * layer.out; ++i) {
      y[i] += layer.bias[i % layer.out];
      if (!last) y[i] = std::max(y[i], 0.0f);
    }
    activations.push_back(std::move(y));
  }
  return activations;
}

// Turns logits into d(mean loss)/d(logits) = (softmax - onehot) / rows and returns the sum of the rows' losses.
double SoftmaxCrossEntropy(absl::Span<const int> labels, std::vector<float>& logits) {
  double loss = 0;
  const auto rows = static_cast<float>(labels.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    float* z = &logits[i * kClasses];
    const float top = *std::max_element(z, z + kClasses);
    const float at_label = z[labels[i]] - top;
    float sum = 0;
    for (int c = 0; c < kClasses; ++c) sum += z[c] = Exp(z[c] - top);
    for (int c = 0; c < kClasses; ++c) z[c] = (z[c] / sum - (c == labels[i] ? 1.0f : 0.0f)) / rows;
    loss += std::log(sum) - at_label;  // reported only: the weights do not depend on it
  }
  return loss;
}

void Step(const std::vector<float>& gradient, float learning_rate, float momentum, std::vector<float>& velocity,
          std::vector<float>& weight) {
  for (size_t i = 0; i < weight.size(); ++i) {
    velocity[i] = momentum * velocity[i] - learning_rate * gradient[i];
    weight[i] += velocity[i];
  }
}

// The gradients of all layers. Each is applied as soon as the layers below no longer need its weights.
void Backward(const std::vector<std::vector<float>>& activations, std::vector<float> dy, int64_t rows,
              float learning_rate, float momentum, std::vector<Trained>& layers) {
  for (int64_t l = static_cast<int64_t>(layers.size()) - 1; l >= 0; --l) {
    Trained& layer = layers[l];
    const std::vector<float>& x = activations[l];
    std::vector<float> dweight(layer.in * layer.out), dbias(layer.out), dx;
    MatMul(layer.in, layer.out, rows, x.data(), 1, layer.in, dy.data(), dweight.data());
    for (int64_t i = 0; i < rows * layer.out; ++i) dbias[i % layer.out] += dy[i];
    if (l > 0) {
      dx.resize(rows * layer.in);
      const std::vector<float> transposed = Transposed(layer.weight, layer.in, layer.out);
      MatMul(rows, layer.in, layer.out, dy.data(), layer.out, 1, transposed.data(), dx.data());
      for (int64_t i = 0; i < rows * layer.in; ++i) {
        if (x[i] == 0.0f) dx[i] = 0.0f;  // ReLU was inactive
      }
    }
    Step(dweight, learning_rate, momentum, layer.weight_velocity, layer.weight);
    Step(dbias, learning_rate, momentum, layer.bias_velocity, layer.bias);
    dy = std::move(dx);
  }
}

}  // namespace

Mlp Train(const Dataset& data, const TrainOptions& options,
          const std::function<void(int epoch, double mean_loss)>& progress) {
  std::vector<Trained> layers = Initial(options);
  std::vector<int64_t> order(data.rows());
  std::iota(order.begin(), order.end(), 0);
  float learning_rate = options.learning_rate;
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    for (int64_t i = data.rows() - 1; i > 0; --i) {
      std::swap(order[i], order[Hash(options.seed + epoch, i) % (i + 1)]);
    }
    double loss = 0;
    int64_t seen = 0;
    for (; seen + options.batch <= data.rows(); seen += options.batch) {
      std::vector<float> x;
      std::vector<int> labels;
      for (int64_t i = seen; i < seen + options.batch; ++i) {
        x.insert(x.end(), data.row(order[i]).begin(), data.row(order[i]).end());
        labels.push_back(data.labels[order[i]]);
      }
      std::vector<std::vector<float>> activations = Forward(layers, std::move(x), options.batch);
      loss += SoftmaxCrossEntropy(labels, activations.back());
      Backward(activations, activations.back(), options.batch, learning_rate, options.momentum, layers);
    }
    if (epoch % 10 == 0) learning_rate /= 2;
    if (progress) progress(epoch, loss / static_cast<double>(std::max<int64_t>(seen, 1)));
  }
  Mlp mlp;
  for (const Trained& layer : layers) {
    mlp.push_back({layer.in, layer.out, Transposed(layer.weight, layer.in, layer.out), layer.bias});
  }
  return mlp;
}

double Accuracy(const Mlp& mlp, const Dataset& data) {
  std::vector<Trained> layers;
  for (const Linear& layer : mlp) {
    layers.push_back({layer.in, layer.out, Transposed(layer.weight, layer.out, layer.in), layer.bias, {}, {}});
  }
  const std::vector<float> logits = Forward(layers, data.pixels, data.rows()).back();
  int64_t right = 0;
  for (int64_t i = 0; i < data.rows(); ++i) {
    const float* z = &logits[i * kClasses];
    right += std::max_element(z, z + kClasses) - z == data.labels[i];
  }
  return static_cast<double>(right) / static_cast<double>(std::max<int64_t>(data.rows(), 1));
}

}  // namespace digits
