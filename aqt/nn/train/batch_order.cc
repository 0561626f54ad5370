#include "aqt/nn/train/batch_order.h"

#include <numeric>
#include <utility>

namespace aqt::nn {

std::vector<int64_t> EpochOrder(Key key, int64_t rows, int64_t epoch) {
  const RandomBits bits(FoldIn(key, static_cast<uint32_t>(epoch)), rows);
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = rows - 1; i > 0; --i) std::swap(order[i], order[bits.Bits32(i) % (i + 1)]);
  return order;
}

std::vector<int64_t> RowsOfStep(Key key, int64_t rows, int64_t batch, int64_t step) {
  const int64_t steps_per_epoch = rows / batch;
  const std::vector<int64_t> order = EpochOrder(key, rows, step / steps_per_epoch);
  const auto first = order.begin() + step % steps_per_epoch * batch;
  return {first, first + batch};
}

std::vector<int64_t> ShareOf(const std::vector<int64_t>& rows, int rank, int processes) {
  const int64_t share = static_cast<int64_t>(rows.size()) / processes;
  return {rows.begin() + rank * share, rows.begin() + (rank + 1) * share};
}

}  // namespace aqt::nn
