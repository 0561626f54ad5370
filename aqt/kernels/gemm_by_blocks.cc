#include "aqt/kernels/gemm_by_blocks.h"

#include <algorithm>
#include <cstdint>

#include "aqt/kernels/ceil_div.h"
#include "aqt/kernels/gemm_driver.h"
#include "aqt/kernels/gemm_report.h"
#include "aqt/kernels/pack_panels.h"

namespace aqt::kernels {
namespace {

// Each thread has several parts of the work, so that a slow one does not hold up the others.
constexpr int64_t kPartsPerThread = 4;
// Even if they do not fit L2: so many rows hide the way of the rhs from L3.
constexpr int64_t kMinBlockRows = 48;

// How the rows of a matrix are cut.
struct Blocks {
  int64_t panels = 0, panel_bytes = 0;
  int64_t count = 0, max_panels = 0;

  Blocks(const GemmKernel& kernel, int64_t m, int64_t k)
      : panels(kernel.lhs.NumPanels(m)), panel_bytes(kernel.lhs.PanelBytes(k)) {
    const int64_t width = kernel.lhs.width, most = kernel.block_rows / width;
    const int64_t least = std::min(CeilDiv(kMinBlockRows, width), most);
    count = CeilDiv(panels, std::clamp(internal::kBlockBytes / std::max<int64_t>(1, panel_bytes), least, most));
    max_panels = CeilDiv(panels, count);
  }
  int64_t First(int64_t block) const { return panels * block / count; }
  int64_t Bytes() const { return max_panels * panel_bytes; }
};

int64_t NumParts(const Blocks& blocks, int64_t batch, int64_t threads, int64_t buffer_bytes) {
  const int64_t room = buffer_bytes / std::max<int64_t>(1, blocks.Bytes());
  return std::min({batch * blocks.count, room, threads == 1 ? 1 : threads * kPartsPerThread});
}

}  // namespace

bool ShouldRunByBlocks(const GemmKernel& kernel, const Operand& lhs, int64_t buffer_bytes, const Executor* executor) {
  const int64_t m = lhs.rows.Count(), k = lhs.k.Count(), batch = lhs.batch.Count();
  if (batch == 0 || m == 0 || k == 0) return false;
  const int64_t threads = executor == nullptr ? 1 : executor->NumThreads();
  return NumParts(Blocks(kernel, m, k), batch, threads, buffer_bytes) >= threads;
}

void RunGemmByBlocks(const GemmKernel& kernel, const Operand& lhs, bool subnormals_are_zero, const GemmArgs& args,
                     void* buffer, int64_t buffer_bytes, Executor* executor) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  const Blocks blocks(kernel, args.m, args.k);
  const double work = static_cast<double>(args.batch) * args.m * args.n * args.k;
  const bool one_thread = executor == nullptr || work < internal::kMinParallelWork;
  const int64_t parts = NumParts(blocks, args.batch, one_thread ? 1 : executor->NumThreads(), buffer_bytes);
  const auto run = [&](int64_t part) {
    char* const panels = static_cast<char*>(buffer) + part * blocks.Bytes();
    const int64_t all = args.batch * blocks.count;
    for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
      const int64_t b = i / blocks.count, block = i % blocks.count;
      const int64_t first = blocks.First(block), last = blocks.First(block + 1);
      PackPanels(kernel.target, kernel.lhs, lhs, {b, first, last, 0, args.k}, panels, subnormals_are_zero);
      // The kernel looks for row m0 behind the rows before it, which are not there.
      GemmArgs own = args;
      own.lhs = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(panels) - first * blocks.panel_bytes);
      own.lhs_batch_bytes = 0;
      const int64_t width = kernel.lhs.width;
      kernel.block(own, b, first * width, std::min(last * width, args.m), 0, args.n);
    }
  };
  internal::RunReported(kernel, args, [&] {
    if (parts == 1) run(0);
    else executor->ParallelFor(parts, run);
  });
}

}  // namespace aqt::kernels
