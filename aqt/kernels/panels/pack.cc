#include "aqt/kernels/panels/pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/panels/decode.h"
#include "aqt/kernels/panels/pack_lines.h"
#include "aqt/kernels/panels/pack_panels.h"
#include "aqt/kernels/panels/packer.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/hadamard.h"
#include "aqt/kernels/quantize/quantize.h"
#include "aqt/kernels/small_floats/quantize_fp8.h"

namespace aqt::kernels {
namespace {

using internal::Block;
using internal::ForEachTask;
using internal::kMaxTaskRows;
using internal::kPassBytes;
using internal::kStageBytes;
using internal::kTaskRows;
using internal::Packer;

float Round(float x, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return ToFloat(RoundToBFloat16(x));
    case DType::kF16: return ToFloat(RoundToFloat16(x));
    default: AQT_DCHECK(dtype == DType::kF32); return x;
  }
}

// The factors that replace division by these scales: inverse[i] belongs to scale[i * stride].
void InvertScales(const QuantizeStep& step, const float* scale, int64_t stride, int64_t n, float* inverse) {
  const bool flush = step.subnormals_are_zero, rounds = step.scale_dtype != DType::kF32;
  for (int64_t i = 0; i < n; ++i) inverse[i] = scale[i * stride];
  for (int64_t i = 0; i < n; ++i) inverse[i] = 1.0f / FlushSubnormalIf(flush, inverse[i]);
  for (int64_t i = 0; rounds && i < n; ++i) inverse[i] = Round(inverse[i], step.scale_dtype);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i)
    inverse[i] = std::fabs(inverse[i]) == kInfinity ? 1.0f : FlushSubnormalIf(flush, inverse[i]);
}

float LargestMagnitude(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
  return largest;
}

// The larger of two absolute values, or NaN if either is NaN.
float MaxOrNan(float a, float b) { return a > b || std::isnan(a) ? a : b; }

// Calls f(first, count, offset) for the maximal runs of [begin, end) whose indices are InnerStride() elements apart.
template <class F>
void ForEachRun(const AxisGroup& axes, int64_t begin, int64_t end, const F& f) {
  const int64_t inner = axes.InnerSize();
  while (begin < end) {
    const int64_t count = axes.rank <= 1 ? end - begin : std::min(end - begin, inner - begin % inner);
    f(begin, count, axes.Offset(begin));
    begin += count;
  }
}

const void* Advance(const void* data, DType dtype, int64_t elements) {
  return static_cast<const char*>(data) + elements * SizeOf(dtype);
}

// ---- staging: a block of an operand in the element type of the packed operand (s8, bf16 or f32), dense, in L1

// Calls f(first row, number of rows, first k, number of k, offset in the source, offset in the stage) for the pieces of
// a block in which both axes have a constant stride.
template <class F>
void ForEachPiece(const Operand& src, const Block& block, const F& f) {
  const int64_t base = src.batch.Offset(block.b);
  ForEachRun(src.rows, block.r0, block.r1, [&](int64_t r, int64_t rows, int64_t row_offset) {
    ForEachRun(src.k, block.k0, block.k1, [&](int64_t k, int64_t cols, int64_t k_offset) {
      f(r, rows, k, cols, base + row_offset + k_offset,
        (r - block.r0) * block.row_stride + (k - block.k0) * block.k_stride);
    });
  });
}

// dst = src for a matrix with any strides on either side, converting each element.
template <class To, class From>
void CopyMatrix(const From* src, int64_t src_row, int64_t src_col, int64_t rows, int64_t cols, To* dst, int64_t dst_row,
                int64_t dst_col) {
  if (src_row == 1 && src_col != 1) {
    std::swap(rows, cols);
    std::swap(src_row, src_col);
    std::swap(dst_row, dst_col);
  }
  for (int64_t r = 0; r < rows; ++r, src += src_row, dst += dst_row) {
    if (std::is_same_v<To, From> && src_col == 1 && dst_col == 1) {
      std::memcpy(dst, src, cols * sizeof(To));
    } else if constexpr (std::is_same_v<From, int8_t>) {
      for (int64_t c = 0; c < cols; ++c) dst[c * dst_col] = static_cast<To>(src[c * src_col]);
    } else if constexpr (std::is_same_v<To, float>) {
      for (int64_t c = 0; c < cols; ++c) dst[c * dst_col] = ToFloat(src[c * src_col]);
    }
  }
}

