#ifndef AQT_KERNELS_PANELS_PACKER_H_
#define AQT_KERNELS_PANELS_PACKER_H_

// Divides an operand into blocks that are staged in L1 and moved into panels. For pack.cc.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/panels/interleave.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack_panels.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels::internal {

// The elements to stage: rows [r0, r1) and k [k0, k1) of matrix b. Element (r, k) goes to (r - r0) * row_stride + (k -
// k0) * k_stride.
struct Block {
  int64_t b, r0, r1, k0, k1;
  int64_t row_stride, k_stride;
};

// Rows that one task packs: a multiple of all panel widths, and whole cache lines of a source that is contiguous along
// rows.
inline constexpr int64_t kTaskRows = 96;
// The same for large sources that are contiguous along rows, which are read in longer pieces.
inline constexpr int64_t kMaxTaskRows = 2 * kTaskRows;
// A staged block fits L1 together with the panel lines it becomes.
inline constexpr int64_t kStageBytes = 24 << 10;
// If no panels are written, rows of at least this many elements are not grouped with their neighbours. Each row stays
// in L2 between the passes, and threads share the rows.
inline constexpr int64_t kLongRow = 16 << 10;
// This much of a source that is read along k stays in L1 between two passes.
inline constexpr int64_t kPassBytes = 16 << 10;

// Whether the elements of a source only have to be moved into panels of a format, apart from subnormals.
inline bool IsMoved(const PanelFormat& format, DType dtype) {
  switch (format.element) {
    case PanelFormat::Element::kF32: return dtype == DType::kF32;
    case PanelFormat::Element::kBF16: return dtype == DType::kBF16;
    default: return dtype == DType::kS8;
  }
}

// Iterates over a packed operand: calls stage(block, buffer) for blocks of at most kMaxTaskRows rows and moves the
// staged elements into panels.
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

  // Declares that the source is packed unchanged, so calls of `stage` may be skipped.
  void MoveIfPossible(bool subnormals_are_zero) {
    moves_ = format_.layout == PanelFormat::Layout::kRowSteps && IsMoved(format_, src_.dtype) && src_.k.rank <= 1 &&
             src_.rows.rank <= 1 && src_.k.InnerStride() == 1;
    moves_flush_ = subnormals_are_zero;
  }

  int64_t TasksPerMatrix() const { return CeilDiv(NumPanels(), task_panels_); }

  // The panels of task i of matrix b, and the destination of panel p (null if there are no panels).
  PanelRange Task(int64_t b, int64_t i) const {
    const int64_t first = i * task_panels_, last = std::min(first + task_panels_, NumPanels());
    return {b, first, last, 0, k_};
  }
  char* PanelOf(int64_t b, int64_t p) const {
    return panels_ == nullptr ? nullptr : panels_ + b * format_.PackedBytes(rows_, k_) + p * format_.PanelBytes(k_);
  }

  // Packs the range to the start of `panels`, unless that is null. begin(r0, r1) is called for these rows before stage.
  // T is int8_t, BFloat16 or float.
  template <class T, class Begin, class Stage>
  void Run(const PanelRange& range, char* panels, const Begin& begin, const Stage& stage) const {
    const int64_t panel_bytes = format_.PanelBytes(range.k1 - range.k0);
    // If the source is read along k, pack a few rows at a time: they stay in cache between the passes.
    const int64_t fit = kPassBytes / (std::max<int64_t>(1, k_) * width_ * SizeOf(src_.dtype));
    const int64_t step = by_k_ ? std::clamp<int64_t>(fit, 1, task_panels_) : task_panels_;
    const int64_t full = moves_ ? std::min(range.last, rows_ / width_) : range.last;  // a partial panel is staged alone
    PanelRange part = range;
    for (part.first = range.first; part.first < range.last; part.first = part.last) {
      part.last = part.first < full ? std::min(full, part.first + step) : part.first + 1;
      char* to = panels == nullptr ? nullptr : panels + (part.first - range.first) * panel_bytes;
      PackPart<T>(part, to, begin, stage);
    }
  }

 private:
  int64_t NumPanels() const { return CeilDiv(rows_, width_); }

  template <class T, class Begin, class Stage>
  void PackPart(const PanelRange& part, char* panels, const Begin& begin, const Stage& stage) const {
    const int64_t count = part.last - part.first, padded_rows = count * width_;
    const int64_t r0 = part.first * width_, r1 = std::min(rows_, part.last * width_);
    const int64_t panel_bytes = format_.PanelBytes(part.k1 - part.k0);
    begin(r0, r1);
    alignas(64) char staged_bytes[kStageBytes];  // T may have a constructor
    T* const staged = reinterpret_cast<T*>(staged_bytes);
    // As many whole steps of 16 groups as fit.
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

  // Moves whole steps of whole panels directly from the source.
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

// Runs f(b, i) for all matrices and tasks; on one thread if the operand has too few elements to be worth a wake-up.
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

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_PANELS_PACKER_H_
