#include "aqt/quant/weights/microscaled.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/quantize/absmax_reference.h"
#include "aqt/kernels/small_floats/e4m3.h"
#include "aqt/kernels/small_floats/e4m3_reference.h"
#include "aqt/kernels/small_floats/small_floats.h"
#include "aqt/kernels/small_floats/small_floats_reference.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/weights/weight_matrix.h"

namespace aqt::compressed_tensors {
namespace {

using aqt::internal::Arith;
using aqt::internal::VisitFloat;
using kernels::FloatMatrix;
using kernels::SmallFloat;

// Elements that are quantized at a time: they stay in the L2 cache.
constexpr int64_t kElementsAtOnce = 1 << 16;

SmallFloat TypeOf(const WeightScheme& scheme) {
  return scheme.num_bits == 4 ? SmallFloat::kE2M1 : scheme.num_bits == 6 ? SmallFloat::kE2M3 : SmallFloat::kE4M3;
}

// The value of a code of e2m1 or e2m3, as e4m3fn.
Float8E4M3FN ValueOf(int code, int num_bits) {
  const int mantissa_bits = num_bits - 3, magnitude = code & ((1 << (num_bits - 1)) - 1);
  const int exponent = magnitude >> mantissa_bits, mantissa = magnitude & ((1 << mantissa_bits) - 1);
  const double steps = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  const double value = std::ldexp(steps, std::max(exponent, 1) - 1 - mantissa_bits);
  Float8E4M3FN result = RoundTo<Float8E4M3FN>(value);
  if (magnitude != code) result.bits |= 0x80;
  return result;
}

// The values of all codes.
std::array<Float8E4M3FN, 64> ValuesOf(int num_bits) {
  std::array<Float8E4M3FN, 64> values;
  for (int code = 0; code < 64; ++code) values[code] = ValueOf(code & ((1 << num_bits) - 1), num_bits);
  return values;
}

// Four values of 6 bits fill three bytes, two of 4 bits one.
int64_t ValuesTogether(int num_bits) { return num_bits == 4 ? 2 : 4; }

absl::Status CheckSmallBits(absl::string_view operation, int num_bits) {
  if (num_bits == 4 || num_bits == 6) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(operation, ": num_bits is ", num_bits, "; expected 4 or 6"));
}

void UnpackRow(const uint8_t* in, int64_t n, int num_bits, const std::array<Float8E4M3FN, 64>& values,
               Float8E4M3FN* out) {
  if (num_bits == 4) {
    for (int64_t i = 0; i < n; i += 2, ++in) {
      out[i] = values[*in & 15];
      out[i + 1] = values[*in >> 4];
    }
    return;
  }
  for (int64_t i = 0; i < n; i += 4, in += 3) {
    const uint32_t word = in[0] | in[1] << 8 | in[2] << 16;
    for (int k = 0; k < 4; ++k) out[i + k] = values[word >> 6 * k & 63];
  }
}

// The codes, packed, and the scales of some rows.
void QuantizeSomeRows(const FloatMatrix& x, const WeightScheme& scheme, const Options& options, uint8_t* scale,
                      uint8_t* q) {
  const int64_t n = x.rows * (x.cols / scheme.group_size);
  std::vector<float> absmax(n), factor(n);
  if (options.reference) kernels::reference::AbsMaxGroups(x, scheme.group_size, absmax.data());
  else kernels::AbsMaxGroups(x, scheme.group_size, absmax.data(), options.target);
  const SmallFloat type = TypeOf(scheme);
  if (scheme.scale_type == ScaleType::kE8M0) {
    if (options.reference) kernels::reference::MxScales(absmax.data(), n, x.dtype, type, scale, factor.data());
    else kernels::MxScales(absmax.data(), n, x.dtype, type, scale, factor.data(), options.target);
  } else {
    auto* const codes = reinterpret_cast<Float8E4M3FN*>(scale);
    if (options.reference)
      kernels::reference::E4M3Scales(absmax.data(), n, x.dtype, options.global_scale, codes, factor.data());
    else kernels::E4M3Scales(absmax.data(), n, x.dtype, options.global_scale, codes, factor.data(), options.target);
  }
  kernels::QuantizeSmallFloatsArgs args;
  args.x = x;
  args.type = type;
  args.group = scheme.group_size;
  args.factor = factor.data();
  args.divide = scheme.scale_type == ScaleType::kE4M3;
  args.q = q;
  if (options.reference) kernels::reference::QuantizeSmallFloats(args);
  else kernels::QuantizeSmallFloats(args, options.target);
}

}  // namespace

int64_t GroupSizeOf(ScaleType scale_type) { return scale_type == ScaleType::kE4M3 ? 16 : 32; }