// T is int8_t, BFloat16 or float.
template <class T>
void StageExact(Target target, const Operand& src, const Block& block, bool subnormals_are_zero, T* stage) {
  const bool by_k = block.k_stride == 1;
  ForEachPiece(src, block, [&](int64_t, int64_t rows, int64_t, int64_t cols, int64_t from, int64_t to) {
    DecodeArgs args;
    args.src = Advance(src.data, src.dtype, from);
    args.dtype = src.dtype;
    args.subnormals_are_zero = subnormals_are_zero;
    args.src_line = by_k ? src.rows.InnerStride() : src.k.InnerStride();
    args.src_step = by_k ? src.k.InnerStride() : src.rows.InnerStride();
    args.lines = by_k ? rows : cols;
    args.count = by_k ? cols : rows;
    args.prefetch = !by_k;
    Decode(target, args, stage + to, by_k ? block.row_stride : block.k_stride);
  });
}

// Source elements that pass through L1 as f32 at a time.
constexpr int64_t kStrip = 1024;

// Whether flushing subnormal elements and products of factors can affect the abs-max or, if the inverse is not large,
// the qvalues. Factors that only shrink cannot: subnormal values stay subnormal, and the abs-max is flushed at the end.
// But a bf16 product may be rounded up to a normal number.
bool FlushesProducts(const QuantizeArgs& args) {
  const Operand& src = args.src;
  if (args.k_factor == nullptr || !args.step.subnormals_are_zero) return false;
  const auto shrinks = [](float factor) { return std::fabs(factor) <= 1.0f; };
  return src.dtype == DType::kBF16 ||
         !std::all_of(args.k_factor, args.k_factor + src.batch.Count() * src.k.Count(), shrinks);
}

// Loads n elements along k or along the rows, starting at element `at` of the source, whose k index is `k`. `flush`:
// whether subnormal elements and products must be set to zero.
void LoadStrip(Target target, const QuantizeArgs& args, int64_t b, int64_t k, int64_t at, bool along_k, bool flush,
               int64_t n, float* strip) {
  const Operand& src = args.src;
  Line line = {.data = Advance(src.data, src.dtype, at), .dtype = src.dtype};
  line.stride = along_k ? src.k.InnerStride() : src.rows.InnerStride();
  if (args.k_factor != nullptr) {
    line.factor = args.k_factor + b * src.k.Count() + k;
    line.factor_stride = along_k ? 1 : 0;
    line.subnormals_are_zero = flush;
  }
  LoadLine(line, n, strip, target);
}

// inverse[(r - r0) * inverse_stride] belongs to row r. `flush`: whether subnormal x must be set to zero.
// `flush_products`: see FlushesProducts.
void StageQuantized(Target target, const QuantizeArgs& args, const Block& block, const float* inverse,
                    int64_t inverse_stride, bool flush, bool flush_products, int8_t* stage) {
  const Operand& src = args.src;
  const QuantizeStep& step = args.step;
  ForEachPiece(src, block, [&](int64_t r, int64_t rows, int64_t k, int64_t cols, int64_t from, int64_t to) {
    QuantizeMatrixArgs q;
    q.x = {Advance(src.data, src.dtype, from), src.dtype, rows, cols, src.rows.InnerStride(), src.k.InnerStride()};
    q.grid.scale = inverse + (r - block.r0) * inverse_stride;
    q.grid.row_stride = inverse_stride;
    q.lo = step.lo;
    q.hi = step.hi;
    q.subnormals_are_zero = flush;
    q.q = stage + to;
    q.q_row_stride = block.row_stride;
    q.q_col_stride = block.k_stride;
    if (args.noise != nullptr) {
      const NoiseOperand& noise = *args.noise;
      q.noise = {&noise.numbers, noise.batch.Offset(block.b) + noise.rows.Offset(r) + noise.k.Offset(k),
                 noise.rows.InnerStride(), noise.k.InnerStride()};
    }
    if (step.product_dtype == src.dtype && args.k_factor == nullptr) return QuantizeMatrix(q, target);
    // All other cases pass through f32, a strip of rows or columns at a time.
    q.product_dtype = step.product_dtype;
    float strip[kStrip];
    const bool by_rows = block.k_stride == 1;
    const int64_t lines = by_rows ? rows : cols, length = by_rows ? cols : rows;
    for (int64_t line = 0; line < lines; ++line) {
      for (int64_t i = 0; i < length; i += kStrip) {
        const int64_t dr = by_rows ? line : i, dc = by_rows ? i : line, n = std::min(kStrip, length - i);
        LoadStrip(target, args, block.b, k + dc, from + dr * q.x.row_stride + dc * q.x.col_stride, by_rows,
                  flush || flush_products, n, strip);
        QuantizeMatrixArgs part = q;
        part.x = {strip, DType::kF32, by_rows ? 1 : n, by_rows ? n : 1, by_rows ? n : 1, by_rows ? 1 : n};
        part.grid.scale += dr * inverse_stride;
        part.q += dr * q.q_row_stride + dc * q.q_col_stride;
        part.noise.first += dr * q.noise.row_stride + dc * q.noise.col_stride;
        QuantizeMatrix(part, target);
      }
    }
  });
}

