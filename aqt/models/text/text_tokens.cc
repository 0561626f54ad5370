#include "aqt/models/text/text_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"

namespace aqt::models {

absl::StatusOr<TextTokens> TextTokens::Open(const io::FileSystem& fs, absl::string_view folder,
                                            const EncoderModel& model) {
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
  TextTokens tokens;
  const int64_t given = model.pooling().max_length;
  tokens.max_length_ = given > 0 ? std::min(given, model.facts().max_length) : model.facts().max_length;
  tokens.types_ = model.facts().types;
  tokens.prompt_ = model.pooling().prompt;
  tokens.tokenizer_ = std::make_shared<const tokenizers::Tokenizer>(std::move(tokenizer));
  return tokens;
}

absl::StatusOr<tokenizers::Encoding> TextTokens::Encode(absl::string_view text, std::optional<absl::string_view> second,
                                                        bool offsets) const {
  tokenizers::EncodeOptions options;
  options.max_length = max_length_;
  options.longest_first = true;
  options.offsets = offsets;
  std::string with_prompt;
  if (!prompt_.empty()) {
    with_prompt = absl::StrCat(prompt_, text);
    text = with_prompt;
  }
  AQT_ASSIGN_OR_RETURN(tokenizers::Encoding encoding, second.has_value() ? tokenizer_->Encode(text, *second, options)
                                                                         : tokenizer_->Encode(text, options));
  if (encoding.ids.empty()) return absl::InvalidArgumentError("the text has no tokens, expected at least one");
  const int32_t largest = *absl::c_max_element(encoding.type_ids);
  if (types_ > 1 && largest >= types_) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer gives tokens the segment ", largest,
                                                   ", and the model knows ", types_,
                                                   "; they belong to different models"));
  }
  const auto skipped = static_cast<uint32_t>(prompt_.size());
  if (skipped == 0 || second.has_value()) return encoding;
  for (auto& [begin, end] : encoding.offsets) {
    begin -= std::min(begin, skipped);
    end -= std::min(end, skipped);
  }
  return encoding;
}

}  // namespace aqt::models
