#include "aqt/quant/weights/compressed_tensors.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/absmax_reference.h"
#include "aqt/kernels/quantize/pack_words.h"
#include "aqt/kernels/quantize/quantize.h"
#include "aqt/kernels/quantize/quantize_reference.h"
#include "aqt/kernels/small_floats/e4m3.h"
#include "aqt/kernels/small_floats/e4m3_reference.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/weights/microscaled.h"
#include "aqt/quant/weights/weight_matrix.h"

namespace aqt::compressed_tensors {
namespace {

using aqt::internal::Arith;
using aqt::internal::VisitFloat;
using kernels::FloatMatrix;

int QMin(const WeightScheme& scheme) { return -(1 << (scheme.num_bits - 1)); }
int QMax(const WeightScheme& scheme) { return (1 << (scheme.num_bits - 1)) - 1; }
DType TypeOf(const WeightScheme& scheme) { return scheme.type == ValueType::kFloat ? DType::kE4M3FN : DType::kS8; }

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

template <class T>
constexpr float kEpsilon = std::is_same_v<T, float>      ? 0x1p-23f
                           : std::is_same_v<T, BFloat16> ? 0x1p-7f
                                                         : 0x1p-10f;

// Elements of a weight that are quantized at a time, if its scales allow it: they stay in the L2 cache.
constexpr int64_t kElementsAtOnce = 1 << 16;

struct ScaleAndZero {
  float scale;
  int8_t zero_point;
};

template <class T>
float AboveZero(float scale) {
  return scale == 0 ? kEpsilon<T> : scale;
}

// lo <= 0 <= hi, or both NaN; values of T.
template <class T>
ScaleAndZero AsymmetricScaleOf(float lo, float hi, const WeightScheme& scheme) {
  constexpr auto kRound = Arith<T>::Round;
  const float low = static_cast<float>(QMin(scheme)), high = static_cast<float>(QMax(scheme));
  const float scale = kRound(kRound(hi - lo) / (high - low));
  // With a scale of 0 the quotient is NaN and the zero point is therefore 0; the epsilon is applied later.
  const float z = kRound(low - kRound(lo / scale));
  const auto zero_point = static_cast<int8_t>(std::isnan(z) ? 0 : std::nearbyint(std::clamp(z, low, high)));
  return {AboveZero<T>(scale), zero_point};
}

// The scales of n units, given their ranges: as T in `scale`, and as f32 in `hi`.
template <class T>
void ScalesOf(int64_t n, const WeightScheme& scheme, const float* lo, float* hi, T* scale, int8_t* zero_points) {
  if (scheme.symmetric) {
    const bool is_float = scheme.type == ValueType::kFloat;
    const float largest = is_float ? RangeOf(scheme).max : static_cast<float>(QMax(scheme) - QMin(scheme)) / 2;
    for (int64_t u = 0; u < n; ++u) hi[u] = AboveZero<T>(Arith<T>::Round(hi[u] / largest));
  } else {
    for (int64_t u = 0; u < n; ++u) {
      const ScaleAndZero s = AsymmetricScaleOf<T>(lo[u], hi[u], scheme);
      hi[u] = s.scale;
      zero_points[u] = s.zero_point;
    }
  }
  for (int64_t u = 0; u < n; ++u) scale[u] = ConvertElement<T>(hi[u]);
}

// The ranges of x's groups, widened to include 0: lo and hi. A NaN makes both NaN. For a symmetric scheme only hi, the
// larger magnitude.
void RangesOf(const FloatMatrix& x, int64_t group, const WeightScheme& scheme, const Options& options, float* lo,
              float* hi) {
  const int64_t n = x.rows * kernels::NumGroups(x.cols, group);
  if (scheme.symmetric) {
    if (options.reference) kernels::reference::AbsMaxGroups(x, group, hi);
    else kernels::AbsMaxGroups(x, group, hi, options.target);
    return;
  }
  if (options.reference) kernels::reference::MinMaxGroups(x, group, lo, hi);
  else kernels::MinMaxGroups(x, group, lo, hi, options.target);
  for (int64_t u = 0; u < n; ++u) {  // NaN compares false, so it stays
    if (lo[u] > 0) lo[u] = 0;
    if (hi[u] < 0) hi[u] = 0;
  }
}

// Merges the ranges of rows, lo[r * per_row + g], into those of units of several rows. A NaN stays.
void JoinRows(int64_t rows, const Units& units, float* lo, float* hi) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = 0; g < units.per_row; ++g) {
      const int64_t from = r * units.per_row + g, u = r / units.rows * units.per_row + g;  // u <= from
      const bool first = r % units.rows == 0;
      if (first || !(lo[from] >= lo[u] || std::isnan(lo[u]))) lo[u] = lo[from];
      if (first || !(hi[from] <= hi[u] || std::isnan(hi[u]))) hi[u] = hi[from];
    }
  }
}