float GlobalScaleOf(float absmax, DType dtype) {
  constexpr float kLargest = 448 * 6;  // the largest scale times the largest value
  const float smallest_normal = dtype == DType::kF16 ? 0x1p-14f : 0x1p-126f;
  float scale = 0;
  // The original divides a number by a tensor: it rounds the reciprocal, then the product.
  VisitFloat(dtype, [&]<class T>() {
    constexpr auto kRound = Arith<T>::Round;
    scale = kRound(kRound(1 / std::max(absmax, smallest_normal)) * kLargest);
  });
  return std::isfinite(scale) ? scale : 1;
}

Array FactorsOf(const QuantizedWeight& weight, ScaleType scale_type) {
  ArrayBuilder factors = ArrayBuilder::ForOverwrite({DType::kF32, weight.scale.shape()});
  float* const out = factors.Mutable<float>().data();
  std::array<float, 256> factor_of;
  for (int code = 0; code < 256; ++code) {
    factor_of[code] = scale_type == ScaleType::kE4M3
                          ? ToFloat(Float8E4M3FN{static_cast<uint8_t>(code)}) / weight.global_scale
                      : code == kernels::kNoExponent ? std::numeric_limits<float>::quiet_NaN()
                                                     : std::ldexp(1.0f, code - 127);
  }
  const auto* const codes = static_cast<const uint8_t*>(weight.scale.data());
  for (int64_t i = 0; i < weight.scale.num_elements(); ++i) out[i] = factor_of[codes[i]];
  return std::move(factors).Build();
}

absl::StatusOr<Array> PackSmallFloats(const ArrayRef& q, int num_bits) {
  AQT_RETURN_IF_ERROR(CheckSmallBits("PackSmallFloats", num_bits));
  if (q.shape.rank() != 2 || q.dtype != DType::kE4M3FN || !q.IsDense() || q.shape[1] % ValuesTogether(num_bits) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("PackSmallFloats: got ", q.aval().ToString(),
                                                   "; expected a dense matrix of e4m3fn, with a multiple of ",
                                                   ValuesTogether(num_bits), " columns"));
  }
  std::array<uint8_t, 256> code_of;
  code_of.fill(255);
  const std::array<Float8E4M3FN, 64> values = ValuesOf(num_bits);
  for (int code = 0; code < 1 << num_bits; ++code) code_of[values[code].bits] = static_cast<uint8_t>(code);
  ArrayBuilder bytes(DType::kU8, {q.shape[0], q.shape[1] * num_bits / 8});
  uint8_t* const out = bytes.Mutable<uint8_t>().data();
  const auto* const in = q.As<Float8E4M3FN>();
  for (int64_t i = 0; i < q.shape.num_elements(); ++i) {  // rows fill whole bytes
    const int code = code_of[in[i].bits];
    if (code == 255) {
      return absl::InvalidArgumentError(absl::StrCat("PackSmallFloats: value ", ToFloat(in[i]), " at [", i / q.shape[1],
                                                     ",", i % q.shape[1], "] is not a ", num_bits, "-bit float"));
    }
    const int64_t bit = i * num_bits;
    const int shifted = code << bit % 8;
    out[bit / 8] |= static_cast<uint8_t>(shifted);
    if (shifted > 255) out[bit / 8 + 1] |= static_cast<uint8_t>(shifted >> 8);
  }
  return std::move(bytes).Build();
}

absl::StatusOr<Array> UnpackSmallFloats(const ArrayRef& bytes, int num_bits) {
  AQT_RETURN_IF_ERROR(CheckSmallBits("UnpackSmallFloats", num_bits));
  const int64_t bytes_together = ValuesTogether(num_bits) * num_bits / 8;
  if (bytes.shape.rank() != 2 || bytes.dtype != DType::kU8 || !bytes.IsDense() ||
      bytes.shape[1] % bytes_together != 0) {
    return absl::InvalidArgumentError(absl::StrCat("UnpackSmallFloats: got ", bytes.aval().ToString(),
                                                   "; expected a dense matrix of u8, with a multiple of ",
                                                   bytes_together, " columns"));
  }
  ArrayBuilder q = ArrayBuilder::ForOverwrite({DType::kE4M3FN, {bytes.shape[0], bytes.shape[1] * 8 / num_bits}});
  UnpackRow(bytes.As<uint8_t>(), q.aval().shape.num_elements(), num_bits, ValuesOf(num_bits),
            q.Mutable<Float8E4M3FN>().data());
  return std::move(q).Build();
}

