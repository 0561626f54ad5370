#include "aqt/quant/tensor/gptq.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/tensor/linalg.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

// Rows that are processed together and share one pass over the feature matrix.
constexpr int64_t kBlock = 64;

template <class F>
void ForEachBlock(int64_t n, Executor* executor, F f) {
  const auto run = [&](int64_t block) { f(block * kBlock, std::min(block * kBlock + kBlock, n)); };
  const int64_t blocks = CeilDiv(n, kBlock);
  if (executor != nullptr) return executor->ParallelFor(blocks, run);
  for (int64_t block = 0; block < blocks; ++block) run(block);
}

// A tensor with its contracting axes moved to the end: [rows, features].
struct FeaturesLast {
  Axes axes;
  int64_t rows = 1, features = 1;

  // An ArrayRef or MutableArrayRef.
  template <class Ref>
  Ref Permuted(const Ref& x) const {
    Ref out = x;
    for (int64_t i = 0; i < x.shape.rank(); ++i) {
      out.shape[i] = x.shape[axes[i]];
      out.strides[i] = x.strides[axes[i]];
    }
    return out;
  }
  // A dense [rows, features] copy of x.
  Array Rows(const ArrayRef& x) const { return *Array::CopyOf(Permuted(x)).Reshaped({rows, features}); }
  // The inverse: `rows` in the shape of the tensor.
  Array Tensor(const Array& rows_array, const Shape& shape) const {
    ArrayBuilder out(rows_array.dtype(), shape);
    const MutableArrayRef to = Permuted(out.ref());
    AQT_CHECK(CopyArray(ArrayRef(to.dtype, to.shape, rows_array.data()), to).ok());
    return std::move(out).Build();
  }
};

absl::StatusOr<FeaturesLast> MakeFeaturesLast(const char* call, const Shape& shape,
                                              absl::Span<const int64_t> contracting_axes) {
  const absl::StatusOr<Axes> normalized = NormalizeAxes(contracting_axes, shape.rank());
  if (!normalized.ok()) return Annotate(normalized.status(), absl::StrCat(call, ": contracting axes"));
  const Axes& contracting = *normalized;
  if (contracting.empty()) return absl::InvalidArgumentError(absl::StrCat(call, ": there are no contracting axes"));
  FeaturesLast view;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    if (std::find(contracting.begin(), contracting.end(), axis) != contracting.end()) continue;
    view.axes.push_back(axis);
    view.rows *= shape[axis];
  }
  for (const int64_t axis : contracting) {
    view.axes.push_back(axis);
    view.features *= shape[axis];
  }
  return view;
}

// Converts [rows, features] to f64; InvalidArgument when a number is not finite.
absl::StatusOr<Array> FiniteRows(const char* call, const char* what, const Array& rows) {
  Array doubles = Cast(rows, DType::kF64);
  const absl::Span<const double> values = doubles.View<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat(call, ": ", what, " holds ", values[i], " (row ",
                                                   i / rows.shape()[1], ", feature ", i % rows.shape()[1], ")"));
  }
  return doubles;
}

absl::Status CheckFloat(const char* call, const char* what, DType dtype) {
  if (internal::IsArithmeticFloat(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": ", what, " has dtype ", ToString(dtype), ", expected f32, bf16 or f16"));
}

