#include "aqt/models/text/text_embedder.h"

#include <utility>

#include "absl/types/span.h"
#include "aqt/core/status_macros.h"

namespace aqt::models {

absl::StatusOr<TextEmbedder> TextEmbedder::Open(const io::FileSystem& fs, absl::string_view folder,
                                                const InjectConfig& config, const GivenWeights* given) {
  AQT_ASSIGN_OR_RETURN(TextRunner runner, TextRunner::Open(fs, folder, TextRunner::Output::kEmbedding, config, given));
  return TextEmbedder(std::move(runner));
}

absl::StatusOr<TextEmbedding> TextEmbedder::Embed(absl::string_view text) const {
  AQT_ASSIGN_OR_RETURN(const TextRunner::Result result, runner_.Run(text));
  const absl::Span<const float> values = result.output.View<float>();
  return TextEmbedding{
      {values.begin(), values.end()}, static_cast<int64_t>(result.encoding.ids.size()), result.encoding.num_truncated};
}

}  // namespace aqt::models
