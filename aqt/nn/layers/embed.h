#ifndef AQT_NN_LAYERS_EMBED_H_
#define AQT_NN_LAYERS_EMBED_H_

#include <cstdint>
#include <optional>
#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/value.h"
#include "aqt/nn/layers/parameter.h"

namespace aqt::nn {

// Rounds the rows of a table to integers, each row with its own scale (ops::RoundRowsToIntegers).
struct IntegerRows {
  int bits = 8;             // 1 to 24
  bool half_shift = false;  // integers plus a half: no zero, and one value more
};

// The options of Embed and EmbedLogits.
struct EmbedOptions {
  int64_t entries = 0, features = 0;  // at least 1
  DType dtype = DType::kF32;          // a float
  // If unset, Normal(1 / sqrt(features)).
  Initializer init = nullptr;
  // A lookup gives rounded rows, as AQT's older EmbedAqt does, with a straight-through gradient. EmbedLogits takes the
  // table itself, for rules to quantize; with one scale for each column of its transpose, the results are identical.
  std::optional<IntegerRows> integer_rows = std::nullopt;
};

// Looks up rows of the parameter "embedding" [entries, features] by number: ids s32 [...] -> [..., features], in the
// scope `name`. Numbers out of range are clamped (ops::Take). Poisoned: InvalidArgument if ids are not s32, or entries,
// features, the dtype or bits are out of range.
Value Embed(const Value& ids, absl::string_view name, const EmbedOptions& options,
            const std::source_location& where = std::source_location::current());

// x [..., features] times the transposed table of the Embed with the same name and options -> [..., entries]: the
// logits of a language model with tied weights, as a dot_general that rules can quantize.
Value EmbedLogits(const Value& x, absl::string_view name, const EmbedOptions& options,
                  const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_EMBED_H_
