#ifndef EXAMPLES_MINILM_ENCODER_H_
#define EXAMPLES_MINILM_ENCODER_H_

// A sentence encoder: BERT (Devlin et al. 2018) and the mean over its tokens, written without quantization.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/aqt.h"

namespace minilm {

struct EncoderOptions {
  int64_t vocabulary = 0, positions = 0;  // rows of the two tables
  int64_t width = 0, layers = 0, heads = 0, hidden = 0;
  double epsilon = 0;  // of the norms
};

// Reads the config.json of a BertModel of transformers. DataLoss if it is not JSON; InvalidArgument, naming `source`
// and the field, if one is missing or out of range, or if the model is not BERT, has another activation than "gelu", or
// positions that are not absolute.
absl::StatusOr<EncoderOptions> ReadOptions(absl::string_view json, absl::string_view source);

// The parameters are those that bert_weights.textproto names. Sentences are ids s32 [sentences, length], of which the
// first `lengths` s32 [sentences] count. An embedding is the mean of their vectors, divided by its Euclidean length:
// f32 [sentences, width]. length is at most options.positions.
aqt::Value Encode(const aqt::Value& ids, const aqt::Value& lengths, const EncoderOptions& options);

inline const aqt::Slot kIds{aqt::SlotKind::kData, "ids"};
inline const aqt::Slot kLengths{aqt::SlotKind::kData, "lengths"};
inline const aqt::Slot kEmbeddings{aqt::SlotKind::kData, "embeddings"};

// ids, lengths -> embeddings. InvalidArgument, naming both numbers, if `length` exceeds options.positions.
absl::StatusOr<aqt::Program> EncoderProgram(const EncoderOptions& options, int64_t sentences, int64_t length);

}  // namespace minilm

#endif  // EXAMPLES_MINILM_ENCODER_H_
