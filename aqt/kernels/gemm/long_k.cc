#include "aqt/kernels/gemm/long_k.h"

#include <algorithm>
#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/report.h"
#include "aqt/kernels/panels/pack_panels.h"

namespace aqt::kernels {
namespace {

// For short, scattered runs, which only this prefetch brings in ahead of time.
constexpr int64_t kScatteredLines = 96;

// What packing these panels of an rhs reads, like AheadOf. Also handles rows that are contiguous instead of k.
RowsAhead ColumnsAheadOf(const PanelFormat& format, const Operand& src, const PanelRange& range) {
  if (src.rows.rank > 1 || src.k.rank > 1 || src.rows.InnerStride() != 1) {
    return internal::AheadOf(format, src, range);
  }
  const int64_t size = SizeOf(src.dtype), first = range.first * format.width;
  const int64_t last = std::min(range.last * format.width, src.rows.Count());
  return {.data = static_cast<const char*>(src.data) +
                  (src.batch.Offset(range.matrix) + src.k.Offset(range.k0) + first) * size,
          .rows = range.k1 - range.k0,
          .row_bytes = (last - first) * size,
          .pitch = src.k.InnerStride() * size,
          .most_lines = kScatteredLines};
}

// MultiplyByBlocksOfK without blocks: tiles finish their sums in registers.
void MultiplyWholeK(const GemmKernel& kernel, const GemmProblem& problem, const internal::PanelsOfProduct& part,
                    const LongKCuts& cuts, void* lhs_panels, void* rhs_panels) {
  const int64_t k = problem.k;
  const int64_t height = kernel.lhs.width, width = kernel.rhs.width, panel_bytes = kernel.rhs.PanelBytes(problem.k);
  const int64_t last_row = std::min(part.last_row * height, problem.m);
  PackPanels(kernel.target, kernel.lhs, problem.lhs, {part.b, part.first_row, part.last_row, 0, k}, lhs_panels,
             problem.subnormals_are_zero);
  GemmPanels own = {.lhs = lhs_panels};
  for (int64_t p = part.first_col; p < part.last_col; p += cuts.panels_at_once) {
    const int64_t end = std::min(p + cuts.panels_at_once, part.last_col);
    PackPanels(kernel.target, kernel.rhs, problem.rhs, {part.b, p, end, 0, k}, rhs_panels, problem.subnormals_are_zero);
    // The kernel computes the address of panel p relative to panel 0, which is not stored.
    own.rhs = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(rhs_panels) - p * panel_bytes);
    if (cuts.fetches && end < part.last_col) {
      const int64_t next_end = std::min(end + cuts.panels_at_once, part.last_col);
      own.ahead = ColumnsAheadOf(kernel.rhs, problem.rhs, {part.b, end, next_end, 0, k});
    }
    for (int64_t m = part.first_row * height; m < last_row; m += kernel.block_rows) {
      internal::RunBlock(kernel, problem, own, part.b, m, std::min(m + kernel.block_rows, last_row), p * width,
                         std::min(end * width, problem.n));
      own.ahead = {};
    }
  }
}

}  // namespace

