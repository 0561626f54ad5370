#ifndef EXAMPLES_DIGITS_CLASSIFIER_H_
#define EXAMPLES_DIGITS_CLASSIFIER_H_

// A classifier of digits, written without quantization, and its programs. An InjectConfig alone says how each of its
// contractions is computed: float, int8, int4 or a mix use the same C++.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "examples/digits/dataset.h"

namespace digits {

// Widths of the hidden layers.
using Hidden = std::vector<int64_t>;

// Logits [rows, 10] of pixels [rows, 64]: Dense layers mlp/fc1, mlp/fc2, ... with ReLU, then mlp/logits.
aqt::Value Model(const aqt::Value& pixels, const Hidden& hidden);

inline const aqt::Slot kPixelsSlot{aqt::SlotKind::kData, "pixels"};  // f32[rows, 64]
inline const aqt::Slot kLabelsSlot{aqt::SlotKind::kData, "labels"};  // f32[rows, 10], one-hot
inline const aqt::Slot kLossSlot{aqt::SlotKind::kData, "loss"};      // f32[], the mean over the rows
inline const aqt::Slot kLogitsSlot{aqt::SlotKind::kData, "logits"};  // f32[rows, 10]

// pixels -> logits
absl::StatusOr<aqt::Program> LogitsProgram(const Hidden& hidden, int64_t rows);
// pixels, labels -> loss, logits
absl::StatusOr<aqt::Program> LossProgram(const Hidden& hidden, int64_t rows);

// Kernels uniform with variance 1 / in, biases 0; a function of the seed and the parameter's name.
absl::StatusOr<aqt::SlotValues> InitialParams(const Hidden& hidden, uint64_t seed);

// The rows of `data` with these numbers.
aqt::Array Pixels(const Dataset& data, absl::Span<const int64_t> rows);
aqt::Array OneHotLabels(const Dataset& data, absl::Span<const int64_t> rows);
// All rows of `data`.
aqt::Array Pixels(const Dataset& data);

// Logits of `pixels` as a quantized `program` (Inject of a LogitsProgram) computes them in training.
absl::StatusOr<aqt::Array> Logits(const aqt::Program& program, const aqt::SlotValues& values, const aqt::Array& pixels);

// The share of rows in which the label has the largest logit; 0 if there are no rows.
double Accuracy(const aqt::Array& logits, const std::vector<int>& labels);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_CLASSIFIER_H_