absl::Status ValidateMicroscaled(const WeightScheme& scheme) {
  const bool mx = scheme.scale_type == ScaleType::kE8M0;
  const bool bits = scheme.num_bits == 4 || (mx && (scheme.num_bits == 6 || scheme.num_bits == 8));
  if (scheme.type == ValueType::kFloat && bits && scheme.symmetric && scheme.strategy == Strategy::kGroup &&
      scheme.group_size == GroupSizeOf(scheme.scale_type) && scheme.block == std::array<int64_t, 2>{0, 0}) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "WeightScheme: ", scheme.symmetric ? "" : "asymmetric ", ToString(scheme.type), "s of ", scheme.num_bits,
      " bits, strategy ", ToString(scheme.strategy), ", group_size ", scheme.group_size, ", with scales as ",
      mx ? "powers of two (MX); supported: symmetric floats of 4, 6 or 8 bits in groups of 32"
         : "e4m3fn (NVFP4); supported: symmetric floats of 4 bits in groups of 16"));
}

absl::StatusOr<QuantizedWeight> QuantizeMicroscaled(const FloatMatrix& x, const WeightScheme& scheme,
                                                    const Options& options) {
  if (scheme.scale_type == ScaleType::kE4M3 && !(options.global_scale > 0 && std::isfinite(options.global_scale))) {
    return absl::InvalidArgumentError(
        absl::StrCat("QuantizeWeight: global_scale is ", options.global_scale, "; expected a positive finite number"));
  }
  const Shape scale_shape = {x.rows, x.cols / scheme.group_size};
  const bool small = scheme.num_bits < 8, packed = small && options.packed;
  const int64_t packed_row = x.cols * scheme.num_bits / 8;
  ArrayBuilder scale =
      ArrayBuilder::ForOverwrite({scheme.scale_type == ScaleType::kE8M0 ? DType::kU8 : DType::kE4M3FN, scale_shape});
  ArrayBuilder q = ArrayBuilder::ForOverwrite(packed ? Aval{DType::kU8, {x.rows, packed_row}}
                                                     : Aval{DType::kE4M3FN, {x.rows, x.cols}});
  auto* const scales = static_cast<uint8_t*>(scale.data());
  auto* const out = static_cast<uint8_t*>(q.data());
  const int64_t row_bytes = packed ? packed_row : x.cols;
  const std::array<Float8E4M3FN, 64> values = ValuesOf(small ? scheme.num_bits : 6);
  const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / x.cols);
  aqt::internal::ForEachRowBlock(options.executor, x.rows, x.cols, 1, [&](int64_t begin, int64_t rows) {
    std::vector<uint8_t> bytes;
    for (int64_t first = begin; first < begin + rows; first += at_once) {
      FloatMatrix some = aqt::internal::RowsOf(x, first, std::min(at_once, begin + rows - first));
      Array dense;
      if (some.col_stride != 1) {
        dense =
            Array::CopyOf(ArrayRef(some.dtype, {some.rows, some.cols}, {some.row_stride, some.col_stride}, some.data));
        some.data = dense.data();
        some.row_stride = some.cols;
        some.col_stride = 1;
      }
      const bool unpack = small && !packed;
      bytes.resize(unpack ? some.rows * packed_row : 0);
      uint8_t* const codes = unpack ? bytes.data() : out + first * row_bytes;
      QuantizeSomeRows(some, scheme, options, scales + first * scale_shape[1], codes);
      if (unpack) {
        UnpackRow(codes, some.rows * some.cols, scheme.num_bits, values,
                  reinterpret_cast<Float8E4M3FN*>(out + first * row_bytes));
      }
    }
  });
  return QuantizedWeight{std::move(q).Build(), std::move(scale).Build(), std::nullopt,
                         scheme.scale_type == ScaleType::kE4M3 ? options.global_scale : 1};
}

absl::StatusOr<Array> DequantizeMicroscaled(const QuantizedWeight& weight, const WeightScheme& scheme,
                                            const Options& options) {
  const int64_t o = weight.q.shape()[0], i = weight.q.shape()[1];
  const Aval expected = {scheme.scale_type == ScaleType::kE8M0 ? DType::kU8 : DType::kE4M3FN,
                         {o, i / scheme.group_size}};
  if (weight.scale.aval() != expected) {
    return absl::InvalidArgumentError(absl::StrCat("DequantizeWeight: scale is ", weight.scale.aval().ToString(),
                                                   "; expected ", expected.ToString()));
  }
  const Array factors = FactorsOf(weight, scheme.scale_type);
  ArrayBuilder x = ArrayBuilder::ForOverwrite({DType::kF32, weight.q.shape()});
  kernels::DequantizeE4M3Args args;
  args.q = weight.q.View<Float8E4M3FN>().data();
  args.rows = o;
  args.cols = args.q_row_stride = args.row_stride = i;
  args.grid = {factors.View<float>().data(), nullptr, expected.shape[1], 1, 1, scheme.group_size};
  args.x = x.data();
  if (options.reference) kernels::reference::DequantizeE4M3(args);
  else kernels::DequantizeE4M3(args, options.target);
  return std::move(x).Build();
}

}  // namespace aqt::compressed_tensors
