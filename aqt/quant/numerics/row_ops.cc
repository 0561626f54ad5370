#include "aqt/quant/numerics/row_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "absl/container/inlined_vector.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/panels/decode.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/small_floats/quantize_fp8.h"
#include "aqt/quant/numerics/arith.h"

namespace aqt::internal {
namespace {

// y[i] = op(y[i], x[i * x_stride]) with x_stride 0 or 1.
template <class Op>
void Combine(const float* x, int64_t x_stride, float* y, int64_t n, Op op) {
  if (x_stride == 0) {
    const float value = *x;
    for (int64_t i = 0; i < n; ++i) y[i] = op(y[i], value);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = op(y[i], x[i]);
  }
}

// The 8-bit floats that the kernels support.
bool IsFloat8(DType dtype) { return dtype == DType::kE4M3FN || dtype == DType::kE5M2; }

// Stores contiguous 8-bit floats with the kernels; false if it cannot. None may be beyond the largest finite one.
// (Saturating and converting differ only there, and in the sign of NaN.)
bool StoreFloat8Row(DType dtype, const float* in, int64_t n, uint8_t* out, int64_t stride) {
  if (!IsFloat8(dtype) || stride != 1) return false;
  const float max = static_cast<float>(MaxFinite(dtype));
  bool fits = true;
  for (int64_t i = 0; i < n; ++i) fits &= std::fabs(in[i]) <= max;
  if (!fits) return false;
  const float one = 1;
  kernels::QuantizeFp8Args args;
  args.x = {in, DType::kF32, 1, n, n, 1};
  args.grid.scale = &one;
  args.q_dtype = dtype;
  args.q = out;
  kernels::QuantizeFp8(args);
  return true;
}

// Loads a piece of a broadcast operand: one element when its inner stride is 0. Returns the stride for Combine.
int64_t LoadOperand(const ArrayRef& x, int64_t offset, int64_t stride, int64_t n, float* out) {
  if (stride == 0) {
    LoadRow(x.dtype, x.data, offset, 0, 1, out);
    return 0;
  }
  LoadRow(x.dtype, x.data, offset, stride, n, out);
  return 1;
}

// The broadcast operands of an Affine over a shape, with their strides.
struct AffineOperands {
  AffineOperands(const Shape& shape, const Affine& affine) {
    for (const ArrayRef& bias : affine.bias) Append(bias, shape);
    if (affine.mask != nullptr) Append(*affine.mask, shape);
    for (const ArrayRef& scale : affine.scale) Append(scale, shape);
  }
  void Append(const ArrayRef& x, const Shape& shape) { views.push_back(BroadcastTo(x, shape)); }
  // The spans in `first`, then the strides of the arrays.
  absl::InlinedVector<StridesSpan, 6> AllStrides(std::initializer_list<StridesSpan> first) const {
    absl::InlinedVector<StridesSpan, 6> strides(first);
    for (const ArrayRef& view : views) strides.push_back(view.strides);
    return strides;
  }
  absl::InlinedVector<ArrayRef, 4> views;  // biases, mask, scales
};

// The number of pieces in a line (the last axis).
int64_t PiecesPerLine(const Shape& shape) {
  return shape.rank() == 0 ? 1 : (shape[shape.rank() - 1] + kPiece - 1) / kPiece;
}

// ForEachPiece for the pieces [begin, end).
template <class F>
void ForPieces(const Shape& shape, absl::Span<const StridesSpan> strides, int64_t begin, int64_t end, const F& f) {
  const int64_t outer_rank = std::max<int64_t>(shape.rank() - 1, 0);
  const int64_t n = shape.rank() == 0 ? 1 : shape[outer_rank], per_line = PiecesPerLine(shape);
  absl::InlinedVector<int64_t, kInlineRank> index(outer_rank, 0);
  absl::InlinedVector<int64_t, 8> line(strides.size(), 0), offsets(strides.size(), 0);
  int64_t lines_before = begin / per_line;
  for (int64_t axis = outer_rank - 1, rest = lines_before; axis >= 0; --axis) {
    index[axis] = rest % shape[axis];
    rest /= shape[axis];
    for (size_t j = 0; j < strides.size(); ++j) line[j] += index[axis] * strides[j][axis];
  }
  int64_t first = begin % per_line * kPiece;
  for (int64_t piece = begin; piece < end; ++lines_before) {
    for (; first < n && piece < end; first += kPiece, ++piece) {
      for (size_t j = 0; j < strides.size(); ++j) offsets[j] = line[j] + first * InnerStride(strides[j]);
      f(offsets.data(), std::min(kPiece, n - first), lines_before * n + first);
    }
    first = 0;
    for (int64_t axis = outer_rank - 1; axis >= 0; --axis) {
      for (size_t j = 0; j < strides.size(); ++j) line[j] += strides[j][axis];
      if (++index[axis] < shape[axis]) break;
      for (size_t j = 0; j < strides.size(); ++j) line[j] -= strides[j][axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

// Calls run(begin, end) for ranges that cover all pieces of `shape`, in parallel if that pays off.
template <class Run>
void ForPieceRanges(const Shape& shape, Executor* executor, const Run& run) {
  constexpr int64_t kMinParallelElements = 64 << 10, kTaskElements = 16 << 10;
  const int64_t elements = shape.num_elements();
  if (elements == 0) return;
  const int64_t line = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  const int64_t pieces = elements / line * PiecesPerLine(shape);
  if (executor == nullptr || elements < kMinParallelElements) return run(int64_t{0}, pieces);
  const int64_t tasks = std::min(pieces, CeilDiv(elements, kTaskElements));
  executor->ParallelFor(tasks, [&](int64_t i) { run(pieces * i / tasks, pieces * (i + 1) / tasks); });
}

void CombineInto(const ArrayRef& a, const ArrayRef& b, DType dtype, const MutableArrayRef& out,
                 void (*combine)(DType, const float*, int64_t, float*, int64_t), Executor* executor = nullptr) {
  const ArrayRef operand_view = BroadcastTo(b, a.shape);
  const StridesSpan strides[] = {a.strides, operand_view.strides, out.strides};
  ForPieceRanges(a.shape, executor, [&](int64_t begin, int64_t end) {
    std::array<float, kPiece> y, operand;
    ForPieces(a.shape, strides, begin, end, [&](const int64_t* offsets, int64_t n, int64_t) {
      LoadRow(a.dtype, a.data, offsets[0], InnerStride(a.strides), n, y.data());
      const int64_t stride =
          LoadOperand(operand_view, offsets[1], InnerStride(operand_view.strides), n, operand.data());
      RoundRow(dtype, operand.data(), stride == 0 ? 1 : n);
      combine(dtype, operand.data(), stride, y.data(), n);
      StoreRow(out.dtype, y.data(), n, out.data, offsets[2], InnerStride(out.strides));
    });
  });
}

}  // namespace

void LoadRow(DType dtype, const void* data, int64_t offset, int64_t stride, int64_t n, float* out) {
  if (IsFloat8(dtype)) {
    kernels::DecodeArgs args;
    args.src = static_cast<const uint8_t*>(data) + offset;
    args.dtype = dtype;
    args.src_step = stride;
    args.count = n;
    return kernels::Decode(kernels::BestTarget(), args, out, /*dst_line=*/n);
  }
  VisitDType(dtype, [&]<class T>() {
    const T* in = static_cast<const T*>(data) + offset;
    if constexpr (std::is_integral_v<T> && sizeof(T) <= 4) {  // loops that vectorize
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i * stride]);
    } else if constexpr (internal::kIsNibble<T>) {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i * stride].value);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = ConvertElement<float>(in[i * stride]);
    }
  });
}

void StoreRow(DType dtype, const float* in, int64_t n, void* data, int64_t offset, int64_t stride) {
  if (StoreFloat8Row(dtype, in, n, static_cast<uint8_t*>(data) + offset, stride)) return;
  VisitDType(dtype, [&]<class T>() {
    T* out = static_cast<T*>(data) + offset;
    if constexpr (std::is_same_v<T, BFloat16>) {
      for (int64_t i = 0; i < n; ++i) out[i * stride] = RoundToBFloat16(in[i]);
    } else if constexpr (std::is_same_v<T, Float16>) {
      for (int64_t i = 0; i < n; ++i) out[i * stride] = RoundToFloat16(in[i]);
    } else if constexpr (std::is_same_v<T, int8_t>) {
      for (int64_t i = 0; i < n; ++i) {
        const float v = in[i] != in[i] ? 0.0f : in[i];
        out[i * stride] = static_cast<int8_t>(static_cast<int32_t>(v < -128.0f ? -128.0f : v > 127.0f ? 127.0f : v));
      }
    } else {
      for (int64_t i = 0; i < n; ++i) out[i * stride] = ConvertElement<T>(in[i]);
    }
  });
}

void RoundRow(DType dtype, float* y, int64_t n) {
  VisitFloat(dtype, [&]<class T>() {
    for (int64_t i = 0; i < n; ++i) y[i] = Arith<T>::Round(y[i]);
  });
}

void FlushRow(DType dtype, float* y, int64_t n) {
  VisitFloat(dtype, [&]<class T>() {
    for (int64_t i = 0; i < n; ++i) y[i] = Arith<T>::Flush(y[i]);
  });
}

void MulRow(DType dtype, const float* x, int64_t x_stride, float* y, int64_t n) {
  VisitFloat(dtype, [&]<class T>() { Combine(x, x_stride, y, n, [](float a, float b) { return Mul<T>(a, b); }); });
}

void AddRow(DType dtype, const float* x, int64_t x_stride, float* y, int64_t n) {
  VisitFloat(dtype, [&]<class T>() { Combine(x, x_stride, y, n, [](float a, float b) { return Add<T>(a, b); }); });
}

void SubRow(DType dtype, const float* x, int64_t x_stride, float* y, int64_t n) {
  VisitFloat(dtype, [&]<class T>() { Combine(x, x_stride, y, n, [](float a, float b) { return Sub<T>(a, b); }); });
}

void DivRow(DType dtype, const float* x, int64_t x_stride, float* y, int64_t n) {
  VisitFloat(dtype, [&]<class T>() { Combine(x, x_stride, y, n, [](float a, float b) { return Div<T>(a, b); }); });
}

void OverConstantRow(DType dtype, float c, bool divide, float* y, int64_t n) {
  VisitFloat(dtype, [&]<class T>() {
    if (divide) {
      for (int64_t i = 0; i < n; ++i) y[i] = Div<T>(y[i], c);
    } else {
      const float factor = Reciprocal<T>(c);
      for (int64_t i = 0; i < n; ++i) y[i] = Mul<T>(y[i], factor);
    }
  });
}

void InvertScaleRow(DType dtype, float* x, int64_t n) {
  VisitFloat(dtype, [&]<class T>() {
    for (int64_t i = 0; i < n; ++i) x[i] = InverseScale<T>(x[i]);
  });
}

void ReciprocalRow(DType dtype, float* x, int64_t n) {
  VisitFloat(dtype, [&]<class T>() {
    for (int64_t i = 0; i < n; ++i) x[i] = Reciprocal<T>(x[i]);
  });
}

Strides BroadcastStrides(const Shape& shape, absl::Span<const int64_t> strides, const Shape& target) {
  AQT_DCHECK(shape.rank() == target.rank());
  Strides result(strides.begin(), strides.end());
  for (int64_t axis = 0; axis < target.rank(); ++axis) {
    AQT_DCHECK(shape[axis] == 1 || shape[axis] == target[axis]);
    if (shape[axis] == 1) result[axis] = 0;
  }
  return result;
}

ArrayRef BroadcastTo(const ArrayRef& x, const Shape& target) {
  return ArrayRef(x.dtype, target, BroadcastStrides(x.shape, x.strides, target), x.data);
}

void ForEachPiece(const Shape& shape, absl::Span<const StridesSpan> strides,
                  absl::FunctionRef<void(const int64_t* offsets, int64_t n, int64_t linear)> f) {
  ForPieceRanges(shape, nullptr, [&](int64_t begin, int64_t end) { ForPieces(shape, strides, begin, end, f); });
}

DType ScaledDType(DType x, const Affine& affine) {
  DType dtype = x;
  for (const ArrayRef& bias : affine.bias) dtype = Promote(dtype, bias.dtype);
  if (affine.mask != nullptr) dtype = Promote(dtype, affine.mask->dtype);
  for (const ArrayRef& scale : affine.scale) dtype = Promote(dtype, scale.dtype);
  return dtype;
}

namespace {

// Keeps a NaN in either operand.
float Larger(float m, float v) { return v > m || v != v ? v : m; }

// AbsMaxInto with the matrix kernel, on matrices of the last two axes. False if neither axis shares its groups, or if
// lines are too short for a kernel.
bool AbsMaxOfMatrices(const ArrayRef& x, const Strides& group_strides, float* absmax) {
  constexpr int64_t kMinLine = 16;
  const int64_t last = x.shape.rank() - 1;
  if (last < 1 || x.shape[last] < kMinLine || (group_strides[last] != 0 && group_strides[last - 1] != 0)) return false;
  const int64_t shared = group_strides[last] == 0 ? last : last - 1, rows = 2 * last - 1 - shared;
  std::array<float, kPiece> found;
  ForEachIndex(Shape(x.shape.extents().first(last - 1)), x.strides, group_strides, [&](int64_t from, int64_t to) {
    for (int64_t first = 0; first < x.shape[rows]; first += kPiece) {
      const int64_t n = std::min(kPiece, x.shape[rows] - first);
      const void* data = static_cast<const char*>(x.data) + (from + first * x.strides[rows]) * SizeOf(x.dtype);
      found.fill(0);
      kernels::AbsMaxGroups({data, x.dtype, n, x.shape[shared], x.strides[rows], x.strides[shared]}, x.shape[shared],
                            found.data());
      for (int64_t r = 0; r < n; ++r) {
        float& m = absmax[to + (first + r) * group_strides[rows]];
        m = Larger(m, found[r]);
      }
    }
  });
  return true;
}

}  // namespace

void AbsMaxInto(const ArrayRef& x, const Shape& groups_shape, float* absmax) {
  const int64_t groups = groups_shape.num_elements();
  const bool has_kernel = x.dtype == DType::kF32 || x.dtype == DType::kBF16 || x.dtype == DType::kF16;
  if (groups == 1 && has_kernel && x.IsDense()) {
    const int64_t n = x.shape.num_elements();
    *absmax = kernels::AbsMaxAll({.data = x.data, .dtype = x.dtype, .rows = 1, .cols = n, .row_stride = n});
    return FlushRow(x.dtype, absmax, 1);
  }
  std::fill(absmax, absmax + groups, 0.0f);
  const Strides group_strides = BroadcastStrides(groups_shape, DenseStrides(groups_shape), x.shape);
  if (has_kernel && AbsMaxOfMatrices(x, group_strides, absmax)) return FlushRow(x.dtype, absmax, groups);
  const int64_t x_stride = InnerStride(x.strides), group_stride = InnerStride(group_strides);
  std::array<float, kPiece> piece;
  const StridesSpan strides[] = {x.strides, group_strides};
  ForEachPiece(x.shape, strides, [&](const int64_t* offsets, int64_t n, int64_t) {
    LoadRow(x.dtype, x.data, offsets[0], x_stride, n, piece.data());
    float* out = absmax + offsets[1];
    if (group_stride == 0) {
      float m = *out;
      for (int64_t i = 0; i < n; ++i) m = Larger(m, std::fabs(piece[i]));
      *out = m;
    } else {
      for (int64_t i = 0; i < n; ++i) out[i * group_stride] = Larger(out[i * group_stride], std::fabs(piece[i]));
    }
  });
  FlushRow(x.dtype, absmax, groups);
}

void ForEachScaledPiece(const ArrayRef& x, const Affine& affine, StridesSpan extra_strides,
                        absl::FunctionRef<void(float* y, int64_t n, int64_t linear, int64_t offset)> f,
                        Executor* executor) {
  const AffineOperands operands(x.shape, affine);
  const absl::InlinedVector<StridesSpan, 6> strides = operands.AllStrides({x.strides, extra_strides});
  ForPieceRanges(x.shape, executor, [&](int64_t begin, int64_t end) {
    std::array<float, kPiece> y, operand;
    ForPieces(x.shape, strides, begin, end, [&](const int64_t* offsets, int64_t n, int64_t linear) {
      LoadRow(x.dtype, x.data, offsets[0], InnerStride(x.strides), n, y.data());
      DType dtype = x.dtype;
      size_t next = 0;
      const auto load = [&]() {
        const ArrayRef& view = operands.views[next];
        const int64_t stride = LoadOperand(view, offsets[2 + next], InnerStride(view.strides), n, operand.data());
        ++next;
        return stride;
      };
      for (const ArrayRef& bias : affine.bias) {
        const int64_t stride = load();
        dtype = Promote(dtype, bias.dtype);
        AddRow(dtype, operand.data(), stride, y.data(), n);
      }
      if (affine.mask != nullptr) {
        const int64_t stride = load();
        dtype = Promote(dtype, affine.mask->dtype);
        RoundRow(dtype, operand.data(), stride == 0 ? 1 : n);  // a mask may hold integers
        MulRow(dtype, operand.data(), stride, y.data(), n);
      }
      for (const ArrayRef& scale : affine.scale) {
        const int64_t stride = load(), count = stride == 0 ? 1 : n;
        dtype = Promote(dtype, scale.dtype);
        switch (affine.rule == ScaleRule::kXlaQuotient && scale.shape == x.shape ? ScaleRule::kQuotient : affine.rule) {
          case ScaleRule::kInverse: InvertScaleRow(scale.dtype, operand.data(), count); break;
          case ScaleRule::kXlaQuotient: ReciprocalRow(dtype, operand.data(), count); break;
          case ScaleRule::kQuotient: DivRow(dtype, operand.data(), stride, y.data(), n); continue;
        }
        MulRow(dtype, operand.data(), stride, y.data(), n);
      }
      f(y.data(), n, linear, offsets[1]);
    });
  });
}

void DequantizeInto(const ArrayRef& q, const Affine& affine, DType dtype, const MutableArrayRef& out,
                    Executor* executor) {
  const AffineOperands operands(q.shape, affine);
  const absl::InlinedVector<StridesSpan, 6> strides = operands.AllStrides({q.strides, out.strides});
  // The views are biases, mask, scales; they are applied in the opposite order.
  const size_t first_scale = affine.bias.size() + (affine.mask != nullptr ? 1 : 0);
  ForPieceRanges(q.shape, executor, [&](int64_t begin, int64_t end) {
    std::array<float, kPiece> y, operand;
    ForPieces(q.shape, strides, begin, end, [&](const int64_t* offsets, int64_t n, int64_t) {
      LoadRow(q.dtype, q.data, offsets[0], InnerStride(q.strides), n, y.data());
      RoundRow(dtype, y.data(), n);
      DType wide = dtype;
      const auto load = [&](size_t i) {
        const ArrayRef& view = operands.views[i];
        return LoadOperand(view, offsets[2 + i], InnerStride(view.strides), n, operand.data());
      };
      for (size_t i = 0; i < affine.scale.size(); ++i) {
        const int64_t stride = load(first_scale + i);
        wide = Promote(wide, affine.scale[i].dtype);
        MulRow(wide, operand.data(), stride, y.data(), n);
      }
      if (affine.mask != nullptr) {
        const int64_t stride = load(affine.bias.size());
        wide = Promote(wide, affine.mask->dtype);
        RoundRow(wide, operand.data(), stride == 0 ? 1 : n);
        MulRow(wide, operand.data(), stride, y.data(), n);
      }
      for (size_t i = 0; i < affine.bias.size(); ++i) {
        const int64_t stride = load(i);
        wide = Promote(wide, affine.bias[i].dtype);
        SubRow(wide, operand.data(), stride, y.data(), n);
      }
      RoundRow(dtype, y.data(), n);
      StoreRow(out.dtype, y.data(), n, out.data, offsets[1], InnerStride(out.strides));
    });
  });
}

void SumLeadingInto(const ArrayRef& x, int64_t num_axes, const MutableArrayRef& out) {
  AQT_DCHECK(x.IsDense());
  int64_t parts = 1;
  for (int64_t axis = 0; axis < num_axes; ++axis) parts *= x.shape[axis];
  const int64_t size = out.shape.num_elements();
  std::array<float, kPiece> sum, part;
  const StridesSpan strides[] = {out.strides};
  ForEachPiece(out.shape, strides, [&](const int64_t* offsets, int64_t n, int64_t linear) {
    std::fill(sum.begin(), sum.begin() + n, 0.0f);
    for (int64_t i = 0; i < parts; ++i) {
      LoadRow(x.dtype, x.data, i * size + linear, 1, n, part.data());
      AddRow(DType::kF32, part.data(), 1, sum.data(), n);
    }
    StoreRow(out.dtype, sum.data(), n, out.data, offsets[0], InnerStride(out.strides));
  });
}

void FillZeros(const MutableArrayRef& out) {
  const float zero = 0;
  const Strides none(out.shape.rank(), 0);
  AQT_CHECK(CastArray(ArrayRef(DType::kF32, out.shape, none, &zero), out).ok());
}

void MultiplyInto(const ArrayRef& a, const ArrayRef& b, DType dtype, const MutableArrayRef& out, Executor* executor) {
  CombineInto(a, b, dtype, out, MulRow, executor);
}

void DivideByBroadcastInto(const ArrayRef& a, const ArrayRef& b, DType dtype, const MutableArrayRef& out) {
  CombineInto(a, b, dtype, out, [](DType d, const float* x, int64_t x_stride, float* y, int64_t n) {
    VisitFloat(d, [&]<class T>() {
      Combine(x, x_stride, y, n, [](float u, float v) { return Mul<T>(u, Reciprocal<T>(v)); });
    });
  });
}

void DivideInto(const ArrayRef& a, const ArrayRef& b, DType dtype, const MutableArrayRef& out) {
  CombineInto(a, b, dtype, out, DivRow);
}

}  // namespace aqt::internal
