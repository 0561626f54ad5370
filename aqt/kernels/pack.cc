#include "aqt/kernels/pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "aqt/core/check.h"
#include "aqt/kernels/absmax.h"
#include "aqt/kernels/decode.h"
#include "aqt/kernels/interleave.h"
#include "aqt/kernels/pack_lines.h"
#include "aqt/kernels/pack_panels.h"
#include "aqt/kernels/quantize.h"
#include "aqt/kernels/quantize_fp8.h"

namespace aqt::kernels {
namespace {

constexpr float kSmallestNormal = 0x1p-126f;

float Flush(float x, bool flush) { return flush && std::fabs(x) < kSmallestNormal ? std::copysign(0.0f, x) : x; }

float Round(float x, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return ToFloat(RoundToBFloat16(x));
    case DType::kF16: return ToFloat(RoundToFloat16(x));
    default: AQT_DCHECK(dtype == DType::kF32); return x;
  }
}

// The factor by which a value with this scale is multiplied.
float InverseScale(float scale, const QuantizeStep& step) {
  const float inverse = Round(1.0f / Flush(scale, step.subnormals_are_zero), step.scale_dtype);
  return std::isinf(inverse) ? 1.0f : Flush(inverse, step.subnormals_are_zero);
}

// The larger of two absolute values; NaN if either is NaN.
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

// ---- staging: a block of an operand in the packed operand's element type (s8, bf16 or f32), dense, in L1

// Elements to stage: rows [r0, r1) by k [k0, k1) of matrix b, to (r - r0) * row_stride + (k - k0) * k_stride.
struct Block {
  int64_t b, r0, r1, k0, k1;
  int64_t row_stride, k_stride;
};

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

// Elements of the source that pass through L1 as f32 at once.
constexpr int64_t kStrip = 1024;

// Whether it can matter for the abs-max, or, with an inverse that is not large, for qvalues, that subnormal elements
// and products of factors are zero. Not where factors only shrink: what is subnormal stays so, and the abs-max is
// flushed at the end. But a bf16 product may be rounded up to a normal number.
bool FlushesProducts(const QuantizeArgs& args) {
  const Operand& src = args.src;
  if (args.k_factor == nullptr || !args.step.subnormals_are_zero) return false;
  const auto shrinks = [](float factor) { return std::fabs(factor) <= 1.0f; };
  return src.dtype == DType::kBF16 ||
         !std::all_of(args.k_factor, args.k_factor + src.batch.Count() * src.k.Count(), shrinks);
}

// n elements along k, or along the rows, from element `at` of the source on, whose k is `k`.
// `flush`: whether subnormal elements and products must be set to zero.
void LoadStrip(Target target, const QuantizeArgs& args, int64_t b, int64_t k, int64_t at, bool along_k, bool flush,
               int64_t n, float* strip) {
  const Operand& src = args.src;
  Line line = {.data = Advance(src.data, src.dtype, at), .dtype = src.dtype};
  line.stride = along_k ? src.k.InnerStride() : src.rows.InnerStride();
  if (args.k_factor != nullptr) {
    line.factor = args.k_factor + b * src.k.Count() + k;
    line.factor_stride = along_k ? 1 : 0;
    line.flush_subnormals = flush;
  }
  LoadLine(line, n, strip, target);
}

// inverse[(r - r0) * inverse_stride] belongs to row r. `flush`: whether subnormal x must be set to zero;
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
    q.lo = -step.clip_bound;
    q.hi = step.clip_bound;
    q.flush_subnormals = flush;
    q.q = stage + to;
    q.q_row_stride = block.row_stride;
    q.q_col_stride = block.k_stride;
    if (args.noise != nullptr) {
      const NoiseOperand& noise = *args.noise;
      q.noise = {&noise.numbers, noise.batch.Offset(block.b) + noise.rows.Offset(r) + noise.k.Offset(k),
                 noise.rows.InnerStride(), noise.k.InnerStride()};
    }
    if (step.product_dtype == src.dtype && args.k_factor == nullptr) return QuantizeMatrix(q, target);
    // Others pass through f32, a strip of rows or columns at a time.
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

// The same to 8-bit floats: their codes.
void StageCodes(Target target, const QuantizeArgs& args, const Block& block, const float* inverse,
                int64_t inverse_stride, uint8_t* codes) {
  const Operand& src = args.src;
  ForEachPiece(src, block, [&](int64_t r, int64_t rows, int64_t, int64_t cols, int64_t from, int64_t to) {
    QuantizeFp8Args q;
    q.x = {Advance(src.data, src.dtype, from), src.dtype, rows, cols, src.rows.InnerStride(), src.k.InnerStride()};
    q.product_dtype = args.step.product_dtype;
    q.grid.scale = inverse + (r - block.r0) * inverse_stride;
    q.grid.row_stride = inverse_stride;
    q.flush_subnormals = args.step.subnormals_are_zero;
    q.q_dtype = args.step.q_dtype;
    q.q = codes + to;
    q.q_row_stride = block.row_stride;
    q.q_col_stride = block.k_stride;
    QuantizeFp8(q, target);
  });
}

// The values of staged codes. T is BFloat16 or float.
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

// absmax[i] = the larger of absmax[i] and the abs-max of row i of x; NaN if there is one.
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

// The same for rows [r, r + rows) and k [k, k + cols) of matrix b, which begin at element `from` of the source, through
// strips of f32.
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
  // Rows are contiguous: several strips of them at once.
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
  // Subnormals of f16 are normal in f32, which the arithmetic uses.
  for (int64_t r = 0; r < r1 - r0; ++r) absmax[r] = Flush(absmax[r], args.step.subnormals_are_zero);
}

