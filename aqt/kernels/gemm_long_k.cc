#include "aqt/kernels/gemm_long_k.h"

#include <algorithm>
#include <cstdint>

#include "aqt/kernels/ceil_div.h"
#include "aqt/kernels/gemm_driver.h"
#include "aqt/kernels/gemm_report.h"
#include "aqt/kernels/pack_panels.h"

namespace aqt::kernels {
namespace {

int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// The sums of a part of the columns, which one thread computes: so many stay in L2 beside the operands' blocks.
constexpr int64_t kSumBytes = 640 << 10;
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
    const int64_t fit = std::max<int64_t>(1, kSumBytes / std::max<int64_t>(1, panel_bytes));
    const int64_t least = std::max(CeilDiv(n_panels, fit), CeilDiv(threads, std::max<int64_t>(1, batch)));
    per_matrix = std::clamp<int64_t>(least, 1, std::max<int64_t>(1, n_panels));
    sum_bytes = CeilDiv(n_panels, per_matrix) * panel_bytes;
    count = batch * per_matrix;
    places = std::min(count, threads);
  }
  // Of a place.
  int64_t Bytes() const { return lhs_bytes + rhs_bytes + sum_bytes; }
};

class Run {
 public:
  Run(const GemmKernel& kernel, const Operand& lhs, const Operand& rhs, bool subnormals_are_zero, const GemmArgs& args)
      : kernel_(kernel), lhs_(lhs), rhs_(rhs), flush_(subnormals_are_zero), args_(args) {}

  // Columns of panels [first, last) of matrix b.
  void operator()(int64_t b, int64_t first, int64_t last, const Parts& parts, char* buffer) const {
    char* const rhs_block = buffer + parts.lhs_bytes;
    float* const sums = reinterpret_cast<float*>(rhs_block + parts.rhs_bytes);
    const int64_t step = kernel_.block_groups * kernel_.lhs.k_group;
    if (args_.k == 0) std::fill_n(sums, (last - first) * PanelSums(), 0.0f);
    for (int64_t k0 = 0; k0 < args_.k; k0 += step) {
      const int64_t k1 = std::min(args_.k, k0 + step);
      Pack(kernel_.lhs, lhs_, {b, 0, kernel_.lhs.NumPanels(args_.m), k0, k1}, buffer);
      for (int64_t p = first; p < last; ++p) {
        Pack(kernel_.rhs, rhs_, {b, p, p + 1, k0, k1}, rhs_block);
        kernel_.add_block(buffer, kernel_.lhs.PanelBytes(k1 - k0), rhs_block, kernel_.lhs.NumGroups(k1 - k0), args_.m,
                          /*first=*/k0 == 0, sums + (p - first) * PanelSums(), {});
      }
    }
    Finish(b, first, last, sums);
  }

 private:
  void Pack(const PanelFormat& format, const Operand& x, const PanelRange& range, char* to) const {
    PackPanels(kernel_.target, format, x, range, to, flush_);
  }

  int64_t PanelSums() const { return kernel_.lhs.NumPanels(args_.m) * kernel_.lhs.width * kernel_.rhs.width; }

  void Finish(int64_t b, int64_t first, int64_t last, const float* sums) const {
    const int64_t rows = kernel_.lhs.width, cols = kernel_.rhs.width;
    for (int64_t p = first; p < last; ++p, sums += PanelSums()) {
      for (int64_t m = 0; m < args_.m; m += rows) {
        internal::FinishTile(kernel_.target, args_, b, m, std::min(rows, args_.m - m), p * cols,
                             std::min(cols, args_.n - p * cols), sums + m * cols, cols);
      }
    }
  }

  const GemmKernel& kernel_;
  const Operand &lhs_, &rhs_;
  const bool flush_;
  const GemmArgs& args_;
};

}  // namespace

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
  const Run run(kernel, lhs, rhs, subnormals_are_zero, args);
  const auto run_place = [&](int64_t place) {
    char* const at = static_cast<char*>(buffer) + place * parts.Bytes();
    for (int64_t i = parts.count * place / parts.places; i < parts.count * (place + 1) / parts.places; ++i) {
      const int64_t part = i % parts.per_matrix;
      run(i / parts.per_matrix, parts.n_panels * part / parts.per_matrix,
          parts.n_panels * (part + 1) / parts.per_matrix, parts, at);
    }
  };
  internal::RunReported(kernel, args, [&] {
    if (parts.places == 1) run_place(0);
    else executor->ParallelFor(parts.places, run_place);
  });
}

}  // namespace aqt::kernels
