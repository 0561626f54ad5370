#ifndef AQT_SERVING_ENGINE_TEXT_ENGINE_H_
#define AQT_SERVING_ENGINE_TEXT_ENGINE_H_

// An engine for the folder of a text encoder:
//
//   AQT_ASSIGN_OR_RETURN(const std::unique_ptr<TextEngine> engine, TextEngine::Open(fs, "all-MiniLM-L6-v2"));
//   AQT_ASSIGN_OR_RETURN(const TextAnswer answer, engine->Run({.text = "a sentence"}));
//   const absl::Span<const float> embedding = answer.outputs.at(models::kEmbeddings).View<float>();

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/tokenizers/tokenizer.h"
#include "aqt/transforms/quantize/inject.h"
#include "serving/engine/engine.h"

namespace aqt::serving {

struct TextEngineOptions {
  InjectConfig config = {};                     // as for EncoderModel::Serve
  const models::GivenWeights* given = nullptr;  // as for models::ModelFromFolder; read by Open
  EngineOptions engine = {};
  // What is computed: a program of the model for a batch, a length and, with `types`, numbers of segments. `types` is
  // set if the model knows several segments. By default EncoderModel::OutputProgram.
  std::function<absl::StatusOr<Program>(const models::EncoderModel&, int64_t batch, int64_t length, bool types)>
      program = nullptr;
};

struct TextRequest {
  std::string text = "";
  std::optional<std::string> second = std::nullopt;  // of a pair
  // Token ids, special ones included, instead of a text; all in the first segment.
  std::optional<std::vector<int32_t>> ids = std::nullopt;
  absl::Time deadline = absl::InfiniteFuture();
};

// The outputs of one text, without a batch axis and as long as the text's tokens: models::kEmbeddings f32[width] or
// models::kLogits f32[labels], or f32[tokens,labels] of a head of tokens, unless TextEngineOptions::program says
// otherwise.
struct TextAnswer {
  SlotValues outputs;
  tokenizers::Encoding encoding;  // what was read; with offsets, if the model has a head of tokens

  int64_t tokens() const { return static_cast<int64_t>(encoding.ids.size()); }  // special ones included
  // The tokens that were cut off, because the text is longer than max_length().
  int64_t truncated() const { return encoding.num_truncated; }
};

// A text that was handed in. As Ticket.
class TextTicket {
 public:
  absl::StatusOr<TextAnswer> Wait() const;
  bool WaitUntil(absl::Time time) const { return !ticket_.has_value() || ticket_->WaitUntil(time); }
  bool Cancel() const { return ticket_.has_value() && ticket_->Cancel(); }

 private:
  friend class TextEngine;
  absl::Status error_;            // of the tokenizer
  std::optional<Ticket> ticket_;  // unset after an error
  tokenizers::Encoding encoding_;
};

// Thread-safe.
class TextEngine {
 public:
  ~TextEngine();
  // Quantizes and packs the weights, on as many threads as the engine has. The errors of models::TextEmbedder::Open and
  // Engine::Make.
  static absl::StatusOr<std::unique_ptr<TextEngine>> Open(const io::FileSystem& fs, absl::string_view folder,
                                                          const TextEngineOptions& options = {});

  // Makes tokens of the text on this thread, and hands them in. Never waits for the answer. A longer text is cut off.
  // The answer has the errors of Answer and of models::TextTokens::Encode; InvalidArgument for ids that are empty or
  // that the model does not know.
  TextTicket Submit(const TextRequest& request);
  // The same, but waits for room in the queue instead of failing.
  TextTicket SubmitWhenRoom(const TextRequest& request);
  // Submit and Wait.
  absl::StatusOr<TextAnswer> Run(const TextRequest& request) { return Submit(request).Wait(); }
  // The two steps of SubmitWhenRoom: the tokens of a request, and handing them in.
  absl::StatusOr<tokenizers::Encoding> Encode(const TextRequest& request) const;
  TextTicket SubmitWhenRoom(tokenizers::Encoding encoding, absl::Time deadline);
  // SubmitWhenRoom of all, and Wait. The answers have the order of the requests.
  std::vector<absl::StatusOr<TextAnswer>> RunAll(const std::vector<TextRequest>& requests);

  // What the folder says of the model. Its weights() are empty: they are only in the engine's programs.
  const models::EncoderModel& model() const;
  // The longest text in tokens: what the model and sentence_bert_config.json allow.
  int64_t max_length() const;
  // Stats, Warm, Shutdown.
  Engine& engine();

 private:
  struct Impl;
  explicit TextEngine(std::unique_ptr<Impl> impl);
  TextTicket Submit(const TextRequest& request, bool wait);
  TextTicket Submit(tokenizers::Encoding encoding, absl::Time deadline, bool wait);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_TEXT_ENGINE_H_
