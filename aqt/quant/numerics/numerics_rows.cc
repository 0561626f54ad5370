#include "aqt/quant/numerics/numerics_rows.h"

#include <algorithm>
#include <array>
#include <variant>

#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"

namespace aqt::internal {

void NoiseRow(NoiseKind kind, const Draws& draws, int64_t n, float* out) {
  AQT_DCHECK(n <= kPiece);
  std::array<uint32_t, kPiece> words;
  if (kind == NoiseKind::kJaxUniform) {
    if (draws.stride == 1) {
      draws.bits->Fill32(draws.first, n, words.data());
    } else {
      for (int64_t i = 0; i < n; ++i) words[i] = draws.bits->Bits32(draws.first + i * draws.stride);
    }
    for (int64_t i = 0; i < n; ++i) out[i] = UniformF32(words[i]) - 0.5f;
    return;
  }
  // 16 bits as the upper mantissa of a number in [1, 2), less 1.5 and half of the last of those bits: symmetric.
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = draws.bits->Bits16(draws.first + i * draws.stride);
    out[i] = __builtin_bit_cast(float, (bits << 7) | 0x3F800000u) - (1.5f - 0x1p-17f);
  }
}

void ClipMaskRow(float bound, DType dtype, const float* y, int64_t n, int8_t* mask) {
  VisitFloat(dtype, [&]<class T>() {
    for (int64_t i = 0; i < n; ++i) mask[i] = std::fabs(Arith<T>::Flush(y[i])) <= bound ? 1 : 0;
  });
}

absl::StatusOr<std::optional<Shape>> DrawsShape(const Numerics& numerics, const Shape& shape, DType scaled) {
  if (!NeedsKey(numerics)) return std::nullopt;
  if (const auto* integer = std::get_if<IntSymmetric>(&numerics)) {
    AQT_ASSIGN_OR_RETURN(Shape noise_shape, NoiseShape(*integer->noise, shape));
    return noise_shape;
  }
  if (std::holds_alternative<Fp8>(numerics) && scaled == DType::kF16) {
    return absl::InvalidArgumentError(
        "Fp8: stochastic rounding works on the bits of f32 and bf16, but the scaled values are f16");
  }
  return shape;
}

void QuantizeInto(const Numerics& numerics, const ArrayRef& x, const Affine& affine,
                  const std::optional<TensorDraws>& draws, const MutableArrayRef& q, int8_t* mask) {
  const DType dtype = ScaledDType(x.dtype, affine);
  std::optional<RandomBits> bits;
  Strides draw_strides(x.shape.rank(), 0);
  if (draws.has_value()) {
    bits.emplace(draws->key, draws->shape.num_elements(), draws->layout);
    draw_strides = BroadcastStrides(draws->shape, DenseStrides(draws->shape), x.shape);
  }
  AQT_DCHECK(q.IsDense());
  const std::optional<float> gradient_bound = GradientBound(numerics, dtype);
  ForEachScaledPiece(x, affine, draw_strides, [&](float* y, int64_t n, int64_t linear, int64_t draw_offset) {
    if (mask != nullptr) ClipMaskRow(*gradient_bound, dtype, y, n, mask + linear);
    QuantizeRow(numerics, dtype, {bits ? &*bits : nullptr, draw_offset, InnerStride(draw_strides)}, y, n);
    StoreRow(q.dtype, y, n, q.data, linear, 1);
  });
}

void NoiseInto(NoiseKind kind, const TensorDraws& draws, float* out) {
  const int64_t n = draws.shape.num_elements();
  const RandomBits bits(draws.key, n, draws.layout);
  for (int64_t first = 0; first < n; first += kPiece) {
    NoiseRow(kind, {.bits = &bits, .first = first, .stride = 1}, std::min(kPiece, n - first), out + first);
  }
}

// XLA on CPU turns a product with a predicate into a select, but not for bf16, which it computes in f32.
bool ClipMaskChooses(DType dtype, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kXlaCompatible && dtype != DType::kBF16;
}

void ApplyClipMask(const ArrayRef& g, const int8_t* mask, Arithmetic arithmetic, const MutableArrayRef& out) {
  const StridesSpan strides[] = {g.strides, out.strides};
  std::array<float, kPiece> y, factor;
  ForEachPiece(g.shape, strides, [&](const int64_t* offsets, int64_t n, int64_t linear) {
    LoadRow(g.dtype, g.data, offsets[0], InnerStride(g.strides), n, y.data());
    if (ClipMaskChooses(g.dtype, arithmetic)) {
      for (int64_t i = 0; i < n; ++i) y[i] = mask[linear + i] == 0 ? 0 : y[i];
    } else {
      for (int64_t i = 0; i < n; ++i) factor[i] = mask[linear + i];
      MulRow(g.dtype, factor.data(), 1, y.data(), n);
    }
    StoreRow(out.dtype, y.data(), n, out.data, offsets[1], InnerStride(out.strides));
  });
}

}  // namespace aqt::internal
