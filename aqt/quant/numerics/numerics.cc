#include "aqt/quant/numerics/numerics.h"

#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/random/noise.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/fp_rows.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt {
namespace {

double Edge(const IntSymmetric& n) { return std::ldexp(1.0, n.bits - 1) - (n.preserve_zero ? 0.5 : 0.0); }

absl::Status ValidateInt(const IntSymmetric& n) {
  if (n.bits < 1 || n.bits > 22) {
    return absl::InvalidArgumentError(
        absl::StrCat("IntSymmetric: bits = ", n.bits, ", but 1 to 22 can be represented"));
  }
  if (!n.dtype.has_value()) return absl::OkStatus();
  const DType container = *n.dtype;
  if (IsByteInteger(container) || container == DType::kS32 || internal::IsArithmeticFloat(container))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("IntSymmetric: container ", ToString(container),
                                                 ", expected s2, s4, s8, s32, f32, bf16 or f16, or leave it unset"));
}

absl::Status ValidateFp8(const Fp8& n) {
  const bool bits_fit = (n.exponent_bits == 4 && n.mantissa_bits == 3 && n.dtype != DType::kE5M2) ||
                        (n.exponent_bits == 5 && n.mantissa_bits == 2 && n.dtype != DType::kE4M3FN);
  const bool container = n.dtype == DType::kE4M3FN || n.dtype == DType::kE5M2 || n.dtype == DType::kBF16;
  if (bits_fit && container) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Fp8: exponent_bits = ", n.exponent_bits,
                                                 ", mantissa_bits = ", n.mantissa_bits, ", dtype ", ToString(n.dtype),
                                                 "; expected 4, 3, e4m3fn or 5, 2, e5m2, or bf16 with either"));
}

absl::Status CheckFloatArray(const char* operation, const ArrayRef& y) {
  if (internal::IsArithmeticFloat(y.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(operation, ": values have dtype ", ToString(y.dtype), ", expected f32, bf16 or f16"));
}

}  // namespace

absl::Status Validate(const Numerics& numerics) {
  struct Visitor {
    absl::Status operator()(const NoNumerics&) const { return absl::OkStatus(); }
    absl::Status operator()(const IntSymmetric& n) const { return ValidateInt(n); }
    absl::Status operator()(const Fp8& n) const { return ValidateFp8(n); }
    absl::Status operator()(const Fp& n) const { return internal::ValidateFpFormat(n.format); }
  };
  return std::visit(Visitor(), numerics);
}

bool IsQuantized(const Numerics& numerics) { return !std::holds_alternative<NoNumerics>(numerics); }

double QuantBound(const Numerics& numerics) {
  struct Visitor {
    double operator()(const NoNumerics&) const {
      AQT_CHECK(!"quantized numerics");
      return 0;
    }
    double operator()(const IntSymmetric& n) const { return n.preserve_max_val ? Edge(n) - 0.5 : Edge(n); }
    double operator()(const Fp8& n) const { return MaxFinite(n.dtype); }
    double operator()(const Fp& n) const { return internal::FpMax(n.format); }
  };
  return std::visit(Visitor(), numerics);
}

double ClipBound(const IntSymmetric& numerics) { return numerics.round ? Edge(numerics) - 0.5 : Edge(numerics); }

DType QvalueDType(const Numerics& numerics, DType scaled) {
  struct Visitor {
    DType scaled;
    DType operator()(const NoNumerics&) const { return scaled; }
    DType operator()(const IntSymmetric& n) const { return n.dtype.value_or(scaled); }
    DType operator()(const Fp8& n) const { return n.dtype; }
    DType operator()(const Fp&) const { return DType::kBF16; }
  };
  return std::visit(Visitor{scaled}, numerics);
}

bool NeedsKey(const Numerics& numerics) {
  struct Visitor {
    bool operator()(const NoNumerics&) const { return false; }
    bool operator()(const IntSymmetric& n) const { return n.noise.has_value(); }
    bool operator()(const Fp8& n) const { return n.stochastic_rounding; }
    bool operator()(const Fp& n) const { return n.stochastic_rounding; }
  };
  return std::visit(Visitor(), numerics);
}

