#include "aqt/quant/numerics/numerics_rows.h"

#include <algorithm>
#include <array>
#include <variant>

#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/quantize/quantize.h"
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

namespace {

// Whether the matrix kernel can quantize: to integers without noise, with only one scale, in x's dtype, by which x is
// not divided.
bool IsPlainInteger(const Numerics& numerics, const ArrayRef& x, const Affine& affine, DType q) {
  const auto* integer = std::get_if<IntSymmetric>(&numerics);
  if (integer == nullptr || !integer->clip || !integer->round || !integer->preserve_zero) return false;
  if (integer->noise.has_value() || !IsByteInteger(q) || integer->bits > BitWidth(q)) return false;
  if (!affine.bias.empty() || affine.mask != nullptr || affine.scale.size() != 1) return false;
  if (affine.rule == ScaleRule::kQuotient) return false;
  if (affine.rule == ScaleRule::kXlaQuotient && affine.scale[0].shape == x.shape) return false;
  return affine.scale[0].dtype == x.dtype;
}

// A matrix with a scale for each row or each column, or with one scale. q is dense.
struct ScaledMatrix {
  kernels::FloatMatrix x;
  const void* scale;
  int64_t scale_row_stride, scale_col_stride;  // one is 0
  int8_t* q;
  ScaleRule rule;
};

// Quantizes rows first .. end - 1, one block at a time: the inverse scales of a block are on the stack.
void QuantizeRows(const ScaledMatrix& matrix, const ClipRange& range, kernels::Target target, int64_t first,
                  int64_t end) {
  constexpr int64_t kBlock = 1024;
  const auto& [x, scale, scale_row_stride, scale_col_stride, q, rule] = matrix;
  std::array<float, kBlock> inverse;
  for (int64_t r = first; r < end; r += kBlock) {
    for (int64_t c = 0; c < x.cols; c += kBlock) {
      const int64_t rows = std::min(kBlock, end - r), cols = std::min(kBlock, x.cols - c);
      const int64_t stride = scale_row_stride + scale_col_stride;
      const int64_t n = scale_col_stride != 0 ? cols : scale_row_stride != 0 ? rows : 1;
      LoadRow(x.dtype, scale, r * scale_row_stride + c * scale_col_stride, stride, n, inverse.data());
      (rule == ScaleRule::kInverse ? InvertScaleRow : ReciprocalRow)(x.dtype, inverse.data(), n);
      kernels::QuantizeMatrixArgs args;
      const int64_t at = r * x.row_stride + c * x.col_stride;
      args.x = {
          static_cast<const char*>(x.data) + at * SizeOf(x.dtype), x.dtype, rows, cols, x.row_stride, x.col_stride};
      args.grid.scale = inverse.data();
      args.grid.row_stride = scale_row_stride != 0;
      args.grid.col_stride = scale_col_stride != 0;
      args.lo = range.lo;
      args.hi = range.hi;
      args.subnormals_are_zero = true;
      args.q = q + r * x.cols + c;
      args.q_row_stride = x.cols;
      kernels::QuantizeMatrix(args, target);
    }
  }
}

// Processes matrices of the last two axes; false if the scales of a matrix differ along both axes.
bool QuantizePlainInteger(const IntSymmetric& numerics, const Compat& compat, const ArrayRef& x, const Affine& affine,
                          const MutableArrayRef& q, const Execution& execution) {
  const ArrayRef& scale = affine.scale[0];
  constexpr int64_t kTaskElements = 64 << 10;
  const int64_t rank = x.shape.rank(), last = rank - 1, before = rank - 2;
  const Strides scale_strides = BroadcastStrides(scale.shape, scale.strides, x.shape);
  if (rank == 0 || (rank > 1 && scale_strides[last] != 0 && scale_strides[before] != 0)) return false;
  const int64_t rows = rank > 1 ? x.shape[before] : 1, cols = x.shape[last];
  if (rows * cols == 0) return true;
  const auto row_stride = [&](const Strides& strides) { return rank > 1 ? strides[before] : 0; };
  const ClipRange range = ClipRangeOf(numerics, compat, DType::kF32);
  const int64_t tasks = execution.executor == nullptr ? 1 : std::min(rows, 1 + rows * cols / kTaskElements);
  int64_t matrices = 0;
  const Shape outer(x.shape.extents().first(std::max<int64_t>(before, 0)));
  ForEachIndex(outer, x.strides, scale_strides, [&](int64_t from, int64_t scale_from) {
    const ScaledMatrix matrix = {{static_cast<const char*>(x.data) + from * SizeOf(x.dtype), x.dtype, rows, cols,
                                  row_stride(x.strides), x.strides[last]},
                                 static_cast<const char*>(scale.data) + scale_from * SizeOf(scale.dtype),
                                 row_stride(scale_strides),
                                 scale_strides[last],
                                 static_cast<int8_t*>(q.data) + matrices++ * rows * cols,
                                 affine.rule};
    if (tasks == 1) return QuantizeRows(matrix, range, execution.target, 0, rows);
    execution.executor->ParallelFor(tasks, [&](int64_t i) {
      QuantizeRows(matrix, range, execution.target, rows * i / tasks, rows * (i + 1) / tasks);
    });
  });
  return true;
}

}  // namespace