// The same for 8-bit floats: stages their codes.
void StageCodes(Target target, const QuantizeArgs& args, const Block& block, const float* inverse,
                int64_t inverse_stride, uint8_t* codes) {
  const Operand& src = args.src;
  ForEachPiece(src, block, [&](int64_t r, int64_t rows, int64_t, int64_t cols, int64_t from, int64_t to) {
    QuantizeFp8Args q;
    q.x = {Advance(src.data, src.dtype, from), src.dtype, rows, cols, src.rows.InnerStride(), src.k.InnerStride()};
    q.product_dtype = args.step.product_dtype;
    q.grid.scale = inverse + (r - block.r0) * inverse_stride;
    q.grid.row_stride = inverse_stride;
    q.subnormals_are_zero = args.step.subnormals_are_zero;
    q.q_dtype = args.step.q_dtype;
    q.q = codes + to;
    q.q_row_stride = block.row_stride;
    q.q_col_stride = block.k_stride;
    QuantizeFp8(q, target);
  });
}

// Stages the values of staged codes. T is BFloat16 or float.
template <class T>
void StageCodeValues(Target target, DType dtype, const Block& block, const uint8_t* codes, T* stage) {
  const bool by_k = block.k_stride == 1;
  DecodeArgs args;
  args.src = codes;
  args.dtype = dtype;
  args.src_line = by_k ? block.row_stride : block.k_stride;
  args.lines = by_k ? block.r1 - block.r0 : block.k1 - block.k0;
  args.count = by_k ? block.k1 - block.k0 : block.r1 - block.r0;
  Decode(target, args, stage, args.src_line);
}

// Writes the qvalues of a staged block to the offsets of their sources.
void StoreQvalues(const Operand& src, const Block& block, const void* stage, void* qvalues) {
  ForEachPiece(src, block, [&](int64_t, int64_t rows, int64_t, int64_t cols, int64_t at, int64_t from) {
    CopyMatrix(static_cast<const int8_t*>(stage) + from, block.row_stride, block.k_stride, rows, cols,
               static_cast<int8_t*>(qvalues) + at, src.rows.InnerStride(), src.k.InnerStride());
  });
}

// ---- abs-max

// absmax[i] = the larger of absmax[i] and the abs-max of row i of x; NaN if either is NaN.
void AbsMaxInto(Target target, const FloatMatrix& x, float* absmax) {
  constexpr int64_t kRows = 256;
  float rows[kRows];
  for (int64_t i = 0; i < x.rows; i += kRows) {
    const int64_t n = std::min(kRows, x.rows - i);
    AbsMaxGroups({Advance(x.data, x.dtype, i * x.row_stride), x.dtype, n, x.cols, x.row_stride, x.col_stride}, x.cols,
                 rows, target);
    for (int64_t j = 0; j < n; ++j) absmax[i + j] = MaxOrNan(absmax[i + j], rows[j]);
  }
}