absl::StatusOr<Shape> NoiseShape(const Noise& noise, const Shape& shape) {
  AQT_ASSIGN_OR_RETURN(const Axes shared, NormalizeAxes(noise.noise_sharing_axes, shape.rank()));
  Shape result = shape;
  for (const int64_t axis : shared) result[axis] = 1;
  return result;
}

absl::StatusOr<Array> MakeNoise(const Noise& noise, const Shape& shape, const Key& key, PrngLayout layout) {
  AQT_ASSIGN_OR_RETURN(const Shape noise_shape, NoiseShape(noise, shape));
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({DType::kF32, noise_shape});
  internal::NoiseInto(noise.kind, {key, layout, noise_shape}, builder.Mutable<float>().data());
  return std::move(builder).Build();
}

absl::StatusOr<Array> NumericsForward(const Numerics& numerics, const ArrayRef& y, const Context& context,
                                      PrngLayout layout) {
  AQT_RETURN_IF_ERROR(Validate(numerics));
  AQT_RETURN_IF_ERROR(CheckFloatArray("NumericsForward", y));
  AQT_ASSIGN_OR_RETURN(const std::optional<Shape> draws_shape, internal::DrawsShape(numerics, y.shape, y.dtype));
  std::optional<internal::TensorDraws> draws;
  if (draws_shape.has_value()) {
    if (!context.key.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("NumericsForward: ", Describe(numerics), " draws random numbers: set Context::key"));
    }
    draws = {*context.key, layout, *draws_shape};
  }
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({QvalueDType(numerics, y.dtype), y.shape});
  internal::QuantizeInto(numerics, /*compat=*/{}, y, {}, draws, builder.ref(), nullptr);
  return std::move(builder).Build();
}

absl::StatusOr<Array> RoundToFormat(const FpFormat& format, const ArrayRef& x) {
  AQT_RETURN_IF_ERROR(internal::ValidateFpFormat(format));
  if (x.dtype != DType::kF32 && x.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("RoundToFormat: values have dtype ", ToString(x.dtype), ", expected f32 or bf16"));
  }
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(x.aval());
  internal::ForEachScaledPiece(x, {}, x.strides, [&](float* y, int64_t n, int64_t linear, int64_t) {
    internal::RoundFpRow(format, {}, y, n);
    internal::StoreRow(x.dtype, y, n, builder.data(), linear, 1);
  });
  return std::move(builder).Build();
}

absl::StatusOr<Array> NumericsBackward(const Numerics& numerics, const ArrayRef& y, const ArrayRef& g,
                                       Arithmetic arithmetic) {
  AQT_RETURN_IF_ERROR(Validate(numerics));
  AQT_RETURN_IF_ERROR(CheckFloatArray("NumericsBackward", y));
  AQT_RETURN_IF_ERROR(CheckFloatArray("NumericsBackward", g));
  if (y.shape != g.shape) {
    return absl::InvalidArgumentError(absl::StrCat("NumericsBackward: the values have shape ", y.shape.ToString(),
                                                   ", the gradient ", g.shape.ToString()));
  }
  const std::optional<float> bound = internal::GradientBound(numerics, y.dtype);
  const auto* fp = std::get_if<Fp>(&numerics);
  if (!bound.has_value() && !(fp != nullptr && fp->clip_gradient)) return Array::CopyOf(g);
  // Without a bound the mask is all ones, and the gradient is still multiplied by it.
  std::vector<int8_t> mask(y.shape.num_elements(), 1);
  if (bound.has_value()) {
    internal::ForEachScaledPiece(y, {}, y.strides, [&](float* piece, int64_t n, int64_t linear, int64_t) {
      internal::ClipMaskRow(*bound, y.dtype, piece, n, mask.data() + linear);
    });
  }
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(g.aval());
  internal::ApplyClipMask(g, mask.data(), {.arithmetic = arithmetic}, builder.ref());
  return std::move(builder).Build();
}

// ---- rows (numerics_rows.h)

