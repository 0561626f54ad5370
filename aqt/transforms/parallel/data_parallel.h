#ifndef AQT_TRANSFORMS_PARALLEL_DATA_PARALLEL_H_
#define AQT_TRANSFORMS_PARALLEL_DATA_PARALLEL_H_

// One program on several processes, each with its part of the batch.
//
//   AQT_ASSIGN_OR_RETURN(Program part, DataParallel(step, collective.rank(), collective.size()));
//   const UseCollective use(&collective);               // ops/collective_ops.h
//   AQT_ASSIGN_OR_RETURN(SlotValues out, EvalSlots(part, values));
//
// nn::Trainer does it (TrainOptions::collective).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt {

// How floats are added that lie in several processes.
enum class FloatSums : uint8_t {
  // Each process adds its own, and the sums of the processes are added in the order of ranks. Little is sent. The
  // order differs from that of one process, and so may the last bits.
  kReduce,
  // Each process gets the elements of all and adds them. The bits of one process; more is sent, and computed.
  kGather,
};

struct DataParallelOptions {
  FloatSums float_sums = FloatSums::kReduce;
  std::vector<std::string> whole = {};  // paths of inputs of kind data that each process has whole
};

// The part of process `rank` of `program`, a program for the whole batch. Its inputs of kind data have the process's
// rows: with n rows along the first axis, rows rank * n / processes and following. Inputs of rank 0, those named in
// `whole`, and inputs of other kinds are the same in all processes. Outputs are those of the whole batch, in all
// processes. The processes exchange what they must (ops/collective_ops.h).
//
// What does not depend on the order of additions has the bits of `program` in one process: elements, maxima (so scales
// of every kind of sharing), noise, which each process draws for its rows of the whole batch, qvalues, and s32 sums,
// which are reduced before they are scaled. So has everything else with FloatSums::kGather. With kReduce, a sum over
// the rows of the batch is added per process, then over processes. Let x_i be its n terms, u = 2^-24 (2^-53 for f64)
// and p the number of processes; with f32 sums of terms that are the same, the results differ by at most
//   (n + n / p + p) u sum |x_i|   to first order, and (n / 8 + p + 8) u sum |x_i| for a reduce_sum,
// before f16 and bf16 results are rounded once.
//
// A quantized dot_general on divided rows of its lhs stays as it is, forward and in its gradient of lhs, if no row
// depends on others or on its place: by a scale that rows share, statistics or noise. Other composites are expanded
// (transforms/expand.h), and every operation is cut along the batch where it can be: those that work by element,
// reductions, products, reshapes, transposes, broadcasts, slices, padding, concatenations, windows and embeddings whose
// other axes are concerned. What cannot be cut runs on the gathered batch in every process: a scale by a search or
// percentile over the batch, calibrations with state other than DelayedScaling, ragged contractions, cumulative sums
// and reversals along the batch. The text of the program shows it as all_gather.
//
// InvalidArgument, naming the input, if its first extent is no multiple of `processes` or `whole` names no input;
// for a rank outside of 0 .. processes - 1; for a program with exchanges.
absl::StatusOr<Program> DataParallel(const Program& program, int rank, int processes,
                                     const DataParallelOptions& options = {});

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PARALLEL_DATA_PARALLEL_H_
