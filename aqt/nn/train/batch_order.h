#ifndef AQT_NN_TRAIN_BATCH_ORDER_H_
#define AQT_NN_TRAIN_BATCH_ORDER_H_

// Which rows of a data set a step takes, as a function of a key and the number of the step: a training that resumes has
// nothing to save for it.

#include <cstdint>
#include <vector>

#include "aqt/core/rng.h"

namespace aqt::nn {

// The numbers 0 .. rows - 1 in a different order for each epoch (Fisher-Yates with the words of FoldIn(key, epoch)).
// rows >= 0, 0 <= epoch < 2^32.
std::vector<int64_t> EpochOrder(Key key, int64_t rows, int64_t epoch);

// The rows of step 0, 1, ...: parts of the order of epoch 0, then of epoch 1, and so on. The rest of an epoch that does
// not fill a batch is left out. 1 <= batch <= rows, step >= 0.
std::vector<int64_t> RowsOfStep(Key key, int64_t rows, int64_t batch, int64_t step);

// The part of process `rank` of these rows: equal parts, one behind the other, as DataParallel
// (transforms/data_parallel.h) divides a batch. 0 <= rank < processes, which divides rows.size().
std::vector<int64_t> ShareOf(const std::vector<int64_t>& rows, int rank, int processes);

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_BATCH_ORDER_H_
