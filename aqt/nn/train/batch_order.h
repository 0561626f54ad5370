#ifndef AQT_NN_TRAIN_BATCH_ORDER_H_
#define AQT_NN_TRAIN_BATCH_ORDER_H_

// The rows of a data set for each step, as a function of a key and the step number. A training that resumes needs no
// saved state for it.

#include <cstdint>
#include <vector>

#include "aqt/core/rng.h"

namespace aqt::nn {

// The numbers 0 .. rows - 1 in a different order for each epoch (Fisher-Yates with the words of FoldIn(key, epoch)).
// rows >= 0, 0 <= epoch < 2^32.
std::vector<int64_t> EpochOrder(Key key, int64_t rows, int64_t epoch);

// The rows of step 0, 1, ...: consecutive parts of the order of epoch 0, then of epoch 1, and so on. The remainder of
// an epoch that does not fill a batch is dropped. 1 <= batch <= rows, step >= 0.
std::vector<int64_t> RowsOfStep(Key key, int64_t rows, int64_t batch, int64_t step);

// The rows of process `rank`: equal consecutive parts, as DataParallel (transforms/parallel/data_parallel.h) divides a
// batch. 0 <= rank < processes, which divides rows.size().
std::vector<int64_t> ShareOf(const std::vector<int64_t>& rows, int rank, int processes);

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_BATCH_ORDER_H_
