#include "aqt/kernels/gemm_long_k.h"

#include <algorithm>
#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/kernels/ceil_div.h"
#include "aqt/kernels/gemm_driver.h"
#include "aqt/kernels/gemm_report.h"
#include "aqt/kernels/pack_panels.h"

namespace aqt::kernels {
namespace {

int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// The i-th of n parts of these rows.
RowsAhead Part(const RowsAhead& ahead, int64_t i, int64_t n) {
  const int64_t first = ahead.rows * i / n, last = ahead.rows * (i + 1) / n;
  RowsAhead part = ahead;
  part.data += first * ahead.pitch;
  part.rows = last - first;
  return part;
}

// Threads that the buffer has room for.
constexpr int64_t kMaxThreads = 8;

// A part of the work is all rows of a matrix and a few panels of its columns. Each thread has a place in the buffer.
struct Parts {
  int64_t count = 0, per_matrix = 0, places = 0;
  int64_t n_panels = 0;
  int64_t lhs_bytes = 0, rhs_bytes = 0, sum_bytes = 0;

  Parts(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t threads)
      : n_panels(kernel.rhs.NumPanels(n)),
        lhs_bytes(RoundUp(kernel.lhs.PackedBytes(m, kernel.block_groups * kernel.lhs.k_group), kPanelAlignment)),
        rhs_bytes(kernel.rhs.PanelBytes(kernel.block_groups * kernel.rhs.k_group)) {
    const int64_t panel_bytes = kernel.lhs.NumPanels(m) * kernel.lhs.width * kernel.rhs.width * int64_t{sizeof(float)};
    const int64_t fit = std::max<int64_t>(1, internal::kLongKSumBytes / std::max<int64_t>(1, panel_bytes));
    const int64_t least = std::max(CeilDiv(n_panels, fit), CeilDiv(threads, std::max<int64_t>(1, batch)));
    per_matrix = std::clamp<int64_t>(least, 1, std::max<int64_t>(1, n_panels));
    sum_bytes = CeilDiv(n_panels, per_matrix) * panel_bytes;
    count = batch * per_matrix;
    places = std::min(count, threads);
  }
  // Of a place.
  int64_t Bytes() const { return lhs_bytes + rhs_bytes + sum_bytes; }
};

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

void MultiplyByBlocksOfK(const GemmKernel& kernel, const Operand& lhs, const Operand* rhs, bool subnormals_are_zero,
                         const GemmArgs& args, const PanelsOfProduct& part, const LongKBuffers& buffers) {
  const auto [b, first_row, last_row, first_col, last_col] = part;
  const int64_t height = kernel.lhs.width, width = kernel.rhs.width, m0 = first_row * height;
  const int64_t rows = std::min(last_row * height, args.m) - m0;
  const int64_t panel_sums = (last_row - first_row) * height * width, pitch = kernel.rhs.PanelBytes(args.k);
  const int64_t step = kernel.block_groups * kernel.lhs.k_group;
  const auto pack = [&](const PanelFormat& format, const Operand& x, const PanelRange& range, void* to) {
    PackPanels(kernel.target, format, x, range, to, subnormals_are_zero);
  };
  if (args.k == 0) std::fill_n(buffers.sums, (last_col - first_col) * panel_sums, 0.0f);
  for (int64_t k0 = 0; k0 < args.k; k0 += step) {
    const int64_t k1 = std::min(args.k, k0 + step), groups = kernel.lhs.NumGroups(k1 - k0);
    pack(kernel.lhs, lhs, {b, first_row, last_row, k0, k1}, buffers.lhs);
    const RowsAhead next_rows = AheadOf(kernel.lhs, lhs, {b, first_row, last_row, k1, std::min(args.k, k1 + step)});
    for (int64_t p = first_col; p < last_col; ++p) {
      const void* block = buffers.rhs;
      RowsAhead next_panel;
      if (rhs != nullptr) {
        pack(kernel.rhs, *rhs, {b, p, p + 1, k0, k1}, buffers.rhs);
      } else {
        const char* const at = static_cast<const char*>(args.rhs) + b * args.rhs_batch_bytes + p * pitch +
                               kernel.rhs.GroupBytes(kernel.lhs.NumGroups(k0));
        block = at;
        if (p + 1 < last_col) next_panel = {.data = at + pitch, .rows = 1, .row_bytes = kernel.rhs.GroupBytes(groups)};
      }
      kernel.add_block(buffers.lhs, kernel.lhs.PanelBytes(k1 - k0), block, groups, rows, /*first=*/k0 == 0,
                       buffers.sums + (p - first_col) * panel_sums, next_panel,
                       Part(next_rows, p - first_col, last_col - first_col));
    }
  }
  const float* sums = buffers.sums;
  for (int64_t p = first_col; p < last_col; ++p, sums += panel_sums) {
    for (int64_t m = 0; m < rows; m += height) {
      FinishTile(kernel.target, args, b, m0 + m, std::min(height, rows - m), p * width,
                 std::min(width, args.n - p * width), sums + m * width, width);
    }
  }
}

}  // namespace internal

bool CanRunLongK(const GemmKernel& kernel) { return kernel.add_block != nullptr; }

int64_t LongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n) {
  int64_t bytes = 0;
  for (int64_t threads = 1; threads <= kMaxThreads; ++threads) {
    const Parts parts(kernel, batch, m, n, threads);
    bytes = std::max(bytes, parts.places * parts.Bytes());
  }
  return bytes;
}

void RunGemmLongK(const GemmKernel& kernel, const Operand& lhs, const Operand& rhs, bool subnormals_are_zero,
                  const GemmArgs& args, void* buffer, Executor* executor) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  const int64_t threads = std::min(internal::NumThreads(args, executor), kMaxThreads);
  const Parts parts(kernel, args.batch, args.m, args.n, threads);
  const auto run_place = [&](int64_t place) {
    char* const at = static_cast<char*>(buffer) + place * parts.Bytes();
    for (int64_t i = parts.count * place / parts.places; i < parts.count * (place + 1) / parts.places; ++i) {
      const int64_t part = i % parts.per_matrix;
      const internal::PanelsOfProduct panels = {i / parts.per_matrix, 0, kernel.lhs.NumPanels(args.m),
                                                parts.n_panels * part / parts.per_matrix,
                                                parts.n_panels * (part + 1) / parts.per_matrix};
      char* const sums = at + parts.lhs_bytes + parts.rhs_bytes;
      internal::MultiplyByBlocksOfK(kernel, lhs, &rhs, subnormals_are_zero, args, panels,
                                    {at, at + parts.lhs_bytes, reinterpret_cast<float*>(sums)});
    }
  };
  internal::RunReported(kernel, args, [&] {
    if (parts.places == 1) run_place(0);
    else executor->ParallelFor(parts.places, run_place);
  });
}

}  // namespace aqt::kernels