// The same for rows [r, r + rows) and k [k, k + cols) of matrix b, which start at element `from` of the source, by way
// of f32 strips.
void AbsMaxOfStrips(Target target, const QuantizeArgs& args, bool flush, int64_t b, int64_t k, int64_t rows,
                    int64_t cols, int64_t from, float* absmax) {
  const int64_t row_stride = args.src.rows.InnerStride(), k_stride = args.src.k.InnerStride();
  float strips[kStrip * 4];
  if (k_stride == 1 || row_stride != 1) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < cols; i += kStrip) {
        const int64_t n = std::min(kStrip, cols - i);
        LoadStrip(target, args, b, k + i, from + r * row_stride + i * k_stride, /*along_k=*/true, flush, n, strips);
        AbsMaxInto(target, {strips, DType::kF32, 1, n, n, 1}, absmax + r);
      }
    }
    return;
  }
  // Rows are contiguous: several strips of them at a time.
  constexpr int64_t kWidth = 256, kLines = kStrip * 4 / kWidth;
  for (int64_t r = 0; r < rows; r += kWidth) {
    const int64_t n = std::min(kWidth, rows - r);
    for (int64_t i = 0; i < cols; i += kLines) {
      const int64_t lines = std::min(kLines, cols - i);
      for (int64_t j = 0; j < lines; ++j) {
        LoadStrip(target, args, b, k + i + j, from + r * row_stride + (i + j) * k_stride, /*along_k=*/false, flush, n,
                  strips + j * kWidth);
      }
      AbsMaxInto(target, {strips, DType::kF32, n, lines, 1, kWidth}, absmax + r);
    }
  }
}

// absmax[r - r0] = max over k of |x[b, r, k]|, times the factors.
void AbsMaxOfRows(Target target, const QuantizeArgs& args, bool flush_products, int64_t b, int64_t r0, int64_t r1,
                  float* absmax) {
  const Operand& src = args.src;
  std::fill(absmax, absmax + (r1 - r0), 0.0f);
  const Block block = {b, r0, r1, 0, src.k.Count(), 1, 0};
  ForEachPiece(src, block, [&](int64_t, int64_t rows, int64_t k, int64_t cols, int64_t from, int64_t to) {
    if (IsByteInteger(src.dtype) || args.k_factor != nullptr) {
      return AbsMaxOfStrips(target, args, flush_products, b, k, rows, cols, from, absmax + to);
    }
    AbsMaxInto(target,
               {Advance(src.data, src.dtype, from), src.dtype, rows, cols, src.rows.InnerStride(), src.k.InnerStride()},
               absmax + to);
  });
  // Subnormals of f16 are normal in f32, the type of the arithmetic.
  for (int64_t r = 0; r < r1 - r0; ++r) absmax[r] = FlushSubnormalIf(args.step.subnormals_are_zero, absmax[r]);
}

// ---- rotation

// `x` as a dense operand in the order [batch, rows, k], with the axes of `src`, so that noise has them, too.
Operand DenseLike(const Operand& src, const void* x) {
  Operand dense = src;
  dense.data = x;
  int64_t stride = 1;
  for (AxisGroup* group : {&dense.k, &dense.rows, &dense.batch}) {
    for (int i = group->rank; i-- > 0;) {
      group->stride[i] = stride;
      stride *= group->size[i];
    }
  }
  return dense;
}

// to[r * k + c] = the element (r, c) of a matrix with any strides.
template <class T>
void GatherRows(const T* from, int64_t row_stride, int64_t k_stride, int64_t rows, int64_t cols, T* to, int64_t k) {
  if (k_stride == 1) {
    for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * k, from + r * row_stride, cols * sizeof(T));
    return;
  }
  // A few elements of all rows at a time: rows are short if they are contiguous, and both sides then stay in L1.
  constexpr int64_t kCols = 16;
  for (int64_t c0 = 0; c0 < cols; c0 += kCols) {
    const int64_t c1 = std::min(cols, c0 + kCols);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = c0; c < c1; ++c) to[r * k + c] = from[r * row_stride + c * k_stride];
    }
  }
}

