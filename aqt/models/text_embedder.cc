#include "aqt/models/text_embedder.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/models/padded_length.h"
#include "aqt/models/text_tokens.h"
#include "aqt/nn/serve/serve.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/tokenizers/tokenizer.h"
#include "aqt/transforms/quantize/serve.h"
#include "aqt/transforms/row_dependence.h"

namespace aqt::models {
struct TextEmbedder::Impl {
  EncoderModel model;
  TextTokens tokens;
  InjectConfig config;
  SlotValues frozen;
  bool pads = true;
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

namespace {

// Whether padding leaves the bits of a text alone.
absl::StatusOr<bool> PadsTexts(const EncoderModel& model, const InjectConfig& config, const SlotValues& frozen) {
  const int64_t longest = model.facts().max_length;
  if (longest < 2) return false;
  AQT_ASSIGN_OR_RETURN(const Program shorter, model.EmbeddingProgram(1, std::min<int64_t>(16, longest - 1)));
  AQT_ASSIGN_OR_RETURN(const Program longer, model.EmbeddingProgram(1, std::min<int64_t>(32, longest)));
  AQT_ASSIGN_OR_RETURN(const Program one, ServeProgram(shorter, config, frozen));
  AQT_ASSIGN_OR_RETURN(const Program other, ServeProgram(longer, config, frozen));
  AQT_ASSIGN_OR_RETURN(const std::string why, WhyPaddingCounts(one, other));
  return why.empty();
}

}  // namespace

absl::StatusOr<TextEmbedder> TextEmbedder::Open(const io::FileSystem& fs, absl::string_view folder,
                                                const InjectConfig& config, const GivenWeights* given) {
  AQT_ASSIGN_OR_RETURN(EncoderModel model, ModelFromFolder(fs, folder, given));
  AQT_ASSIGN_OR_RETURN(TextTokens tokens, TextTokens::Open(fs, folder, model));
  AQT_ASSIGN_OR_RETURN(const Program program, model.EmbeddingProgram(/*batch=*/1, /*length=*/1));
  InjectConfig rules = model.Rules(config);
  AQT_ASSIGN_OR_RETURN(SlotValues frozen, Freeze(program, rules, model.weights()));
  AQT_ASSIGN_OR_RETURN(const bool pads, PadsTexts(model, rules, frozen));
  return TextEmbedder(std::shared_ptr<Impl>(
      new Impl{std::move(model), std::move(tokens), std::move(rules), std::move(frozen), pads, {}, {}}));
}

const EncoderModel& TextEmbedder::model() const { return impl_->model; }

int64_t TextEmbedder::max_length() const { return impl_->tokens.max_length(); }

absl::StatusOr<TextEmbedding> TextEmbedder::Embed(absl::string_view text) const {
  AQT_ASSIGN_OR_RETURN(const tokenizers::Encoding encoding, impl_->tokens.Encode(text));
  const int64_t tokens = static_cast<int64_t>(encoding.ids.size());
  const int64_t length = impl_->pads ? PaddedLength(tokens, impl_->tokens.max_length()) : tokens;
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