// ---- blocks

// Rows that one task packs: a multiple of all panel widths, and whole cache lines of a source that is contiguous along
// rows.
constexpr int64_t kTaskRows = 96;
// For large sources that are contiguous along rows: longer pieces of them.
constexpr int64_t kMaxTaskRows = 2 * kTaskRows;
// A staged block fits L1 beside the panels' lines that it becomes.
constexpr int64_t kStageBytes = 24 << 10;
// Rows of so many elements are not packed with their neighbours if no panels are written: each stays in L2 between the
// passes, and threads share them.
constexpr int64_t kLongRow = 16 << 10;
// So much of a source that is read along k stays in L1 between two passes.
constexpr int64_t kPassBytes = 16 << 10;

// Whether the elements of a source need no more than to be moved into panels of a format, apart from subnormals.
bool IsMoved(const PanelFormat& format, DType dtype) {
  switch (format.element) {
    case PanelFormat::Element::kF32: return dtype == DType::kF32;
    case PanelFormat::Element::kBF16: return dtype == DType::kBF16;
    default: return dtype == DType::kS8;
  }
}

// Walks a packed operand: calls stage(block, buffer) for blocks of at most kMaxTaskRows rows and moves the staged
// elements into panels.
class Packer {
 public:
  Packer(Target target, const PanelFormat& format, const Operand& src, void* panels)
      : target_(target),
        format_(format),
        src_(src),
        panels_(static_cast<char*>(panels)),
        rows_(src.rows.Count()),
        k_(src.k.Count()),
        by_k_(src.k.InnerStride() == 1 || src.rows.InnerStride() != 1),
        width_(panels == nullptr && by_k_ && k_ >= kLongRow ? 1 : format.width),
        task_panels_(width_ == 1                         ? 1
                     : by_k_ || rows_ < 8 * kMaxTaskRows ? kTaskRows / width_
                                                         : kMaxTaskRows / width_) {
    AQT_DCHECK(kTaskRows % width_ == 0);
  }

  // The source is to be packed as it is: what `stage` does may be left out.
  void MoveIfPossible(bool subnormals_are_zero) {
    moves_ = format_.layout == PanelFormat::Layout::kRowSteps && IsMoved(format_, src_.dtype) && src_.k.rank <= 1 &&
             src_.rows.rank <= 1 && src_.k.InnerStride() == 1;
    moves_flush_ = subnormals_are_zero;
  }

  int64_t TasksPerMatrix() const { return (NumPanels() + task_panels_ - 1) / task_panels_; }

  // The panels of task i of matrix b, and where one of them belongs (null if there are none).
  PanelRange Task(int64_t b, int64_t i) const {
    const int64_t first = i * task_panels_, last = std::min(first + task_panels_, NumPanels());
    return {b, first, last, 0, k_};
  }
  char* PanelOf(int64_t b, int64_t p) const {
    return panels_ == nullptr ? nullptr : panels_ + b * format_.PackedBytes(rows_, k_) + p * format_.PanelBytes(k_);
  }