// Transforms rows [r0, r1) of matrix b of the source to `to`, dense.
void RotateRows(Target target, const Operand& src, int64_t block, int64_t b, int64_t r0, int64_t r1, void* to_rows) {
  const int64_t k = src.k.Count();
  char* const to = static_cast<char*>(to_rows);
  HadamardArgs rotate{.x = to, .out = to, .dtype = src.dtype, .rows = r1 - r0, .n = k, .x_row_stride = k};
  rotate.out_row_stride = k;
  rotate.block = block;
  if (src.k.rank <= 1 && src.rows.rank <= 1 && src.k.InnerStride() == 1) {
    rotate.x = Advance(src.data, src.dtype, src.batch.Offset(b) + src.rows.Offset(r0));
    rotate.x_row_stride = src.rows.InnerStride();
    return HadamardRows(rotate, target);
  }
  ForEachPiece(src, {b, r0, r1, 0, k, k, 1},
               [&](int64_t, int64_t count, int64_t, int64_t cols, int64_t from, int64_t at) {
                 const auto gather = [&]<class T>(const T* x) {
                   GatherRows(x + from, src.rows.InnerStride(), src.k.InnerStride(), count, cols,
                              reinterpret_cast<T*>(to) + at, k);
                 };
                 switch (src.dtype) {
                   case DType::kBF16: return gather(static_cast<const BFloat16*>(src.data));
                   case DType::kF16: return gather(static_cast<const Float16*>(src.data));
                   default: return gather(static_cast<const float*>(src.data));
                 }
               });
  HadamardRows(rotate, target);
}

// Where row r of matrix b of the transformed rows is kept.
char* Rotated(const QuantizeArgs& args, int64_t b, int64_t r) {
  const int64_t rows = args.src.rows.Count(), k = args.src.k.Count();
  return static_cast<char*>(args.rotated) + (b * rows + r) * k * SizeOf(args.src.dtype);
}

// ---- operands

// The absolute maximum over all elements. Calls begin(b, r0, r1) before it reads these rows.
template <class Begin>
float AbsMaxOfAll(Target target, const QuantizeArgs& args, bool flush_products, Executor* executor,
                  const Begin& begin) {
  const Operand& src = args.src;
  // Non-negative floats are ordered like their bits, with NaN above all.
  std::atomic<uint32_t> max_bits = 0;
  const int64_t rows = src.rows.Count();
  ForEachTask(src, CeilDiv(rows, kTaskRows), executor, [&](int64_t b, int64_t i) {
    float absmax[kTaskRows];
    const int64_t r0 = i * kTaskRows, r1 = std::min(rows, r0 + kTaskRows);
    begin(b, r0, r1);
    AbsMaxOfRows(target, args, flush_products, b, r0, r1, absmax);
    float max = 0;
    for (int64_t r = 0; r < r1 - r0; ++r) max = MaxOrNan(max, absmax[r]);
    const uint32_t bits = __builtin_bit_cast(uint32_t, max);
    uint32_t seen = max_bits.load(std::memory_order_relaxed);
    while (seen < bits && !max_bits.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  });
  return __builtin_bit_cast(float, max_bits.load());
}

// ---- a few rows at a time, which stay in L1 from the rotation to the integers

// The integers of a panel are collected before they are moved into it; a panel with more is packed part by part.
constexpr int64_t kPanelElements = 128 << 10;

// The usual case: dense rows with a dynamic scale each.
bool QuantizesByRows(const PanelFormat& format, const QuantizeArgs& args) {
  const Operand& src = args.src;
  return args.scales == QuantizeArgs::Scales::kPerRow && args.panels != nullptr && args.qvalues == nullptr &&
         args.noise == nullptr && args.k_factor == nullptr && !IsFloat(args.step.q_dtype) &&
         args.step.product_dtype == src.dtype && src.k.rank <= 1 && src.rows.rank <= 1 && src.k.InnerStride() == 1 &&
         format.width * src.k.Count() <= kPanelElements && src.k.Count() > 0;
}

// Finds the scales of panel p of matrix b, and writes it.
void QuantizePanel(Target target, const PanelFormat& format, const QuantizeArgs& args, ScaleRule rule, int64_t b,
                   int64_t p, char* panel) {
  const Operand& src = args.src;
  const int64_t k = src.k.Count(), rows = src.rows.Count(), first = p * format.width;
  const int64_t count = std::min<int64_t>(format.width, rows - first);
  // Rows of one step: rotated ones fit L1 together with their sources.
  constexpr int64_t kMost = 4;
  const int64_t step_rows = std::clamp<int64_t>(kPassBytes / (k * SizeOf(src.dtype)), 1, kMost);
  alignas(64) int8_t qvalues[kPanelElements];
  for (int64_t r = 0; r < count; r += step_rows) {
    const int64_t n = std::min(step_rows, count - r);
    QuantizeMatrixArgs q;
    if (args.hadamard_block != 0) {
      char* const rotated = Rotated(args, b, first);
      RotateRows(target, src, args.hadamard_block, b, first + r, first + r + n, rotated);
      q.x = {rotated, src.dtype, n, k, k, 1};
    } else {
      q.x = {Advance(src.data, src.dtype, src.batch.Offset(b) + src.rows.Offset(first + r)),
             src.dtype,
             n,
             k,
             src.rows.InnerStride(),
             1};
    }
    float* const scale = args.scale + b * rows + first + r;
    AbsMaxGroups(q.x, k, scale, target);
    const bool flush = args.step.subnormals_are_zero;
    for (int64_t i = 0; i < n; ++i) scale[i] = FlushSubnormalIf(flush, scale[i]);
    rule(scale, n);
    float inverse[kMost];
    InvertScales(args.step, scale, 1, n, inverse);
    q.grid.scale = inverse;
    q.grid.row_stride = 1;
    q.lo = args.step.lo;
    q.hi = args.step.hi;
    q.subnormals_are_zero = flush && LargestMagnitude(inverse, n) > 0x1p124f;
    q.q = qvalues + r * k;
    q.q_row_stride = k;
    QuantizeMatrix(q, target);
  }
  PackPanels(target, format, Operand::Dense(qvalues, DType::kS8, count, k), {0, 0, 1, 0, k}, panel,
             /*subnormals_are_zero=*/false);
}

}  // namespace