// The scales of the rows from `first` on, in the form of the kernels. `first` is the first row of a unit, or 0.
kernels::ScaleGrid GridOf(const Units& units, int64_t first, const float* scales, const int8_t* zero_points) {
  AQT_DCHECK(first % units.rows == 0 || units.scale_shape.num_elements() == 1);
  const int64_t at = first / units.rows * units.per_row;
  return {scales + at,
          zero_points == nullptr ? nullptr : zero_points + at,
          units.scale_shape.num_elements() == 1 ? 0 : units.per_row,
          units.per_row > 1,
          units.rows,
          std::max<int64_t>(units.cols, 1)};
}

// The arguments for quantizing x's rows to integers with the scales and zero points of `grid`; without q. `ahead` as in
// QuantizeMatrixArgs.
kernels::QuantizeMatrixArgs IntegersOf(const FloatMatrix& x, const kernels::ScaleGrid& grid, const WeightScheme& scheme,
                                       int64_t ahead) {
  const ValueRange range = RangeOf(scheme);
  kernels::QuantizeMatrixArgs args;
  args.x = x;
  args.rule = kernels::QuantizeRule::kDivideByScale;
  args.grid = grid;
  args.lo = range.min;
  args.hi = range.max;
  args.ahead = ahead;
  return args;
}

// Quantizes x's rows to `q`, dense.
void QuantizeRows(const FloatMatrix& x, const kernels::ScaleGrid& grid, const WeightScheme& scheme,
                  const Options& options, int64_t ahead, void* q) {
  if (scheme.type == ValueType::kFloat) {
    const kernels::QuantizeE4M3Args args = {x, grid, static_cast<Float8E4M3FN*>(q), x.cols};
    if (options.reference) kernels::reference::QuantizeE4M3(args);
    else kernels::QuantizeE4M3(args, options.target);
    return;
  }
  kernels::QuantizeMatrixArgs args = IntegersOf(x, grid, scheme, ahead);
  args.q = static_cast<int8_t*>(q);
  args.q_row_stride = x.cols;
  if (options.reference) kernels::reference::QuantizeMatrix(args);
  else kernels::QuantizeMatrix(args, options.target);
}

// Calls f(first, n) for blocks of whole units, or of rows if all share one scale, in parallel when there is an
// executor.
void ForEachBlock(Executor* executor, int64_t rows, int64_t cols, const Units& units,
                  absl::FunctionRef<void(int64_t, int64_t)> f) {
  const int64_t multiple = units.scale_shape.num_elements() == 1 ? 1 : units.rows;
  aqt::internal::ForEachRowBlock(executor, rows, cols, multiple, f);
}

absl::Status CheckPackedBits(absl::string_view operation, int num_bits) {
  if (num_bits >= 2 && num_bits <= 8) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(operation, ": num_bits is ", num_bits, "; expected 2 to 8"));
}

absl::Status CheckMatrix(absl::string_view operation, const ArrayRef& x, DType dtype) {
  if (x.shape.rank() == 2 && x.dtype == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(operation, ": got ", x.aval().ToString(), "; expected a matrix of ", ToString(dtype)));
}

