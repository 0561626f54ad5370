#include "aqt/ops/functions.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"

namespace aqt::ops {
Value Relu(const ValueOrNumber& x) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  // 0 or NaN.
  const Value rest = StopGradient(Max(value, 0.0));
  return Select(Greater(value, 0.0), value, rest);
}

Value Gelu(const ValueOrNumber& x) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  return value * 0.5 * (Erf(value * std::sqrt(0.5)) + 1.0);
}

Value GeluTanh(const ValueOrNumber& x) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  const Value inner = (value + IntegerPow(value, 3) * 0.044715) * std::sqrt(2 / std::numbers::pi);
  return value * 0.5 * (Tanh(inner) + 1.0);
}

Value Silu(const ValueOrNumber& x) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  return value * Logistic(value);
}

Value Mean(const ValueOrNumber& x) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  return ReduceSum(value) / static_cast<double>(value.shape().num_elements());
}

Value Mean(const ValueOrNumber& x, const Axes& axes, bool keepdims) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  const Value sum = ReduceSum(value, axes, keepdims);
  const int64_t results = sum.shape().num_elements();
  return sum / (static_cast<double>(value.shape().num_elements()) / static_cast<double>(std::max<int64_t>(results, 1)));
}

namespace {

// x minus its maximum along `axis`.
Value BelowMaximum(const Value& x, int64_t axis) { return x - StopGradient(ReduceMax(x, {axis}, /*keepdims=*/true)); }

}  // namespace

Value Softmax(const ValueOrNumber& x, int64_t axis) {
  const CallSite site(x.where());
  const Value powers = Exp(BelowMaximum(x.As(DType::kF32), axis));
  return powers / ReduceSum(powers, {axis}, /*keepdims=*/true);
}

Value LogSoftmax(const ValueOrNumber& x, int64_t axis) {
  const CallSite site(x.where());
  const Value shifted = BelowMaximum(x.As(DType::kF32), axis);
  return shifted - Log(ReduceSum(Exp(shifted), {axis}, /*keepdims=*/true));
}

namespace {

// The windows of x [batch, spatial..., channels], or the reason why there are none.
absl::StatusOr<WindowDims> PoolWindows(const Shape& shape, const PerAxis& window, const PerAxis& strides,
                                       PoolPadding padding) {
  const int64_t spatial = shape.rank() - 2;
  if (spatial < 0 || static_cast<int64_t>(window.size()) != spatial) {
    return absl::InvalidArgumentError(absl::StrCat("the window has ", window.size(), " numbers for the ",
                                                   std::max<int64_t>(spatial, 0),
                                                   " spatial axes of [batch, spatial..., channels]"));
  }
  if (!strides.empty() && strides.size() != window.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", strides.size(), " strides and ", window.size(), " extents of the window"));
  }
  WindowDims dims{{1}, {1}, {0}, {0}};
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t extent = shape[1 + i], size = window[i], stride = strides.empty() ? 1 : strides[i];
    if (size < 1 || stride < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("window ", size, " and stride ", stride, " of spatial axis ", i, " are not both positive"));
    }
    const int64_t covered = extent == 0 ? 0 : (extent - 1) / stride * stride + size;
    const int64_t missing = padding == PoolPadding::kSame ? std::max<int64_t>(covered - extent, 0) : 0;
    dims.window.push_back(size);
    dims.stride.push_back(stride);
    dims.low.push_back(missing / 2);
    dims.high.push_back(missing - missing / 2);
  }
  for (PerAxis* numbers : {&dims.window, &dims.stride}) numbers->push_back(1);
  for (PerAxis* numbers : {&dims.low, &dims.high}) numbers->push_back(0);
  return dims;
}

}  // namespace

Value OneHot(const ValueOrNumber& indices, int64_t classes, DType dtype) {
  const CallSite site(indices.where());
  const Value value = indices.As(DType::kS32);
  if (classes < 1) {
    return Refuse(absl::InvalidArgumentError(absl::StrCat("classes = ", classes, ", expected at least 1")), "one_hot",
                  {value}, indices.where());
  }
  Shape column = value.shape();
  column.push_back(1);
  return Cast(Equal(Reshape(value, column), Iota(value.dtype(), {classes}, 0)), dtype);
}

Value MaxPool(const ValueOrNumber& x, const PerAxis& window, const PerAxis& strides, PoolPadding padding) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  const absl::StatusOr<WindowDims> dims = PoolWindows(value.shape(), window, strides, padding);
  if (!dims.ok()) return Refuse(dims.status(), "max_pool", {value}, x.where());
  return ReduceWindowMax(value, *dims);
}

Value AvgPool(const ValueOrNumber& x, const PerAxis& window, const PerAxis& strides, PoolPadding padding,
              bool count_padding) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  const absl::StatusOr<WindowDims> dims = PoolWindows(value.shape(), window, strides, padding);
  if (!dims.ok()) return Refuse(dims.status(), "avg_pool", {value}, x.where());
  const Value sums = ReduceWindowSum(value, *dims);
  if (count_padding || padding == PoolPadding::kValid) {
    double count = 1;
    for (const int64_t size : window) count *= static_cast<double>(size);
    return sums / count;
  }
  Shape one_example = value.shape();
  one_example[0] = one_example[one_example.rank() - 1] = 1;
  return sums / ReduceWindowSum(BroadcastTo(ValueOrNumber(1.0).As(value.dtype()), one_example), *dims);
}

Value RandomUniform(const ValueOrNumber& key, const Shape& shape) {
  const CallSite site(key.where());
  // The upper 23 bits; f64 holds them exactly.
  const Value bits = Cast(RandomBits(key, shape), DType::kF64);
  return Cast(Floor(bits * 0x1p-9) * 0x1p-23, DType::kF32);
}

Value SoftmaxCrossEntropy(const ValueOrNumber& logits, const ValueOrNumber& labels) {
  const CallSite site(logits.where());
  const Value log_probabilities = LogSoftmax(logits.value());
  return -Mean(ReduceSum(labels.As(log_probabilities.dtype()) * log_probabilities, {-1}));
}

}  // namespace aqt::ops