  // Packs these to the beginning of `panels`, if that is not null. begin(r0, r1) is called before stage for these rows.
  // T is int8_t, BFloat16 or float.
  template <class T, class Begin, class Stage>
  void Run(const PanelRange& range, char* panels, const Begin& begin, const Stage& stage) const {
    const int64_t panel_bytes = format_.PanelBytes(range.k1 - range.k0);
    // A few rows at a time if the source is read along k: they stay in cache between the passes.
    const int64_t fit = kPassBytes / (std::max<int64_t>(1, k_) * width_ * SizeOf(src_.dtype));
    const int64_t step = by_k_ ? std::clamp<int64_t>(fit, 1, task_panels_) : task_panels_;
    const int64_t full = moves_ ? std::min(range.last, rows_ / width_) : range.last;  // one that is not is staged alone
    PanelRange part = range;
    for (part.first = range.first; part.first < range.last; part.first = part.last) {
      part.last = part.first < full ? std::min(full, part.first + step) : part.first + 1;
      char* to = panels == nullptr ? nullptr : panels + (part.first - range.first) * panel_bytes;
      PackPart<T>(part, to, begin, stage);
    }
  }

 private:
  int64_t NumPanels() const { return (rows_ + width_ - 1) / width_; }

  template <class T, class Begin, class Stage>
  void PackPart(const PanelRange& part, char* panels, const Begin& begin, const Stage& stage) const {
    const int64_t count = part.last - part.first, padded_rows = count * width_;
    const int64_t r0 = part.first * width_, r1 = std::min(rows_, part.last * width_);
    const int64_t panel_bytes = format_.PanelBytes(part.k1 - part.k0);
    begin(r0, r1);
    alignas(64) char staged_bytes[kStageBytes];  // T may have a constructor
    T* const staged = reinterpret_cast<T*>(staged_bytes);
    // Whole steps of 16 groups, as many as fit.
    const int64_t step_k = PanelFormat::kStepGroups * format_.k_group;
    const int64_t lines = by_k_ ? padded_rows : (padded_rows + 15) / 16 * 16;
    const int64_t chunk = kStageBytes / int64_t{sizeof(T)} / lines / step_k * step_k;
    const int64_t moved = moves_ && r1 - r0 == padded_rows ? (part.k1 - part.k0) / step_k * step_k : 0;
    if (moved > 0) Move<T>(part, panels, moved);
    for (int64_t k0 = part.k0 + moved; k0 < part.k1; k0 += chunk) {
      const int64_t k1 = std::min(part.k1, k0 + chunk);
      const int64_t padded_k = (k1 - k0 + step_k - 1) / step_k * step_k;
      const int64_t row_stride = by_k_ ? padded_k : 1, k_stride = by_k_ ? 1 : lines;
      if (r1 - r0 < lines || k1 - k0 < padded_k) std::memset(staged_bytes, 0, lines * padded_k * sizeof(T));
      stage(Block{part.matrix, r0, r1, k0, k1, row_stride, k_stride}, staged);
      if (panels == nullptr) continue;
      internal::Interleave(target_, format_, staged, row_stride, k_stride, k0 - part.k0, k1 - part.k0,
                           {panels, count, panel_bytes});
    }
    if (panels != nullptr && part.k0 == part.k1 && format_.has_correction) {
      for (int64_t p = 0; p < count; ++p) std::memset(panels + p * panel_bytes, 0, format_.HeaderBytes());
    }
  }

  // Whole steps of whole panels, straight from the source.
  template <class T>
  void Move(const PanelRange& part, char* panels, int64_t k) const {
    const int64_t row_stride = src_.rows.InnerStride();
    const T* from =
        static_cast<const T*>(src_.data) + src_.batch.Offset(part.matrix) + part.first * width_ * row_stride + part.k0;
    internal::Interleave(target_, format_, from, row_stride, 1, 0, k,
                         {panels, part.last - part.first, format_.PanelBytes(part.k1 - part.k0)}, moves_flush_);
  }

  const Target target_;
  const PanelFormat& format_;
  const Operand& src_;
  char* const panels_;
  bool moves_ = false, moves_flush_ = false;
  const int64_t rows_, k_;
  const bool by_k_;
  const int64_t width_;  // of a panel
  const int64_t task_panels_;
};