namespace internal {

RowsAhead AheadOf(const PanelFormat& format, const Operand& src, const PanelRange& range) {
  if (src.rows.rank > 1 || src.k.rank > 1 || src.k.InnerStride() != 1) return {};
  const int64_t size = SizeOf(src.dtype), first = range.first * format.width;
  const int64_t last = std::min(range.last * format.width, src.rows.Count());
  return {.data = static_cast<const char*>(src.data) +
                  (src.batch.Offset(range.matrix) + src.rows.Offset(first) + range.k0) * size,
          .rows = last - first,
          .row_bytes = (range.k1 - range.k0) * size,
          .pitch = src.rows.InnerStride() * size};
}

void MultiplyByBlocksOfK(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels* rhs,
                         const PanelsOfProduct& part, const LongKBuffers& buffers) {
  const auto [b, first_row, last_row, first_col, last_col] = part;
  const int64_t height = kernel.lhs.width, width = kernel.rhs.width, m0 = first_row * height;
  const int64_t rows = std::min(last_row * height, problem.m) - m0;
  const int64_t panel_sums = (last_row - first_row) * height * width, pitch = kernel.rhs.PanelBytes(problem.k);
  const int64_t step = kernel.block_groups * kernel.lhs.k_group;
  const auto pack = [&](const PanelFormat& format, const Operand& x, const PanelRange& range, void* to) {
    PackPanels(kernel.target, format, x, range, to, problem.subnormals_are_zero);
  };
  if (problem.k == 0) std::fill_n(buffers.sums, (last_col - first_col) * panel_sums, 0.0f);
  for (int64_t k0 = 0; k0 < problem.k; k0 += step) {
    const int64_t k1 = std::min(problem.k, k0 + step), groups = kernel.lhs.NumGroups(k1 - k0);
    pack(kernel.lhs, problem.lhs, {b, first_row, last_row, k0, k1}, buffers.lhs);
    const RowsAhead next_rows =
        AheadOf(kernel.lhs, problem.lhs, {b, first_row, last_row, k1, std::min(problem.k, k1 + step)});
    for (int64_t p = first_col; p < last_col; ++p) {
      const void* block = buffers.rhs;
      RowsAhead next_panel;
      if (rhs == nullptr) {
        pack(kernel.rhs, problem.rhs, {b, p, p + 1, k0, k1}, buffers.rhs);
        const PanelRange next = p + 1 < last_col
                                    ? PanelRange{b, p + 1, p + 2, k0, k1}
                                    : PanelRange{b, first_col, first_col + 1, k1, std::min(problem.k, k1 + step)};
        next_panel = ColumnsAheadOf(kernel.rhs, problem.rhs, next);
      } else {
        const char* const at = static_cast<const char*>(rhs->rhs) + b * rhs->rhs_batch_bytes + p * pitch +
                               kernel.rhs.GroupBytes(kernel.lhs.NumGroups(k0));
        block = at;
        if (p + 1 < last_col) next_panel = {.data = at + pitch, .rows = 1, .row_bytes = kernel.rhs.GroupBytes(groups)};
      }
      kernel.add_block(buffers.lhs, kernel.lhs.PanelBytes(k1 - k0), block, groups, rows, /*first=*/k0 == 0,
                       buffers.sums + (p - first_col) * panel_sums, next_panel,
                       PartOf(next_rows, p - first_col, last_col - first_col));
    }
  }
  const float* sums = buffers.sums;
  int64_t stored = first_col * width;  // columns that have gone through the block epilogue end here
  for (int64_t p = first_col; p < last_col; ++p, sums += panel_sums) {
    const int64_t n = p * width, end = std::min(n + width, problem.n);
    for (int64_t m = 0; m < rows; m += height) {
      FinishTile(kernel.target, problem, b, m0 + m, std::min(height, rows - m), n, end - n, sums + m * width, width);
    }
    if (end - stored < kEpilogueColumns && p + 1 < last_col) continue;
    RunBlockEpilogue(problem, b, m0, m0 + rows, stored, end);
    stored = end;
  }
}

}  // namespace internal

void RunGemmLongK(const GemmKernel& kernel, const GemmProblem& problem, const LongKCuts& cuts, void* buffer,
                  Executor* executor) {
  if (problem.batch == 0 || problem.m == 0 || problem.n == 0) return;
  const internal::GemmReport report(kernel, problem);
  const auto run_place = [&](int64_t place) {
    char* const at = static_cast<char*>(buffer) + place * cuts.PlaceBytes();
    for (int64_t i = cuts.count * place / cuts.places; i < cuts.count * (place + 1) / cuts.places; ++i) {
      const int64_t part = i % cuts.per_matrix;
      const internal::PanelsOfProduct panels = {i / cuts.per_matrix, 0, kernel.lhs.NumPanels(problem.m),
                                                cuts.n_panels * part / cuts.per_matrix,
                                                cuts.n_panels * (part + 1) / cuts.per_matrix};
      if (cuts.whole_k) {
        MultiplyWholeK(kernel, problem, panels, cuts, at, at + cuts.lhs_bytes);
        continue;
      }
      char* const sums = at + cuts.lhs_bytes + cuts.rhs_bytes;
      internal::MultiplyByBlocksOfK(kernel, problem, /*rhs=*/nullptr, panels,
                                    {at, at + cuts.lhs_bytes, reinterpret_cast<float*>(sums)});
    }
  };
  if (cuts.places == 1) run_place(0);
  else executor->ParallelFor(cuts.places, run_place);
}

}  // namespace aqt::kernels