namespace internal {
namespace {

// Rounds to the nearest integer, ties to even, with the sign of v. (Without SSE4.1, nearbyint is a function call.)
inline float RoundHalfEven(float v) {
  const float magic = std::copysign(0x1p23f, v);
  return std::fabs(v) < 0x1p23f ? std::copysign((v + magic) - magic, v) : v;
}

// min(max(y, lo), hi) with subnormals treated as zero; NaN stays.
template <class T>
void ClampRow(float lo, float hi, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float v = Arith<T>::Flush(y[i]);
    v = v < lo ? lo : v;
    y[i] = v > hi ? hi : v;
  }
}

void QuantizeIntRow(const IntSymmetric& numerics, const Compat& compat, DType dtype, const Draws& draws, float* y,
                    int64_t n) {
  if (numerics.noise.has_value()) {
    AQT_DCHECK(draws.numbers != nullptr);
    std::array<float, kPiece> noise;
    kernels::FillNoise(*draws.numbers, draws.first, draws.stride, n, noise.data(), draws.target);
    FlushRow(dtype, y, n);
    for (int64_t i = 0; i < n; ++i) y[i] = FlushSubnormal(y[i] + noise[i]);
    if (compat.noise_sum_stays_f32) dtype = DType::kF32;
    RoundRow(dtype, y, n);
  }
  VisitFloat(dtype, [&]<class T>() {
    const ClipRange range = ClipRangeOf(numerics, compat, dtype);
    if (numerics.clip) ClampRow<T>(range.lo, range.hi, y, n);
    if (!numerics.round) return;
    if (numerics.preserve_zero) {
      for (int64_t i = 0; i < n; ++i) y[i] = RoundHalfEven(Arith<T>::Flush(y[i]));
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = Add<T>(std::floor(Arith<T>::Flush(y[i])), 0.5f);
    }
  });
}

// Keeps `mantissa_bits` of the mantissa, rounded up with the probability given by the dropped bits. May carry into the
// exponent.
void RoundMantissaRow(DType dtype, int mantissa_bits, const Draws& draws, float* y, int64_t n) {
  // A bf16 value is the upper half of the f32 pattern: its 16 random bits belong there.
  const bool wide = dtype == DType::kF32;
  const int drop = (wide ? 23 : 7) - mantissa_bits;
  const uint32_t tail = (1u << drop) - 1;
  const int shift = wide ? 0 : 16;
  std::array<uint32_t, kPiece> random;
  kernels::FillRandom(*draws.numbers, draws.first, draws.stride, n, random.data(), draws.target);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t pattern = __builtin_bit_cast(uint32_t, y[i]) + ((random[i] & tail) << shift);
    y[i] = __builtin_bit_cast(float, pattern & ~(tail << shift));
  }
}

void QuantizeFp8Row(const Fp8& numerics, DType dtype, const Draws& draws, float* y, int64_t n) {
  if (numerics.stochastic_rounding) RoundMantissaRow(dtype, numerics.mantissa_bits, draws, y, n);
  const float bound = static_cast<float>(QuantBound(numerics));
  VisitFloat(dtype, [&]<class T>() { ClampRow<T>(-bound, bound, y, n); });
}

}  // namespace

void QuantizeRow(const Numerics& numerics, const Compat& compat, DType dtype, const Draws& draws, float* y, int64_t n) {
  struct Visitor {
    const Compat& compat;
    DType dtype;
    const Draws& draws;
    float* y;
    int64_t n;
    void operator()(const NoNumerics&) const {}
    void operator()(const IntSymmetric& integer) const { QuantizeIntRow(integer, compat, dtype, draws, y, n); }
    void operator()(const Fp8& fp8) const { QuantizeFp8Row(fp8, dtype, draws, y, n); }
    void operator()(const Fp& fp) const {
      RoundRow(DType::kBF16, y, n);
      RoundFpRow(fp.format, draws, y, n);
    }
  };
  std::visit(Visitor{compat, dtype, draws, y, n}, numerics);
}

std::optional<float> GradientBound(const Numerics& numerics, DType dtype) {
  struct Visitor {
    DType dtype;
    std::optional<float> operator()(const NoNumerics&) const { return std::nullopt; }
    std::optional<float> operator()(const IntSymmetric& n) const {
      return n.clip_gradient ? std::optional(HostConstant(dtype, ClipBound(n))) : std::nullopt;
    }
    std::optional<float> operator()(const Fp8&) const { return std::nullopt; }
    std::optional<float> operator()(const Fp& n) const {
      return n.clip_gradient ? LargestWithoutNan(n, dtype) : std::nullopt;
    }
  };
  return std::visit(Visitor{dtype}, numerics);
}

}  // namespace internal
}  // namespace aqt