absl::Status CheckQuantizer(const Quantizer& quantizer) {
  if (!IsQuantized(quantizer.numerics)) {
    return absl::InvalidArgumentError("GptqQuantize: the quantizer has no numerics; there is nothing to round to");
  }
  if (NeedsKey(quantizer.numerics)) {
    return absl::InvalidArgumentError(absl::StrCat("GptqQuantize: ", Describe(quantizer.numerics),
                                                   " rounds stochastically; GPTQ needs rounding to nearest"));
  }
  const auto* constant = quantizer.calibration.has_value() ? std::get_if<Constant>(&*quantizer.calibration) : nullptr;
  if (constant == nullptr || !constant->bias.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError("GptqQuantize: the calibration has a bias; GPTQ supports only a scale");
}

// Checks the Hessian and converts it to f64.
absl::StatusOr<Array> CheckHessian(const ArrayRef& hessian, int64_t n) {
  if ((hessian.dtype != DType::kF64 && hessian.dtype != DType::kF32) || hessian.shape != Shape({n, n})) {
    return absl::InvalidArgumentError(absl::StrCat("GptqQuantize: the Hessian is ", hessian.aval().ToString(),
                                                   ", expected f64 or f32 [", n, ",", n, "]: one row per feature"));
  }
  AQT_ASSIGN_OR_RETURN(Array doubles, FiniteRows("GptqQuantize", "the Hessian", Array::CopyOf(hessian)));
  const double* h = doubles.View<double>().data();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      // |h_ij| <= sqrt(h_ii h_jj); sums in f32, in two orders, differ by less than a thousandth of that.
      const double size = std::sqrt(std::abs(h[i * n + i] * h[j * n + j]));
      if (std::abs(h[i * n + j] - h[j * n + i]) <= 1e-3 * size) continue;
      return absl::InvalidArgumentError(absl::StrCat("GptqQuantize: the Hessian is not symmetric: [", i, ",", j,
                                                     "] = ", h[i * n + j], ", [", j, ",", i, "] = ", h[j * n + i]));
    }
  }
  return doubles;
}

// The features in the order in which they are rounded, the *last* one first.
std::vector<int64_t> ReversedOrder(const double* h, int64_t n, bool act_order) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (act_order) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return h[a * n + a] > h[b * n + b]; });
  }
  std::reverse(order.begin(), order.end());
  return order;
}

// X lower with inverse(D) = X^T X, for the damped Hessian D with rows and columns in `order`. With that order reversed
// X is the upper triangle U of gptq.h. This takes one factorization, D = L L^T, X = inverse(L), without inverting D.
absl::StatusOr<Array> InverseFactor(const double* h, int64_t n, const std::vector<int64_t>& order, double percdamp,
                                    Executor* executor) {
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += h[i * n + i];
  mean /= static_cast<double>(n);
  ArrayBuilder damped(DType::kF64, {n, n}), inverse(DType::kF64, {n, n});
  double* d = damped.Mutable<double>().data();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      // Reads the same one of the two symmetric elements for any order.
      const int64_t row = std::max(order[i], order[j]), col = std::min(order[i], order[j]);
      d[i * n + j] = h[row * n + col];
    }
    d[i * n + i] += percdamp * mean;
  }
  const int64_t bad = kernels::CholeskyLower(n, d, executor);
  if (bad >= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "GptqQuantize: with percdamp = ", percdamp, " (", percdamp * mean,
        " added to the diagonal) the Hessian is not positive definite at feature ", order[bad], ", whose diagonal is ",
        h[order[bad] * (n + 1)], "; use more calibration inputs or a larger percdamp"));
  }
  kernels::InvertLower(n, d, inverse.Mutable<double>().data(), executor);
  return std::move(inverse).Build();
}

// e^T H e; reads the lower triangle.
double Error(const double* h, int64_t n, const double* e) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += e[i] * (h[i * (n + 1)] * e[i] + 2 * kernels::Dot(h + i * n, e, i));
  return sum;
}

// One block of rows, to be rounded feature by feature. All matrices are [rows, features] in the order of the tensor.
struct Rounding {
  const Quantizer& quantizer;
  DType dtype;         // of the weight
  const Array& scale;  // of each element
  const std::vector<int64_t>& order;
  const double* factor;

