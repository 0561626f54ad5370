#include "aqt/models/text_embedder.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/nn/serve/serve.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/tokenizers/tokenizer.h"
#include "aqt/transforms/quantize/serve.h"

namespace aqt::models {
namespace {

constexpr int64_t kLengthStep = 16;

}  // namespace

struct TextEmbedder::Impl {
  EncoderModel model;
  tokenizers::Tokenizer tokenizer;
  InjectConfig config;
  SlotValues frozen;
  int64_t max_length = 0;
  std::mutex mutex;
  std::map<int64_t, PreparedProgram> programs;  // by length

  // Compiles one program at a time.
  absl::StatusOr<PreparedProgram> ProgramFor(int64_t length) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = programs.find(length); it != programs.end()) return it->second;
    AQT_ASSIGN_OR_RETURN(const Program program, model.EmbeddingProgram(/*batch=*/1, length));
    AQT_ASSIGN_OR_RETURN(PreparedProgram served, nn::Serve({program}, config, frozen));
    return programs.emplace(length, std::move(served)).first->second;
  }
};

absl::StatusOr<TextEmbedder> TextEmbedder::Open(const io::FileSystem& fs, absl::string_view folder,
                                                const InjectConfig& config) {
  AQT_ASSIGN_OR_RETURN(EncoderModel model, ModelFromFolder(fs, folder));
  AQT_ASSIGN_OR_RETURN(tokenizers::Tokenizer tokenizer, tokenizers::Tokenizer::Open(fs, folder));
  if (model.pooling().lower_case) {
    return absl::UnimplementedError(absl::StrCat(io::PrintableLine(folder), ": do_lower_case of ",
                                                 "sentence_bert_config.json is true, which is not computed; use a ",
                                                 "tokenizer.json that changes texts to lower case"));
  }
  if (tokenizer.num_ids() > model.facts().vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(io::PrintableLine(folder), ": the tokenizer has ids up to ",
                                                   tokenizer.num_ids() - 1, ", and the model knows ",
                                                   model.facts().vocabulary, "; they belong to different models"));
  }
  AQT_ASSIGN_OR_RETURN(const Program program, model.EmbeddingProgram(/*batch=*/1, /*length=*/1));
  AQT_ASSIGN_OR_RETURN(SlotValues frozen, Freeze(program, config, model.weights()));
  const int64_t given = model.pooling().max_length;
  const int64_t max_length = given > 0 ? std::min(given, model.facts().max_length) : model.facts().max_length;
  return TextEmbedder(std::shared_ptr<Impl>(
      new Impl{std::move(model), std::move(tokenizer), config, std::move(frozen), max_length, {}, {}}));
}

const EncoderModel& TextEmbedder::model() const { return impl_->model; }

int64_t TextEmbedder::max_length() const { return impl_->max_length; }

absl::StatusOr<TextEmbedding> TextEmbedder::Embed(absl::string_view text) const {
  tokenizers::EncodeOptions options;
  options.max_length = impl_->max_length;
  AQT_ASSIGN_OR_RETURN(const tokenizers::Encoding encoding, impl_->tokenizer.Encode(text, options));
  const int64_t tokens = static_cast<int64_t>(encoding.ids.size());
  if (tokens == 0) return absl::InvalidArgumentError("the text has no tokens, expected at least one");
  const int64_t length = std::min(RoundUp(tokens, kLengthStep), impl_->max_length);
  AQT_ASSIGN_OR_RETURN(const PreparedProgram program, impl_->ProgramFor(length));
  std::vector<int32_t> ids = encoding.ids;
  ids.resize(length, 0);
  const Array lengths = Array::Of<int32_t>({static_cast<int32_t>(tokens)}, {1});
  AQT_ASSIGN_OR_RETURN(
      const SlotValues out,
      program.Eval({{kIds, Array::FromSpan(absl::MakeConstSpan(ids), {1, length})}, {kLengths, lengths}}));
  const absl::Span<const float> values = out.at(kEmbeddings).View<float>();
  return TextEmbedding{{values.begin(), values.end()}, tokens, encoding.num_truncated};
}

}  // namespace aqt::models