int64_t WordsFor(int64_t values, int num_bits) { return (values * num_bits + 31) / 32; }

// s8 [rows, cols] -> s32 [rows, words], both with any strides.
absl::Status PackRows(absl::string_view operation, const ArrayRef& q, int num_bits, const MutableArrayRef& out) {
  const int low = -(1 << (num_bits - 1)), high = (1 << (num_bits - 1)) - 1;
  for (int64_t r = 0; r < q.shape[0]; ++r) {
    const int8_t* in = q.As<int8_t>() + r * q.strides[0];
    int32_t* words = out.As<int32_t>() + r * out.strides[0];
    uint64_t stream = 0;  // the bits not yet written, fewer than 32 between values
    int used = 0;
    int64_t c = 0;
    if (q.strides[1] == 1 && out.strides[1] == 1) {
      const int64_t whole = kernels::WholeWords(q.shape[1], num_bits);
      if (kernels::PackWords(in, whole, num_bits, words)) {  // otherwise the loop below finds the offending value
        words += whole;
        c = whole * 32 / num_bits;
      }
    }
    for (; c < q.shape[1]; ++c) {
      const int value = in[c * q.strides[1]];
      if (value < low || value > high) {
        return absl::InvalidArgumentError(absl::StrCat(operation, ": value ", value, " at [", r, ",", c,
                                                       "] is outside [", low, ",", high, "], the range of ", num_bits,
                                                       " bits"));
      }
      stream |= static_cast<uint64_t>(value - low) << used;
      used += num_bits;
      if (used >= 32) {
        *words = static_cast<int32_t>(static_cast<uint32_t>(stream));
        words += out.strides[1];
        stream >>= 32;
        used -= 32;
      }
    }
    if (used > 0) *words = static_cast<int32_t>(static_cast<uint32_t>(stream));
  }
  return absl::OkStatus();
}

// Quantizes x's rows to `words`, dense.
void QuantizeRowsToWords(const FloatMatrix& x, const kernels::ScaleGrid& grid, const WeightScheme& scheme,
                         const Options& options, int64_t ahead, int32_t* words) {
  const int64_t row_words = WordsFor(x.cols, scheme.num_bits);
  if (scheme.num_bits == 4 && !options.reference &&
      kernels::QuantizeToNibbles(IntegersOf(x, grid, scheme, ahead), words, row_words, options.target)) {
    return;
  }
  const std::shared_ptr<void> integers = AllocateUninitialized(x.rows * x.cols);
  QuantizeRows(x, grid, scheme, options, ahead, integers.get());
  const ArrayRef in(DType::kS8, {x.rows, x.cols}, integers.get());
  AQT_CHECK(PackRows("QuantizeWeight", in, scheme.num_bits, {DType::kS32, {x.rows, row_words}, words}).ok());
}

// The inverse of PackRows; bits beyond the values are ignored.
void UnpackRows(const ArrayRef& words, int num_bits, const MutableArrayRef& out) {
  const uint32_t mask = (1u << num_bits) - 1;
  const int offset = 1 << (num_bits - 1);
  for (int64_t r = 0; r < out.shape[0]; ++r) {
    const int32_t* in = words.As<int32_t>() + r * words.strides[0];
    int8_t* q = out.As<int8_t>() + r * out.strides[0];
    uint64_t stream = 0;
    int left = 0;
    int64_t c = 0;
    if (words.strides[1] == 1 && out.strides[1] == 1) {
      const int64_t whole = kernels::WholeWords(out.shape[1], num_bits);
      kernels::UnpackWords(in, whole, num_bits, q);
      in += whole;
      c = whole * 32 / num_bits;
    }
    for (; c < out.shape[1]; ++c) {
      if (left < num_bits) {
        stream |= static_cast<uint64_t>(static_cast<uint32_t>(*in)) << left;
        in += words.strides[1];
        left += 32;
      }
      q[c * out.strides[1]] = static_cast<int8_t>(static_cast<int>(stream & mask) - offset);
      stream >>= num_bits;
      left -= num_bits;
    }
  }
}

