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

int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

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

// The number of threads that the buffer has room for.
constexpr int64_t kMaxThreads = 8;

// If all rows of a matrix, and panels of its columns, are at most this large with all of k, they stay in L2 and k is
// not split.
constexpr int64_t kWholeLhsBytes = 512 << 10, kWholeRhsBytes = 128 << 10;

// A part of the work is all rows of a matrix and some panels of its columns. Each thread has its own place in the
// buffer.
struct Parts {
  int64_t count = 0, per_matrix = 0, places = 0;
  int64_t n_panels = 0;
  bool whole_k = false;        // no blocks of k and no sums
  int64_t panels_at_once = 1;  // panels of columns, with whole_k
  int64_t lhs_bytes = 0, rhs_bytes = 0, sum_bytes = 0;

  Parts(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k, int64_t threads)
      : n_panels(kernel.rhs.NumPanels(n)),
        whole_k(kernel.lhs.PackedBytes(m, k) <= kWholeLhsBytes && kernel.rhs.PanelBytes(k) <= kWholeRhsBytes) {
    const int64_t step = whole_k ? k : std::min<int64_t>(k, kernel.block_groups * kernel.lhs.k_group);
    lhs_bytes = RoundUp(kernel.lhs.PackedBytes(m, step), kPanelAlignment);
    rhs_bytes = kernel.rhs.PanelBytes(step);
    const int64_t panel_bytes = kernel.lhs.NumPanels(m) * kernel.lhs.width * kernel.rhs.width * int64_t{sizeof(float)};
    const int64_t fit = std::max<int64_t>(1, internal::kSumBytes / std::max<int64_t>(1, panel_bytes));
    const int64_t least = whole_k ? 1 : CeilDiv(n_panels, fit);
    // An equal number of parts for each thread.
    const int64_t unit = CeilDiv(threads, std::max<int64_t>(1, batch));
    per_matrix = std::clamp<int64_t>(RoundUp(least, unit), 1, std::max<int64_t>(1, n_panels));
    const int64_t most_panels = CeilDiv(n_panels, per_matrix);
    if (whole_k) {
      panels_at_once =
          std::clamp<int64_t>(kWholeRhsBytes / std::max<int64_t>(1, rhs_bytes), 1, std::max<int64_t>(1, most_panels));
      rhs_bytes *= panels_at_once;
    } else {
      sum_bytes = most_panels * panel_bytes;
    }
    count = batch * per_matrix;
    places = std::min(count, threads);
  }
  int64_t Bytes() const { return places * PlaceBytes(); }
  int64_t PlaceBytes() const { return lhs_bytes + rhs_bytes + sum_bytes; }
};

// An rhs of this size leaves the caches before its panels are read.
constexpr int64_t kFarBytes = 16 << 20;

// MultiplyByBlocksOfK without blocks: tiles finish their sums in registers.
void MultiplyWholeK(const GemmKernel& kernel, const GemmProblem& problem, const internal::PanelsOfProduct& part,
                    int64_t panels_at_once, void* lhs_panels, void* rhs_panels) {
  const int64_t k = problem.k;
  const int64_t height = kernel.lhs.width, width = kernel.rhs.width, panel_bytes = kernel.rhs.PanelBytes(problem.k);
  const int64_t last_row = std::min(part.last_row * height, problem.m);
  const bool is_far = kernel.rhs.PackedBytes(problem.n, problem.k) >= kFarBytes;
  PackPanels(kernel.target, kernel.lhs, problem.lhs, {part.b, part.first_row, part.last_row, 0, k}, lhs_panels,
             problem.subnormals_are_zero);
  GemmPanels own = {.lhs = lhs_panels};
  for (int64_t p = part.first_col; p < part.last_col; p += panels_at_once) {
    const int64_t end = std::min(p + panels_at_once, part.last_col);
    PackPanels(kernel.target, kernel.rhs, problem.rhs, {part.b, p, end, 0, k}, rhs_panels, problem.subnormals_are_zero);
    // The kernel looks for panel p behind those before it, which are not there.
    own.rhs = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(rhs_panels) - p * panel_bytes);
    if (is_far && end < part.last_col) {
      const int64_t next_end = std::min(end + panels_at_once, part.last_col);
      own.ahead = ColumnsAheadOf(kernel.rhs, problem.rhs, {part.b, end, next_end, 0, k});
    }
    for (int64_t m = part.first_row * height; m < last_row; m += kernel.block_rows) {
      internal::RunBlock(kernel, problem, own, part.b, m, std::min(m + kernel.block_rows, last_row), p * width,
                         std::min(end * width, problem.n));
      own.ahead = {};
    }
  }
}

