#ifndef AQT_MODELS_TEXT_TEXT_EMBEDDER_H_
#define AQT_MODELS_TEXT_TEXT_EMBEDDER_H_

// From texts to embeddings, with nothing but a model's folder:
//
//   AQT_ASSIGN_OR_RETURN(const models::TextEmbedder embedder, models::TextEmbedder::Open(fs, "all-MiniLM-L6-v2"));
//   AQT_ASSIGN_OR_RETURN(const models::TextEmbedding embedding, embedder.Embed("a sentence"));

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/models/text/text_runner.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::models {

struct TextEmbedding {
  std::vector<float> values;  // EncoderModel::pooling().width of them
  int64_t tokens = 0;         // that were read, special ones included
  int64_t truncated = 0;      // that were cut off, because the text is longer than max_length()
};

// The tokenizer, the encoder and the pooling of a folder. Thread-safe; cheap to copy.
class TextEmbedder {
 public:
  // `config` is that of EncoderModel::Serve; `given` are the weights, instead of those of the folder. The errors of
  // ModelFromFolder and TextTokens::Open.
  static absl::StatusOr<TextEmbedder> Open(const io::FileSystem& fs, absl::string_view folder,
                                           const InjectConfig& config = {}, const GivenWeights* given = nullptr);

  const EncoderModel& model() const { return runner_.model(); }
  // The longest text in tokens: what the model and the folder allow.
  int64_t max_length() const { return runner_.tokens().max_length(); }

  // A longer text is cut off. Each text is computed alone, so that its bits do not depend on other texts. For many
  // texts on several threads see serving/engine, which gives the same bits. The errors of TextRunner::Run.
  absl::StatusOr<TextEmbedding> Embed(absl::string_view text) const;

 private:
  explicit TextEmbedder(TextRunner runner) : runner_(std::move(runner)) {}
  TextRunner runner_;
};

}  // namespace aqt::models

#endif  // AQT_MODELS_TEXT_TEXT_EMBEDDER_H_