// x with its axes exchanged.
ArrayRef Transposed(const ArrayRef& x) {
  return {x.dtype, {x.shape[1], x.shape[0]}, {x.strides[1], x.strides[0]}, x.data};
}
MutableArrayRef Transposed(const MutableArrayRef& x) {
  return {x.dtype, {x.shape[1], x.shape[0]}, {x.strides[1], x.strides[0]}, x.data};
}

// InvalidArgument unless `values` values of num_bits each take exactly `words` words.
absl::Status CheckWords(absl::string_view operation, int64_t words, int num_bits, int64_t values) {
  const CheckedInt bits = CheckedInt(values) * num_bits + 31;
  if (values >= 0 && bits.ok() && bits.value() / 32 == words) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(operation, ": ", words, " words cannot hold ", values, " values of ",
                                                 num_bits, " bits each; expected ceil(values * bits / 32) words"));
}

}  // namespace

absl::string_view ToString(Strategy strategy) {
  switch (strategy) {
    case Strategy::kTensor: return "tensor";
    case Strategy::kChannel: return "channel";
    case Strategy::kGroup: return "group";
    case Strategy::kBlock: return "block";
  }
  aqt::internal::CheckFailed(__FILE__, __LINE__, "strategy is one of the enumerators");
}
std::ostream& operator<<(std::ostream& os, Strategy strategy) { return os << ToString(strategy); }

absl::string_view ToString(ValueType type) { return type == ValueType::kInt ? "int" : "float"; }
std::ostream& operator<<(std::ostream& os, ValueType type) { return os << ToString(type); }