// Limit on the total size of the lhs copies that all threads of a small product pack.
constexpr int64_t kSmallBytes = 640 << 10;
// A block of k of the rows that stays in L2, or close to it.
constexpr int64_t kNearBytes = 1 << 20;
// On one thread, with fewer rows than this, accumulating blocks of k does not pay off.
constexpr int64_t kMinRowsOfOneThread = 96;

bool IsFaster(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k, int64_t threads) {
  if (!CanRunLongK(kernel) || threads > kMaxThreads || batch * m * n * k == 0) return false;
  const Parts parts(kernel, batch, m, n, k, threads);
  if (parts.count % threads != 0) return false;
  if (kernel.rhs.PackedBytes(n, k) >= kFarBytes && parts.lhs_bytes <= kNearBytes) {
    return threads > 1 || m >= kMinRowsOfOneThread;
  }
  // Parts then differ by at most one panel of columns, out of four or more.
  const bool even = parts.n_panels % threads == 0 || parts.n_panels >= 4 * threads;
  return threads > batch && even && threads * kernel.lhs.PackedBytes(m, k) <= kSmallBytes;
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

bool CanRunLongK(const GemmKernel& kernel) { return kernel.add_block != nullptr; }

int64_t LongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k) {
  int64_t bytes = 0;
  for (int64_t threads = 1; threads <= kMaxThreads; ++threads) {
    bytes = std::max(bytes, Parts(kernel, batch, m, n, k, threads).Bytes());
  }
  return bytes;
}

bool IsFasterLongK(const GemmKernel& kernel, const GemmProblem& problem, const Executor* executor) {
  return IsFaster(kernel, problem.batch, problem.m, problem.n, problem.k, internal::NumThreads(problem, executor));
}

int64_t FasterLongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k) {
  // NumThreads gives a smaller product one thread, and its rhs is below kFarBytes.
  const double work = static_cast<double>(batch) * m * n * k;
  if (!CanRunLongK(kernel) || work < internal::kMinParallelWork) return 0;
  int64_t bytes = 0;
  for (int64_t threads = 1; threads <= kMaxThreads; ++threads) {
    if (!IsFaster(kernel, batch, m, n, k, threads)) continue;
    bytes = std::max(bytes, Parts(kernel, batch, m, n, k, threads).Bytes());
  }
  return bytes;
}

void RunGemmLongK(const GemmKernel& kernel, const GemmProblem& problem, void* buffer, Executor* executor) {
  if (problem.batch == 0 || problem.m == 0 || problem.n == 0) return;
  const int64_t threads = std::min(internal::NumThreads(problem, executor), kMaxThreads);
  const Parts parts(kernel, problem.batch, problem.m, problem.n, problem.k, threads);
  const auto run_place = [&](int64_t place) {
    char* const at = static_cast<char*>(buffer) + place * parts.PlaceBytes();
    for (int64_t i = parts.count * place / parts.places; i < parts.count * (place + 1) / parts.places; ++i) {
      const int64_t part = i % parts.per_matrix;
      const internal::PanelsOfProduct panels = {i / parts.per_matrix, 0, kernel.lhs.NumPanels(problem.m),
                                                parts.n_panels * part / parts.per_matrix,
                                                parts.n_panels * (part + 1) / parts.per_matrix};
      if (parts.whole_k) {
        MultiplyWholeK(kernel, problem, panels, parts.panels_at_once, at, at + parts.lhs_bytes);
        continue;
      }
      char* const sums = at + parts.lhs_bytes + parts.rhs_bytes;
      internal::MultiplyByBlocksOfK(kernel, problem, /*rhs=*/nullptr, panels,
                                    {at, at + parts.lhs_bytes, reinterpret_cast<float*>(sums)});
    }
  };
  internal::RunReported(kernel, problem, [&] {
    if (parts.places == 1) run_place(0);
    else executor->ParallelFor(parts.places, run_place);
  });
}

}  // namespace aqt::kernels
