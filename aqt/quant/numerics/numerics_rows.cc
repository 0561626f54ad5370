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

kernels::RandomNumbers NoiseNumbers(NoiseKind kind, const TensorDraws& draws) {
  const RandomBits bits(draws.key, draws.shape.num_elements(), draws.layout);
  switch (kind) {
    case NoiseKind::kJaxUniform: return kernels::RandomNumbers::Bits32(bits);
    case NoiseKind::kRandomCenteredUniform: return kernels::RandomNumbers::Bits16(bits);
    case NoiseKind::kFast: return kernels::RandomNumbers::Fast(draws.key);
  }
  AQT_CHECK(!"a kind of noise");
}

kernels::RandomNumbers NumbersOf(const Numerics& numerics, DType scaled, const TensorDraws& draws) {
  if (const auto* integer = std::get_if<IntSymmetric>(&numerics)) return NoiseNumbers(integer->noise->kind, draws);
  const RandomBits bits(draws.key, draws.shape.num_elements(), draws.layout);
  const bool wide = std::holds_alternative<Fp8>(numerics) && scaled == DType::kF32;
  return wide ? kernels::RandomNumbers::Bits32(bits) : kernels::RandomNumbers::Bits16(bits);
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
                  const std::optional<TensorDraws>& draws, const MutableArrayRef& q, int8_t* mask,
                  const Execution& execution) {
  const DType dtype = ScaledDType(x.dtype, affine);
  std::optional<kernels::RandomNumbers> numbers;
  Strides draw_strides(x.shape.rank(), 0);
  if (draws.has_value()) {
    numbers = NumbersOf(numerics, dtype, *draws);
    draw_strides = BroadcastStrides(draws->shape, DenseStrides(draws->shape), x.shape);
  }
  AQT_DCHECK(q.IsDense());
  const std::optional<float> gradient_bound = GradientBound(numerics, dtype);
  const auto quantize = [&](float* y, int64_t n, int64_t linear, int64_t draw_offset) {
    if (mask != nullptr) ClipMaskRow(*gradient_bound, dtype, y, n, mask + linear);
    const Draws row{numbers.has_value() ? &*numbers : nullptr, draw_offset, InnerStride(draw_strides),
                    execution.target};
    QuantizeRow(numerics, dtype, row, y, n);
    StoreRow(q.dtype, y, n, q.data, linear, 1);
  };
  ForEachScaledPiece(x, affine, draw_strides, quantize, execution.executor);
}

void NoiseInto(NoiseKind kind, const TensorDraws& draws, float* out, kernels::Target target) {
  kernels::FillNoise(NoiseNumbers(kind, draws), 0, 1, draws.shape.num_elements(), out, target);
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