// Runs f(b, i) for all matrices and tasks, on one thread if the operand has too few elements to be worth a wake-up.
template <class F>
void ForEachTask(const Operand& src, int64_t tasks_per_matrix, Executor* executor, const F& f) {
  constexpr int64_t kMinParallelElements = 64 << 10;
  const int64_t batch = src.batch.Count(), tasks = batch * tasks_per_matrix;
  const auto task = [&](int64_t i) { f(i / tasks_per_matrix, i % tasks_per_matrix); };
  if (executor == nullptr || tasks <= 1 || batch * src.rows.Count() * src.k.Count() < kMinParallelElements) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  } else {
    executor->ParallelFor(tasks, task);
  }
}

// The absolute maximum of all elements.
float AbsMaxOfAll(Target target, const QuantizeArgs& args, bool flush_products, Executor* executor) {
  const Operand& src = args.src;
  // Non-negative floats are ordered like their bits, with NaN above all.
  std::atomic<uint32_t> max_bits = 0;
  const int64_t rows = src.rows.Count();
  ForEachTask(src, (rows + kTaskRows - 1) / kTaskRows, executor, [&](int64_t b, int64_t i) {
    float absmax[kTaskRows];
    const int64_t r0 = i * kTaskRows, r1 = std::min(rows, r0 + kTaskRows);
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

}  // namespace

void QuantizePack(Target target, const PanelFormat& format, const QuantizeArgs& args, ScaleRule rule,
                  Executor* executor) {
  const bool float_panels =
      format.element == PanelFormat::Element::kF32 || format.element == PanelFormat::Element::kBF16;
  AQT_DCHECK(args.panels == nullptr || float_panels == IsFloat(args.step.q_dtype));
  static_cast<void>(float_panels);
  const Operand& src = args.src;
  const int64_t rows = src.rows.Count();
  const bool flush = args.step.subnormals_are_zero, flush_products = FlushesProducts(args);
  if (args.scales == QuantizeArgs::Scales::kSingle) {
    *args.scale = AbsMaxOfAll(target, args, flush_products, executor);
    rule(args.scale, 1);
  }
  const bool per_row = args.scales == QuantizeArgs::Scales::kPerRow;
  const int64_t row_stride = per_row ? 1 : args.scales == QuantizeArgs::Scales::kGiven ? args.scale_row_stride : 0;
  const int64_t batch_stride = per_row                                       ? rows
                               : args.scales == QuantizeArgs::Scales::kGiven ? args.scale_batch_stride
                                                                             : 0;
  const Packer packer(target, format, src, args.panels);
  ForEachTask(src, packer.TasksPerMatrix(), executor, [&](int64_t b, int64_t i) {
    const PanelRange task = packer.Task(b, i);
    char* const panels = packer.PanelOf(b, task.first);
    float inverse[kMaxTaskRows];
    // A subnormal x can only round to something other than 0 if it is multiplied by more than 2^125, and change the sum
    // with noise that rounds to something else, at least about 1/2, if it is multiplied by more than 2^100.
    const float harmless = args.noise != nullptr ? 0x1p99f : 0x1p124f;
    bool large_inverse = false;
    const auto begin = [&](int64_t r0, int64_t r1) {
      float* scale = args.scale + b * batch_stride + r0 * row_stride;
      if (per_row) {
        AbsMaxOfRows(target, args, flush_products, b, r0, r1, scale);
        rule(scale, r1 - r0);
      }
      large_inverse = false;
      for (int64_t r = 0; r < r1 - r0; ++r) {
        inverse[r] = InverseScale(scale[r * row_stride], args.step);
        large_inverse |= std::fabs(inverse[r]) > harmless;
      }
    };
    if (IsFloat(args.step.q_dtype)) {
      const auto stage = [&](const Block& block, auto* values) {
        alignas(64) uint8_t codes[kStageBytes / sizeof(BFloat16)];
        StageCodes(target, args, block, inverse, row_stride == 0 ? 0 : 1, codes);
        if (args.qvalues != nullptr) StoreQvalues(src, block, codes, args.qvalues);
        if (args.panels != nullptr) StageCodeValues(target, args.step.q_dtype, block, codes, values);
      };
      if (format.element == PanelFormat::Element::kF32) packer.Run<float>(task, panels, begin, stage);
      else packer.Run<BFloat16>(task, panels, begin, stage);
      return;
    }
    packer.Run<int8_t>(task, panels, begin, [&](const Block& block, int8_t* stage) {
      StageQuantized(target, args, block, inverse, row_stride == 0 ? 0 : 1, flush && large_inverse, flush_products,
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
  ForEachTask(src, (rows + kTaskRows - 1) / kTaskRows, executor, [&](int64_t b, int64_t i) {
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
