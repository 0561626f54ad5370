#ifndef AQT_OPS_CONTRACTION_AQT_DOT_CUT_H_
#define AQT_OPS_CONTRACTION_AQT_DOT_CUT_H_

// A quantized contraction on some rows of its lhs. Internal (transforms/parallel/data_parallel.h).

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "aqt/graph/op.h"

namespace aqt::internal {

// A forward operation or a gradient of an AqtDot, for one part of the rows.
struct ContractionOfRows {
  CompositeOp op;
  // For each output of the operation: the axis along which it has only this part; nullopt: the full output.
  std::vector<std::optional<int64_t>> axes;
  // For each output: whether it has the bits of the undivided operation. For a gradient, dlhs has them; drhs sums over
  // the rows.
  std::vector<bool> valid;
};

// Whether this is an operation of an AqtDot.
bool IsQuantizedContraction(const Op& op);

// `op` when its operand i is divided into `parts` equal parts along the axis divided[i] (nullopt: undivided). Null if
// it is not a dot_general, if its lhs is divided along an axis other than one of its rows, if anything else is divided,
// or if a row depends on other rows or on its position: through a scale that rows share, statistics, noise on the rows,
// or the arithmetic of a single scale.
std::optional<ContractionOfRows> OfRows(const Op& op, absl::Span<const std::optional<int64_t>> divided, int64_t parts);

}  // namespace aqt::internal

#endif  // AQT_OPS_CONTRACTION_AQT_DOT_CUT_H_