void QuantizePack(Target target, const PanelFormat& format, const QuantizeArgs& args_in, ScaleRule rule,
                  Executor* executor) {
  const Operand& src = args_in.src;
  const bool rotates = args_in.hadamard_block != 0;
  AQT_DCHECK(!rotates || (args_in.k_factor == nullptr && args_in.rotated != nullptr && !IsByteInteger(src.dtype)));
  QuantizeArgs args = args_in;
  if (rotates) args.src = DenseLike(src, args.rotated);
  const bool float_panels =
      format.element == PanelFormat::Element::kF32 || format.element == PanelFormat::Element::kBF16;
  AQT_DCHECK(args.panels == nullptr || float_panels == IsFloat(args.step.q_dtype));
  static_cast<void>(float_panels);
  const int64_t rows = src.rows.Count();
  const bool flush = args.step.subnormals_are_zero, flush_products = FlushesProducts(args);
  if (args.scales == QuantizeArgs::Scales::kSingle) {
    *args.scale = AbsMaxOfAll(target, args, flush_products, executor, [&](int64_t b, int64_t r0, int64_t r1) {
      if (rotates) RotateRows(target, src, args.hadamard_block, b, r0, r1, Rotated(args, b, r0));
    });
    rule(args.scale, 1);
  }
  const bool rotates_while_packing = rotates && args.scales != QuantizeArgs::Scales::kSingle;
  const bool per_row = args.scales == QuantizeArgs::Scales::kPerRow;
  const int64_t row_stride = per_row ? 1 : args.scales == QuantizeArgs::Scales::kGiven ? args.scale_row_stride : 0;
  const int64_t batch_stride = per_row                                       ? rows
                               : args.scales == QuantizeArgs::Scales::kGiven ? args.scale_batch_stride
                                                                             : 0;
  const Packer packer(target, format, args.src, args.panels);
  if (QuantizesByRows(format, args_in)) {
    ForEachTask(src, packer.TasksPerMatrix(), executor, [&](int64_t b, int64_t i) {
      const PanelRange task = packer.Task(b, i);
      for (int64_t p = task.first; p < task.last; ++p) {
        QuantizePanel(target, format, args_in, rule, b, p, packer.PanelOf(b, p));
      }
    });
    return;
  }
  ForEachTask(args.src, packer.TasksPerMatrix(), executor, [&](int64_t b, int64_t i) {
    const PanelRange task = packer.Task(b, i);
    char* const panels = packer.PanelOf(b, task.first);
    float inverse[kMaxTaskRows];
    // A subnormal x can round to something other than 0 only if it is multiplied by more than 2^125. With noise, the
    // result can change only if the sum is near a rounding boundary, at least about 1/2, so the factor must exceed
    // 2^100.
    const float harmless = args.noise != nullptr ? 0x1p99f : 0x1p124f;
    bool large_inverse = false;
    // The parts of a task are rotated into the same memory, that of its first rows, which stays in cache.
    QuantizeArgs own = args;
    std::optional<int64_t> first;
    const auto begin = [&](int64_t r0, int64_t r1) {
      if (rotates_while_packing) {
        first = first.value_or(r0);
        RotateRows(target, src, args.hadamard_block, b, r0, r1, Rotated(args, b, *first));
        own.src.data = static_cast<const char*>(args.rotated) - (r0 - *first) * args.src.k.Count() * SizeOf(src.dtype);
      }
      float* scale = args.scale + b * batch_stride + r0 * row_stride;
      if (per_row) {
        AbsMaxOfRows(target, own, flush_products, b, r0, r1, scale);
        rule(scale, r1 - r0);
      }
      InvertScales(args.step, scale, row_stride, r1 - r0, inverse);
      large_inverse = LargestMagnitude(inverse, r1 - r0) > harmless;
    };
    if (IsFloat(args.step.q_dtype)) {
      const auto stage = [&](const Block& block, auto* values) {
        alignas(64) uint8_t codes[kStageBytes / sizeof(BFloat16)];
        StageCodes(target, own, block, inverse, row_stride == 0 ? 0 : 1, codes);
        if (args.qvalues != nullptr) StoreQvalues(src, block, codes, args.qvalues);
        if (args.panels != nullptr) StageCodeValues(target, args.step.q_dtype, block, codes, values);
      };
      if (format.element == PanelFormat::Element::kF32) packer.Run<float>(task, panels, begin, stage);
      else packer.Run<BFloat16>(task, panels, begin, stage);
      return;
    }
    packer.Run<int8_t>(task, panels, begin, [&](const Block& block, int8_t* stage) {
      StageQuantized(target, own, block, inverse, row_stride == 0 ? 0 : 1, flush && large_inverse, flush_products,
                     stage);
      if (args.qvalues != nullptr) StoreQvalues(src, block, stage, args.qvalues);
    });
  });
}

