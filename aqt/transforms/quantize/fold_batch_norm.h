#ifndef AQT_TRANSFORMS_QUANTIZE_FOLD_BATCH_NORM_H_
#define AQT_TRANSFORMS_QUANTIZE_FOLD_BATCH_NORM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt {

// Folds a batch norm with running statistics (nn/layers/norm.h, train = false), and anything else that multiplies or
// shifts each output channel by a weight, into the preceding contraction:
//   (conv(x, kernel) + bias - mean) * factor + beta  ->  conv(x, kernel * factor) + ((bias - mean) * factor + beta)
// It applies after each conv, and after each dot_general without batch axes whose last axis is that of rhs, if rhs
// depends only on parameters, statistics, frozen inputs and constants, and the intermediate results are used nowhere
// else. The new kernel also depends only on these, so Fold computes it once and Inject quantizes it as a weight. Fold
// before Inject, and use the result for calibration, freezing and serving alike. The folded program computes the same
// result up to rounding. A norm after a cast, as in f16 and bf16, stays. `folded`, if not null, receives the scopes of
// the contractions that absorbed a factor.
absl::StatusOr<Program> FoldBatchNorm(const Program& program, std::vector<std::string>* folded = nullptr);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_QUANTIZE_FOLD_BATCH_NORM_H_