  // `w` is the weight, in `order`; it is overwritten. Writes the qvalues and the errors: the original w - dequantized.
  absl::Status Run(int64_t first, int64_t rows, double* w, char* qvalues, double* errors) const {
    const int64_t n = static_cast<int64_t>(order.size()), scale_size = SizeOf(scale.dtype());
    ArrayBuilder scale_column(scale.dtype(), {rows});
    std::vector<double> column(rows), original(w, w + rows * n);
    for (int64_t f = n - 1; f >= 0; --f) {
      const int64_t feature = order[f];
      for (int64_t r = 0; r < rows; ++r) {
        column[r] = w[r * n + f];
        std::memcpy(static_cast<char*>(scale_column.data()) + r * scale_size,
                    static_cast<const char*>(scale.data()) + ((first + r) * n + feature) * scale_size, scale_size);
      }
      QTensor calibrated{.scale = {Array::CopyOf(scale_column.ref())}, .dequant_dtype = dtype};
      AQT_ASSIGN_OR_RETURN(
          const QTensor rounded,
          CalculateQvalue(quantizer, Cast(ArrayRef(column.data(), {rows}), dtype), std::move(calibrated)));
      AQT_ASSIGN_OR_RETURN(const Array values, rounded.Dequantize());
      const Array doubles = Cast(values, DType::kF64);
      const int64_t q_size = SizeOf(rounded.qvalue->dtype());
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(qvalues + (r * n + feature) * q_size, static_cast<const char*>(rounded.qvalue->data()) + r * q_size,
                    q_size);
        const double value = doubles.View<double>()[r];
        errors[r * n + feature] = original[r * n + f] - value;
        const double e = (column[r] - value) / factor[f * (n + 1)];
        kernels::AddScaled(-e, factor + f * n, w + r * n, f);
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

HessianState HessianState::Zeros(int64_t features) { return {.sum = Array::Zeros(DType::kF64, {features, features})}; }

absl::StatusOr<Array> HessianState::Hessian() const {
  if (count <= 0) {
    return absl::FailedPreconditionError("HessianState: no inputs were seen; call UpdateHessian with calibration data");
  }
  ArrayBuilder out(sum.aval());
  const absl::Span<const double> in = sum.View<double>();
  std::transform(in.begin(), in.end(), out.Mutable<double>().begin(),
                 [&](double v) { return 2 * v / static_cast<double>(count); });
  return std::move(out).Build();
}

absl::StatusOr<HessianState> UpdateHessian(const HessianState& state, const ArrayRef& x,
                                           absl::Span<const int64_t> contracting_axes, Executor* executor) {
  constexpr char kCall[] = "UpdateHessian";
  AQT_RETURN_IF_ERROR(CheckFloat(kCall, "x", x.dtype));
  AQT_ASSIGN_OR_RETURN(const FeaturesLast view, MakeFeaturesLast(kCall, x.shape, contracting_axes));
  const int64_t n = view.features;
  if (state.sum.aval() != Aval{DType::kF64, {n, n}}) {
    return absl::InvalidArgumentError(absl::StrCat(kCall, ": x ", x.aval().ToString(), " has ", n,
                                                   " features, but the state is ", state.sum.aval().ToString()));
  }
  AQT_ASSIGN_OR_RETURN(const Array rows, FiniteRows(kCall, "x", view.Rows(x)));
  ArrayBuilder sum(state.sum.aval());
  const double* old = state.sum.View<double>().data();
  const double* inputs = rows.View<double>().data();
  double* out = sum.Mutable<double>().data();
  ForEachBlock(n, executor, [&](int64_t first, int64_t end) {
    std::copy(old + first * n, old + end * n, out + first * n);
    for (int64_t r = 0; r < view.rows; ++r) {
      const double* input = inputs + r * n;
      // Products of two numbers of these dtypes are exact in f64, so both triangles get the same bits.
      for (int64_t i = first; i < end; ++i) kernels::AddScaled(input[i], input, out + i * n, n);
    }
  });
  return HessianState{.sum = std::move(sum).Build(), .count = state.count + view.rows};
}

absl::StatusOr<GptqResult> GptqQuantize(const Quantizer& quantizer, const ArrayRef& w,
                                        absl::Span<const int64_t> contracting_axes, const ArrayRef& hessian,
                                        const GptqOptions& options, const Semantics& semantics, Executor* executor) {
  constexpr char kCall[] = "GptqQuantize";
  AQT_RETURN_IF_ERROR(CheckQuantizer(quantizer));
  AQT_RETURN_IF_ERROR(CheckFloat(kCall, "the weight", w.dtype));
  if (!(options.percdamp >= 0) || std::isinf(options.percdamp)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kCall, ": percdamp = ", options.percdamp, ", expected a number >= 0"));
  }
  AQT_ASSIGN_OR_RETURN(const FeaturesLast view, MakeFeaturesLast(kCall, w.shape, contracting_axes));
  AQT_ASSIGN_OR_RETURN(const QTensor calibrated, Calibrate(quantizer, w, contracting_axes, semantics, options.tiling));
  AQT_ASSIGN_OR_RETURN(QTensor nearest, CalculateQvalue(quantizer, w, calibrated));
  const int64_t n = view.features;
  AQT_ASSIGN_OR_RETURN(const Array checked, CheckHessian(hessian, n));
  AQT_ASSIGN_OR_RETURN(const Array weights, FiniteRows(kCall, "the weight", view.Rows(w)));
  GptqResult result;
  result.rows = view.rows;
  if (w.shape.num_elements() == 0) {
    result.weight = std::move(nearest);
    return result;
  }

  const double* h = checked.View<double>().data();
  const std::vector<int64_t> order = ReversedOrder(h, n, options.act_order);
  AQT_ASSIGN_OR_RETURN(const Array factor, InverseFactor(h, n, order, options.percdamp, executor));

  const Shape tiled = nearest.qvalue->shape();
  const Array scale_of_each = Array::CopyOf(internal::BroadcastTo(calibrated.scale[0], tiled));
  AQT_ASSIGN_OR_RETURN(const Array untiled_scale, scale_of_each.Reshaped(w.shape));
  const Array scale = view.Rows(untiled_scale);
  AQT_ASSIGN_OR_RETURN(const Array untiled_nearest, nearest.qvalue->Reshaped(w.shape));
  const Array nearest_rows = view.Rows(untiled_nearest);
  AQT_ASSIGN_OR_RETURN(const Array nearest_values, nearest.Dequantize());
  const Array nearest_doubles = Cast(view.Rows(nearest_values), DType::kF64);

  ArrayBuilder qvalues(nearest_rows.aval());
  const int64_t row_bytes = n * SizeOf(nearest_rows.dtype());
  const Rounding rounding{quantizer, w.dtype, scale, order, factor.View<double>().data()};
  std::vector<double> errors(view.rows), nearest_errors(view.rows);
  std::vector<char> kept(view.rows);
  std::vector<absl::Status> failures(CeilDiv(view.rows, kBlock));
  ForEachBlock(view.rows, executor, [&](int64_t first, int64_t end) {
    const int64_t rows = end - first;
    const double* original = weights.View<double>().data() + first * n;
    std::vector<double> work(rows * n), differences(rows * n), nearest_difference(n);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t f = 0; f < n; ++f) work[r * n + f] = original[r * n + order[f]];
    }
    char* out = static_cast<char*>(qvalues.data()) + first * row_bytes;
    failures[first / kBlock] = rounding.Run(first, rows, work.data(), out, differences.data());
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = first + r;
      for (int64_t f = 0; f < n; ++f) {
        nearest_difference[f] = original[r * n + f] - nearest_doubles.View<double>()[row * n + f];
      }
      nearest_errors[row] = Error(h, n, nearest_difference.data());
      errors[row] = Error(h, n, differences.data() + r * n);
      if (!options.keep_nearest_where_better || errors[row] < nearest_errors[row]) continue;
      kept[row] = 1;
      errors[row] = nearest_errors[row];
      std::memcpy(out + r * row_bytes, static_cast<const char*>(nearest_rows.data()) + row * row_bytes, row_bytes);
    }
  });
  for (const absl::Status& failure : failures) AQT_RETURN_IF_ERROR(failure);

  result.rows_kept_nearest = std::accumulate(kept.begin(), kept.end(), int64_t{0});
  result.error = std::accumulate(errors.begin(), errors.end(), 0.0);
  result.nearest_error = std::accumulate(nearest_errors.begin(), nearest_errors.end(), 0.0);
  result.weight = std::move(nearest);
  AQT_ASSIGN_OR_RETURN(result.weight.qvalue, view.Tensor(std::move(qvalues).Build(), w.shape).Reshaped(tiled));
  return result;
}

}  // namespace aqt