absl::Status Validate(const WeightScheme& scheme) {
  if (scheme.scale_type != ScaleType::kWeight) return ValidateMicroscaled(scheme);
  if (scheme.type == ValueType::kFloat) {
    if (scheme.num_bits != 8) {
      return absl::UnimplementedError(
          absl::StrCat("WeightScheme: floats of ", scheme.num_bits,
                       " bits with scales in the dtype of the weight; supported: floats of 8 bits, and floats of 4 and "
                       "6 bits with scales of 8 bits"));
    }
    if (!scheme.symmetric) return absl::UnimplementedError("WeightScheme: asymmetric floats; supported: symmetric");
    if (scheme.strategy == Strategy::kGroup) {
      return absl::UnimplementedError(
          "WeightScheme: floats, strategy group, with scales in the dtype of the weight; supported: tensor, channel, "
          "block, and groups with scales of 8 bits");
    }
  }
  if (scheme.num_bits < 2 || scheme.num_bits > 8) {
    return absl::InvalidArgumentError(absl::StrCat("WeightScheme: num_bits is ", scheme.num_bits, "; expected 2 to 8"));
  }
  if (scheme.strategy == Strategy::kGroup ? scheme.group_size < 1 : scheme.group_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("WeightScheme: group_size is ", scheme.group_size, " with strategy ",
                                                   ToString(scheme.strategy),
                                                   "; expected at least 1 with group, 0 otherwise"));
  }
  const auto [rows, cols] = scheme.block;
  if (scheme.strategy == Strategy::kBlock ? rows < 1 || cols < 1 : rows != 0 || cols != 0) {
    return absl::InvalidArgumentError(absl::StrCat("WeightScheme: block is [", rows, ",", cols, "] with strategy ",
                                                   ToString(scheme.strategy),
                                                   "; expected at least 1 each with block, [0,0] otherwise"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Units> UnitsOf(const WeightScheme& scheme, int64_t o, int64_t i) {
  switch (scheme.strategy) {
    case Strategy::kTensor: return Units{o, i, 1, {1}};
    case Strategy::kChannel: return Units{1, i, 1, {o, 1}};
    case Strategy::kGroup:
      if (i % scheme.group_size != 0) {
        return absl::InvalidArgumentError(absl::StrCat("group_size ", scheme.group_size, " does not divide the ", i,
                                                       " columns of [", o, ",", i,
                                                       "]; choose a divisor, or leave this weight out"));
      }
      return Units{1, scheme.group_size, i / scheme.group_size, {o, i / scheme.group_size}};
    case Strategy::kBlock: {
      const int64_t per_row = CeilDiv(i, scheme.block[1]);
      return Units{std::min(scheme.block[0], std::max<int64_t>(o, 1)),
                   std::min(scheme.block[1], std::max<int64_t>(i, 1)),
                   per_row,
                   {CeilDiv(o, scheme.block[0]), per_row}};
    }
  }
  aqt::internal::CheckFailed(__FILE__, __LINE__, "strategy is one of the enumerators");
}

ValueRange RangeOf(const WeightScheme& scheme) {
  if (scheme.type == ValueType::kFloat) {
    if (scheme.num_bits == 4) return {-6, 6, 2};
    if (scheme.num_bits == 6) return {-7.5f, 7.5f, 0.5f};
    const float max = static_cast<float>(MaxFinite(DType::kE4M3FN));
    return {-max, max, 32};
  }
  return {static_cast<float>(QMin(scheme)), static_cast<float>(QMax(scheme)), 1};
}

absl::StatusOr<QuantizedWeight> QuantizeWeight(const ArrayRef& w, const WeightScheme& scheme, const Options& options) {
  AQT_RETURN_IF_ERROR(Validate(scheme));
  AQT_ASSIGN_OR_RETURN(const FloatMatrix x, aqt::internal::WeightMatrix("QuantizeWeight", w));
  const absl::StatusOr<Units> found = UnitsOf(scheme, x.rows, x.cols);
  if (!found.ok()) return Annotate(found.status(), "QuantizeWeight");
  const Units& units = *found;

  if (options.packed && scheme.type == ValueType::kFloat && scheme.num_bits == 8) {
    return absl::InvalidArgumentError(
        "QuantizeWeight: packed 8-bit floats; expected integers, floats of 4 or 6 bits, or packed = false");
  }
  if (scheme.scale_type != ScaleType::kWeight) return QuantizeMicroscaled(x, scheme, options);

  const int64_t groups = units.per_row, num_units = units.scale_shape.num_elements();
  std::vector<float> lo(x.rows * groups), hi(x.rows * groups);
  const Shape words = {x.rows, WordsFor(x.cols, scheme.num_bits)};
  ArrayBuilder q =
      ArrayBuilder::ForOverwrite(options.packed ? Aval{DType::kS32, words} : Aval{TypeOf(scheme), w.shape});
  const int64_t q_row_bytes = q.aval().num_bytes() / x.rows;
  ArrayBuilder scale = ArrayBuilder::ForOverwrite({w.dtype, units.scale_shape});
  ArrayBuilder zero_point = ArrayBuilder::ForOverwrite({DType::kS8, units.scale_shape});
  int8_t* zero_points = zero_point.Mutable<int8_t>().data();

  const auto find_ranges = [&](int64_t first, int64_t n) {
    RangesOf(aqt::internal::RowsOf(x, first, n), units.cols, scheme, options, &lo[first * groups], &hi[first * groups]);
  };
  // For units first .. end - 1; afterwards hi holds the scales.
  const auto find_scales = [&](int64_t first, int64_t end) {
    VisitFloat(w.dtype, [&]<class T>() {
      ScalesOf(end - first, scheme, &lo[first], &hi[first], scale.Mutable<T>().data() + first, zero_points + first);
    });
  };
  const auto quantize = [&](int64_t first, int64_t n, int64_t ahead) {
    const kernels::ScaleGrid grid = GridOf(units, first, hi.data(), scheme.symmetric ? nullptr : zero_points);
    const FloatMatrix rows = aqt::internal::RowsOf(x, first, n);
    char* const out = static_cast<char*>(q.data()) + first * q_row_bytes;
    if (options.packed) QuantizeRowsToWords(rows, grid, scheme, options, ahead, reinterpret_cast<int32_t*>(out));
    else QuantizeRows(rows, grid, scheme, options, ahead, out);
  };
  // A few rows at a time, so that the next pass finds them in the cache.
  const int64_t multiple = num_units == 1 ? 1 : units.rows, fit = kElementsAtOnce / x.cols / multiple;
  const int64_t at_once = x.col_stride == 1 ? std::max<int64_t>(1, fit) * multiple : x.rows;
  const auto for_each_block = [&](auto f) {
    ForEachBlock(options.executor, x.rows, x.cols, units, [&](int64_t begin, int64_t rows) {
      const int64_t end = begin + rows;
      for (int64_t first = begin; first < end; first += at_once) {
        f(first, std::min(at_once, end - first), first + at_once < end ? at_once * x.row_stride : 0);
      }
    });
  };
  if (units.rows == 1) {
    for_each_block([&](int64_t first, int64_t n, int64_t ahead) {
      find_ranges(first, n);
      find_scales(first * groups, (first + n) * groups);
      quantize(first, n, ahead);
    });
  } else {
    ForEachBlock(options.executor, x.rows, x.cols, units, find_ranges);
    JoinRows(x.rows, units, lo.data(), hi.data());
    find_scales(0, num_units);
    for_each_block(quantize);
  }
  QuantizedWeight result = {std::move(q).Build(), std::move(scale).Build(), std::nullopt, 1};
  if (!scheme.symmetric) result.zero_point = std::move(zero_point).Build();
  return result;
}

absl::StatusOr<Array> DequantizeWeight(const QuantizedWeight& weight, const WeightScheme& scheme,
                                       const Options& options) {
  AQT_RETURN_IF_ERROR(Validate(scheme));
  AQT_RETURN_IF_ERROR(CheckMatrix("DequantizeWeight, q", weight.q, TypeOf(scheme)));
  const int64_t o = weight.q.shape()[0], i = weight.q.shape()[1];
  const absl::StatusOr<Units> found = UnitsOf(scheme, o, i);
  if (!found.ok()) return Annotate(found.status(), "DequantizeWeight");
  const Units& units = *found;
  if (scheme.scale_type != ScaleType::kWeight) return DequantizeMicroscaled(weight, scheme, options);
  const DType dtype = weight.scale.dtype();
  if (!(weight.scale.shape() == units.scale_shape) || !aqt::internal::IsArithmeticFloat(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("DequantizeWeight: scale is ", weight.scale.aval().ToString(),
                                                   "; expected f32, bf16 or f16 ", units.scale_shape.ToString(),
                                                   " for q ", weight.q.shape().ToString(), ", strategy ",
                                                   ToString(scheme.strategy)));
  }
  if (weight.zero_point.has_value() == scheme.symmetric) {
    return absl::InvalidArgumentError(scheme.symmetric ? "DequantizeWeight: a zero point with a symmetric scheme"
                                                       : "DequantizeWeight: no zero point with an asymmetric scheme");
  }
  if (!scheme.symmetric && weight.zero_point->aval() != Aval{DType::kS8, units.scale_shape}) {
    return absl::InvalidArgumentError(absl::StrCat("DequantizeWeight: zero point is ",
                                                   weight.zero_point->aval().ToString(), "; expected s8",
                                                   units.scale_shape.ToString()));
  }

  const Array scale = Cast(weight.scale, DType::kF32);
  const float* scales = scale.View<float>().data();
  const int8_t* zero_points = scheme.symmetric ? nullptr : weight.zero_point->View<int8_t>().data();
  ArrayBuilder x = ArrayBuilder::ForOverwrite({dtype, weight.q.shape()});
  if (x.aval().num_bytes() == 0) return std::move(x).Build();
  char* const out = static_cast<char*>(x.data());
  // Rows [first, first + n), for the kernels of either type.
  const auto rows_of = [&]<class Args>(const auto* q, const int8_t* zeros, int64_t first, int64_t n, Args args) {
    args.q = q + first * i;
    args.rows = n;
    args.cols = args.q_row_stride = args.row_stride = i;
    args.grid = GridOf(units, first, scales, zeros);
    args.x = out + first * i * SizeOf(dtype);
    args.dtype = dtype;
    return args;
  };
  ForEachBlock(options.executor, o, i, units, [&](int64_t first, int64_t n) {
    if (scheme.type == ValueType::kFloat) {
      const auto args = rows_of(weight.q.View<Float8E4M3FN>().data(), nullptr, first, n, kernels::DequantizeE4M3Args());
      if (options.reference) kernels::reference::DequantizeE4M3(args);
      else kernels::DequantizeE4M3(args, options.target);
    } else {
      const auto args = rows_of(weight.q.View<int8_t>().data(), zero_points, first, n, kernels::DequantizeMatrixArgs());
      if (options.reference) kernels::reference::DequantizeMatrix(args);
      else kernels::DequantizeMatrix(args, options.target);
    }
  });
  return std::move(x).Build();
}

absl::StatusOr<Array> PackInts(const ArrayRef& q, int num_bits) {
  AQT_RETURN_IF_ERROR(CheckPackedBits("PackInts", num_bits));
  AQT_RETURN_IF_ERROR(CheckMatrix("PackInts", q, DType::kS8));
  ArrayBuilder words = ArrayBuilder::ForOverwrite({DType::kS32, {q.shape[0], WordsFor(q.shape[1], num_bits)}});
  AQT_RETURN_IF_ERROR(PackRows("PackInts", q, num_bits, words.ref()));
  return std::move(words).Build();
}

absl::StatusOr<Array> UnpackInts(const ArrayRef& words, int num_bits, int64_t i) {
  AQT_RETURN_IF_ERROR(CheckPackedBits("UnpackInts", num_bits));
  AQT_RETURN_IF_ERROR(CheckMatrix("UnpackInts", words, DType::kS32));
  AQT_RETURN_IF_ERROR(CheckWords("UnpackInts", words.shape[1], num_bits, i));
  ArrayBuilder q = ArrayBuilder::ForOverwrite({DType::kS8, {words.shape[0], i}});
  UnpackRows(words, num_bits, q.ref());
  return std::move(q).Build();
}

absl::StatusOr<Array> PackZeroPoints(const ArrayRef& zero_point, int num_bits) {
  AQT_RETURN_IF_ERROR(CheckPackedBits("PackZeroPoints", num_bits));
  AQT_RETURN_IF_ERROR(CheckMatrix("PackZeroPoints", zero_point, DType::kS8));
  ArrayBuilder words(DType::kS32, {WordsFor(zero_point.shape[0], num_bits), zero_point.shape[1]});
  AQT_RETURN_IF_ERROR(
      PackRows("PackZeroPoints, transposed", Transposed(zero_point), num_bits, Transposed(words.ref())));
  return std::move(words).Build();
}

absl::StatusOr<Array> UnpackZeroPoints(const ArrayRef& words, int num_bits, int64_t o) {
  AQT_RETURN_IF_ERROR(CheckPackedBits("UnpackZeroPoints", num_bits));
  AQT_RETURN_IF_ERROR(CheckMatrix("UnpackZeroPoints", words, DType::kS32));
  AQT_RETURN_IF_ERROR(CheckWords("UnpackZeroPoints", words.shape[0], num_bits, o));
  ArrayBuilder zero_point = ArrayBuilder::ForOverwrite({DType::kS8, {o, words.shape[1]}});
  UnpackRows(Transposed(words), num_bits, Transposed(zero_point.ref()));
  return std::move(zero_point).Build();
}

}  // namespace aqt::compressed_tensors
