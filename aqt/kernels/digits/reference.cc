#include "aqt/kernels/digits/reference.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace aqt::kernels {
namespace {

struct Layer {
  double unit;
  std::vector<int64_t> v;  // by position within the group
};

// The layers of the finite elements of a short row.
std::vector<Layer> LayersOfShort(std::vector<float> left) {
  std::vector<Layer> layers;
  while (static_cast<int64_t>(layers.size()) < kMaxDigitLayers) {
    double largest = 0;
    for (const float element : left) largest = std::fmax(largest, std::fabs(element));
    if (largest == 0) break;
    Layer layer{std::ldexp(1.0, std::max(std::ilogb(largest) - 22, -149)), {}};
    if (std::nearbyint(largest / layer.unit) > 8355711) layer.unit *= 2;
    for (float& element : left) {
      layer.v.push_back(static_cast<int64_t>(std::nearbyint(element / layer.unit)));
      element = static_cast<float>(element - static_cast<double>(layer.v.back()) * layer.unit);
    }
    layers.push_back(layer);
  }
  return layers;
}

// The layers of the finite elements of a group.
std::vector<Layer> LayersOf(const DigitFormat& format, absl::Span<const float> x) {
  std::vector<Layer> layers;
  std::vector<float> left(x.begin(), x.end());
  for (float& element : left) element = std::fabs(element) < 0x1p-126f ? 0.0f : element;
  if (format.is_short()) return LayersOfShort(std::move(left));
  for (;;) {
    float largest = 0;
    int64_t nonzero = 0, large = 0;
    for (const float element : left) largest = std::fmax(largest, std::fabs(element));
    if (largest == 0) return layers;
    const double limit = std::ldexp(1.0, std::ilogb(largest) - kDigitLayerBits);
    for (const float element : left) {
      nonzero += element != 0;
      large += element != 0 && std::fabs(element) >= limit;
    }
    const bool is_last = 2 * large >= nonzero || static_cast<int64_t>(layers.size()) == kMaxDigitLayers - 1;
    Layer layer{std::ldexp(1.0, std::ilogb(largest) - 22), {}};
    if (std::nearbyint(largest / layer.unit) > 8355711) layer.unit *= 2;
    for (float& element : left) {
      const bool belongs = is_last || std::fabs(element) >= limit;
      layer.v.push_back(belongs ? static_cast<int64_t>(std::nearbyint(element / layer.unit)) : 0);
      if (belongs) element = 0;
    }
    layers.push_back(layer);
  }
}

// Returns the lowest digit, in [-128, 127]; v becomes the rest.
int64_t TakeDigit(int64_t& v) {
  int64_t digit = ((v % 256) + 256) % 256;
  if (digit >= 128) digit -= 256;
  v = (v - digit) / 256;
  return digit;
}

float Flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

}  // namespace

float ReferenceDigitSum(const DigitFormat& format, absl::Span<const float> x, absl::Span<const int8_t> q,
                        absl::Span<const float> scales) {
  float sum = 0;
  for (int64_t i = 0; i < format.NumScaleGroups(); ++i) {
    float part = 0, not_finite = 0;
    bool is_finite = true;
    for (int64_t g = 0; g < format.NumGroups(); ++g) {
      const DigitFormat::Group group = format.GroupAt(g);
      if (group.scale != i) continue;
      const absl::Span<const float> own = x.subspan(group.begin, group.size);
      for (int64_t k = 0; k < group.size; ++k) {
        if (std::isfinite(own[k])) continue;
        is_finite = false;
        not_finite += own[k] * static_cast<float>(q[group.begin + k]);
      }
      if (!is_finite) continue;
      for (const Layer& layer : LayersOf(format, own)) {
        int64_t s[3] = {};
        for (int64_t k = 0; k < group.size; ++k) {
          int64_t v = layer.v[k];
          for (int64_t& digit_sum : s) digit_sum += TakeDigit(v) * q[group.begin + k];
        }
        const float low = static_cast<float>(s[0] + 256 * s[1]);
        const float t = static_cast<float>(65536.0 * static_cast<double>(s[2]) + low);
        part += static_cast<float>(t * layer.unit);
      }
    }
    if (!is_finite) part = not_finite;
    if (scales.empty()) return part;
    const float product = Flushed(Flushed(part) * scales[i]);
    sum = Flushed(sum + product);
  }
  return sum;
}

float ReferenceIntegerSum(const DigitFormat& format, absl::Span<const int8_t> x, absl::Span<const float> units,
                          absl::Span<const int8_t> q, absl::Span<const float> scales) {
  float sum = 0;
  for (int64_t g = 0; g < format.NumScaleGroups(); ++g) {
    const DigitFormat::Group group = format.GroupAt(g);
    int32_t s = 0;
    for (int64_t k = group.begin; k < group.begin + group.size; ++k) s += x[k] * q[k];
    const float product = Flushed(Flushed(static_cast<float>(s) * units[g]) * scales[g]);
    sum = Flushed(sum + product);
  }
  return sum;
}

int64_t ReferenceDigitLayers(const DigitFormat& format, absl::Span<const float> x) {
  int64_t count = 0;
  for (int64_t g = 0; g < format.NumGroups(); ++g) {
    const DigitFormat::Group group = format.GroupAt(g);
    count += static_cast<int64_t>(LayersOf(format, x.subspan(group.begin, group.size)).size());
  }
  return count;
}

}  // namespace aqt::kernels