ClipRange ClipRangeOf(const IntSymmetric& numerics, const Compat& compat, DType dtype) {
  const double bound = ClipBound(numerics), lowest = compat.integers_reach_lowest ? bound + 1 : bound;
  return {HostConstant(dtype, -lowest), HostConstant(dtype, bound)};
}

ScaleRule ScaleRuleOf(const Semantics& semantics) {
  if (!semantics.compat.divide_by_scale) return ScaleRule::kInverse;
  return semantics.arithmetic == Arithmetic::kIeee ? ScaleRule::kQuotient : ScaleRule::kXlaQuotient;
}

void QuantizeInto(const Numerics& numerics, const Compat& compat, const ArrayRef& x, const Affine& affine,
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
  if (mask == nullptr && IsPlainInteger(numerics, x, affine, q.dtype) &&
      QuantizePlainInteger(std::get<IntSymmetric>(numerics), compat, x, affine, q, execution)) {
    return;
  }
  const std::optional<float> gradient_bound = GradientBound(numerics, dtype);
  const auto quantize = [&](float* y, int64_t n, int64_t linear, int64_t draw_offset) {
    if (mask != nullptr) ClipMaskRow(*gradient_bound, dtype, y, n, mask + linear);
    const Draws row{numbers.has_value() ? &*numbers : nullptr, draw_offset, InnerStride(draw_strides),
                    execution.target};
    QuantizeRow(numerics, compat, dtype, row, y, n);
    StoreRow(q.dtype, y, n, q.data, linear, 1);
  };
  ForEachScaledPiece(x, affine, draw_strides, quantize, execution.executor);
}

void NoiseInto(NoiseKind kind, const TensorDraws& draws, float* out, kernels::Target target) {
  kernels::FillNoise(NoiseNumbers(kind, draws), 0, 1, draws.shape.num_elements(), out, target);
}

// XLA on CPU turns a product with a predicate into a select, but not for bf16, which it computes in f32.
bool ClipMaskChooses(DType dtype, const Semantics& semantics) {
  if (semantics.compat.clip_gradient_at_bound) return true;
  return semantics.arithmetic == Arithmetic::kXlaCompatible && dtype != DType::kBF16;
}

void ApplyClipMask(const ArrayRef& g, const int8_t* mask, const Semantics& semantics, const MutableArrayRef& out) {
  const bool chooses = ClipMaskChooses(g.dtype, semantics);
  const StridesSpan strides[] = {g.strides, out.strides};
  std::array<float, kPiece> y, factor;
  ForEachPiece(g.shape, strides, [&](const int64_t* offsets, int64_t n, int64_t linear) {
    LoadRow(g.dtype, g.data, offsets[0], InnerStride(g.strides), n, y.data());
    if (chooses) {
      for (int64_t i = 0; i < n; ++i) y[i] = mask[linear + i] == 0 ? 0 : y[i];
    } else {
      for (int64_t i = 0; i < n; ++i) factor[i] = mask[linear + i];
      MulRow(g.dtype, factor.data(), 1, y.data(), n);
    }
    StoreRow(out.dtype, y.data(), n, out.data, offsets[1], InnerStride(out.strides));
  });
}

}  // namespace aqt::internal
