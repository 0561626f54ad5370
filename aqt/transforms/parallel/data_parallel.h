#ifndef AQT_TRANSFORMS_PARALLEL_DATA_PARALLEL_H_
#define AQT_TRANSFORMS_PARALLEL_DATA_PARALLEL_H_

// One program on several processes, each with its part of the batch.
//
//   AQT_ASSIGN_OR_RETURN(Program part, DataParallel(step, collective.rank(), collective.size()));
//   const UseCollective use(&collective);               // ops/collective/collective_ops.h
//   AQT_ASSIGN_OR_RETURN(SlotValues out, EvalSlots(part, values));
//
// nn::Trainer does this (TrainOptions::collective).
//
// Results that do not depend on the order of additions have the bits of the program in one process: elements, maxima
// (so scales of every kind of sharing), noise, which each process draws for its rows of the full batch, qvalues, and
// s32 sums, which are reduced before they are scaled. With FloatSums::kGather this holds for all results. With kReduce,
// a sum over the rows of the batch is added per process, then over processes. Let x_i be its n terms, u = 2^-24 (2^-53
// for f64) and p the number of processes. With f32 sums of equal terms, the results differ by at most
//   (n + n / p + p) u sum |x_i|   to first order, and (n / 8 + p + 8) u sum |x_i| for a reduce_sum,
// before f16 and bf16 results are rounded once.
//
// A quantized dot_general on divided rows of its lhs stays as it is, forward and in its gradient of lhs, if no row
// depends on other rows or on its position: through a shared scale, statistics or noise. Other composites are expanded
// (transforms/expand.h), and every operation is cut along the batch where possible: elementwise operations, reductions,
// products, reshapes, transposes, broadcasts, slices, padding, concatenations, and windows and embeddings along other
// axes. Everything else runs on the gathered batch in every process: a scale by a search or percentile over the batch,
// calibrations with state other than DelayedScaling, ragged contractions, cumulative sums and reversals along the
// batch. The text of the program shows it as all_gather.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt {

// The order of float sums across processes.
enum class FloatSums : uint8_t {
  // Each process adds its own elements, and the partial sums are added in the order of ranks. Little is sent. The order
  // differs from that of a single process, so the last bits may differ.
  kReduce,
  // Each process gathers all elements and adds them. The result has the bits of a single process, but more is sent and
  // computed.
  kGather,
};

// The options of DataParallel.
struct DataParallelOptions {
  FloatSums float_sums = FloatSums::kReduce;
  std::vector<std::string> whole = {};  // paths of inputs of kind data that are replicated
};

// The program that process `rank` runs for its part of the batch; `program` is for the full batch. Its inputs of kind
// data have the process's rows: with n rows along the first axis, n / processes rows starting at rank * n / processes.
// Inputs of rank 0, those named in `whole`, and inputs of other kinds are replicated. Outputs are those of the full
// batch, in all processes. The processes exchange what they need (ops/collective/collective_ops.h). InvalidArgument,
// naming the input, if its first extent is not a multiple of `processes` or `whole` does not name an input; for a rank
// outside of 0 .. processes - 1; for a program with exchanges.
absl::StatusOr<Program> DataParallel(const Program& program, int rank, int processes,
                                     const DataParallelOptions& options = {});

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PARALLEL_DATA_PARALLEL_H_