void AbsMaxRows(Target target, const Operand& src, bool subnormals_are_zero, float* absmax, Executor* executor) {
  const int64_t rows = src.rows.Count();
  QuantizeArgs args;
  args.src = src;
  args.step.subnormals_are_zero = subnormals_are_zero;
  ForEachTask(src, CeilDiv(rows, kTaskRows), executor, [&](int64_t b, int64_t i) {
    const int64_t r0 = i * kTaskRows, r1 = std::min(rows, r0 + kTaskRows);
    AbsMaxOfRows(target, args, /*flush_products=*/false, b, r0, r1, absmax + b * rows + r0);
  });
}

void PackPanels(Target target, const PanelFormat& format, const Operand& src, const PanelRange& range, void* panels,
                bool subnormals_are_zero) {
  if (PacksLines(format, src, range)) return PackLines(target, format, src, range, panels, subnormals_are_zero);
  char* const to = static_cast<char*>(panels);
  Packer packer(target, format, src, panels);
  packer.MoveIfPossible(subnormals_are_zero);
  const auto begin = [](int64_t, int64_t) {};
  const auto stage = [&](const Block& block, auto* staged) {
    StageExact(target, src, block, subnormals_are_zero, staged);
  };
  switch (format.element) {
    case PanelFormat::Element::kF32: return packer.Run<float>(range, to, begin, stage);
    case PanelFormat::Element::kBF16: return packer.Run<BFloat16>(range, to, begin, stage);
    default: return packer.Run<int8_t>(range, to, begin, stage);
  }
}

void Pack(Target target, const PanelFormat& format, const Operand& src, void* panels, Executor* executor,
          bool subnormals_are_zero) {
  const Packer packer(target, format, src, panels);
  ForEachTask(src, packer.TasksPerMatrix(), executor, [&](int64_t b, int64_t i) {
    const PanelRange range = packer.Task(b, i);
    PackPanels(target, format, src, range, packer.PanelOf(b, range.first), subnormals_are_zero);
  });
}

}  // namespace aqt::kernels
