#ifndef AQT_KERNELS_GEMM_SCHEDULE_H_
#define AQT_KERNELS_GEMM_SCHEDULE_H_

// How a product is computed: what is packed when, and how the work is cut. Every strategy and every cut gives the same
// bits, so the choice may depend on the caches and on the number of threads: float sums continue from part to part
// in the order of k. Sizes that would change a sum, such as the steps of a tile (table.h), are constants of the kernel.
//
// strategy   packs                                  for
// kPanels    all of both operands first             anything
// kFewRows   nothing, or pieces of the rhs in L1    a few rows of f32 (few_rows.h)
// kLongK     both, a block of k at a time           a small product on several threads; an rhs that leaves the caches
//                                                   and not many rows (long_k.h)
// kByBlocks  the rhs first, then a block of rows    an lhs whose blocks stay in L2, or whose rows overlap
//            at a time                              (by_blocks.h)
// A convolution may store its windows by lines instead; its own plan decides that (by_lines.h).
//
// The sizes are tuned for an L2 of 1 MiB or more. Where it is smaller, those that must fit it shrink with it.

#include <algorithm>
#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/core/machine/machine.h"
#include "aqt/kernels/gemm/gemm.h"

namespace aqt::kernels {

enum class GemmStrategy : uint8_t { kPanels, kFewRows, kLongK, kByBlocks };

// kPanels: each matrix in m_tasks x n_tasks tasks of whole panels. When products are accumulated, a task has all
// matrices.
struct PanelCuts {
  int64_t m_tasks = 1, n_tasks = 1;

  bool operator==(const PanelCuts&) const = default;
};

// kByBlocks: the rows of each matrix in blocks of panels.
struct BlockCuts {
  int64_t panels = 0, panel_bytes = 0;  // of a matrix
  int64_t count = 1;                    // blocks of a matrix
  int64_t parts = 1;                    // of all blocks; each has a place in the buffer
  bool sliced = false;                  // whether a block is multiplied block by block of k
  bool fetches = false;                 // whether the rows of the next block are fetched ahead

  int64_t First(int64_t block) const { return panels * block / count; }  // panel of a matrix
  // Where the panels of block i of all begin, if they are stored one after the other.
  int64_t Begin(int64_t i) const { return (i / count * panels + First(i % count)) * panel_bytes; }
  bool operator==(const BlockCuts&) const = default;
};

// kLongK: parts of all rows of a matrix and some panels of its columns.
struct LongKCuts {
  int64_t n_panels = 0;
  int64_t count = 0, per_matrix = 0;  // parts
  int64_t places = 0;                 // in the buffer, one for each thread
  bool whole_k = false;               // k is not cut, and there are no sums in memory
  int64_t panels_at_once = 1;         // of columns, with whole_k
  bool fetches = false;               // whether the columns that are packed next are fetched ahead, with whole_k
  int64_t lhs_bytes = 0, rhs_bytes = 0, sum_bytes = 0;  // of a place

  int64_t PlaceBytes() const { return lhs_bytes + rhs_bytes + sum_bytes; }
  int64_t Bytes() const { return places * PlaceBytes(); }
  bool operator==(const LongKCuts&) const = default;
};

struct GemmSchedule {
  GemmStrategy strategy = GemmStrategy::kPanels;
  int64_t threads = 1;  // of those that there are
  // That of the strategy is set.
  PanelCuts panels = {};
  BlockCuts blocks = {};
  LongKCuts long_k = {};
};

// The schedule of a problem, of which an operand may be packed already, for this many threads.
GemmSchedule Choose(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& packed,
                    const Machine& machine, int64_t threads);

inline int64_t ThreadsOf(const Executor* executor) { return executor == nullptr ? 1 : executor->NumThreads(); }

// ---- the parts of a schedule

// How many of `threads` threads a product shall use: one if it is small.
int64_t UsefulThreads(const GemmProblem& problem, int64_t threads);

PanelCuts CutPanels(const GemmKernel& kernel, const GemmProblem& problem, const Machine& machine, int64_t threads);
BlockCuts CutBlocks(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t k, const Machine& machine,
                    int64_t threads);
LongKCuts CutLongK(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k, const Machine& machine,
                   int64_t threads);
// Whether kLongK can use a kernel.
inline bool CanRunLongK(const GemmKernel& kernel) { return kernel.add_block != nullptr; }
// The bytes of a buffer with which any number of threads can run kLongK: where a caller asks for it, and where Choose
// does (0 if it never does).
int64_t LongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k, const Machine& machine);
int64_t ChosenLongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k,
                         const Machine& machine);

// A size tuned for an L2 of 1 MiB or more, on this machine.
inline int64_t FitL2(const Machine& machine, int64_t tuned) {
  constexpr int64_t kTunedKiB = 1 << 10;
  return tuned / kTunedKiB * std::min(machine.l2_bytes >> 10, kTunedKiB);
}

// kFewRows: the most rows; from there on packing pays off.
inline constexpr int64_t kMaxFewRows = 12;
// An rhs whose rows have another stride than 1 is packed in pieces from this many elements on (4 MiB): a smaller one
// stays in the caches until its panels are read.
inline constexpr int64_t kMinPieces = 1 << 20;
// kLongK: the sums of the columns that are summed up together. These bytes, which come from L3 for each block of k,
// cost less than packing the lhs once more.
inline constexpr int64_t kSumBytes = 2 << 20;

// Below this many multiplications a second thread costs more than it saves (a wake-up takes 5 to 50 us).
inline constexpr double kMinParallelWork = 2e6;
// The work is cut into at most this many parts for each thread, so that one which starts late or is slow does less.
inline constexpr int64_t kPartsPerThread = 4;

namespace internal {

// RunGemm as a schedule says.
void RunPanels(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& panels,
               const GemmSchedule& schedule, Executor* executor);

}  // namespace internal
}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_SCHEDULE_H_
