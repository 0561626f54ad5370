#include "aqt/tokenizers/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/tokenizers/text/unicode.h"
#include "aqt/tokenizers/tokenizer_parts.h"

namespace aqt::tokenizers {
namespace {

constexpr size_t kMaxTextBytes = size_t{16} << 20;

// The tokens of one text. The places are in `pieces.text`.
struct Tokenized {
  Pieces pieces;
  std::vector<Token> tokens;
};

absl::StatusOr<Pieces> SplitAndNormalize(const Tokenizer::Parts& parts, absl::string_view bytes) {
  if (bytes.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", bytes.size(), " bytes; at most ", kMaxTextBytes, " are read: split it"));
  }
  Text text;
  DecodeUtf8(bytes, text);
  const size_t limit = GrowthLimit(text.size());
  std::vector<Piece> raw;
  parts.raw_tokens.Split(text, raw);
  Pieces pieces;
  pieces.text.reserve(text.size());
  std::vector<Piece> found;
  for (const Piece& piece : raw) {
    Text part;
    if (raw.size() == 1 && piece.begin == 0 && piece.end == text.size()) {
      part = std::move(text);
    } else {
      part.assign(text.begin() + piece.begin, text.begin() + piece.end);
    }
    found.clear();
    if (piece.token != Piece::kNoToken) {
      found.push_back({0, static_cast<uint32_t>(part.size()), piece.token, false});
    } else {
      if (parts.normalizer != nullptr) AQT_RETURN_IF_ERROR(parts.normalizer->Normalize(limit, part));
      parts.normalized_tokens.Split(part, found);
    }
    const auto begin = static_cast<uint32_t>(pieces.text.size());
    if (begin + part.size() > limit) return TooLong(begin + part.size(), limit);
    for (const Piece& p : found) pieces.pieces.push_back({begin + p.begin, begin + p.end, p.token, p.first});
    if (begin == 0) {
      pieces.text = std::move(part);
    } else {
      pieces.text.insert(pieces.text.end(), part.begin(), part.end());
    }
  }
  return pieces;
}

absl::StatusOr<Tokenized> Tokenize(const Tokenizer::Parts& parts, absl::string_view bytes) {
  Tokenized result;
  AQT_ASSIGN_OR_RETURN(result.pieces, SplitAndNormalize(parts, bytes));
  if (parts.pre_tokenizer != nullptr) parts.pre_tokenizer->Split(result.pieces);
  const absl::Span<const Char> text = result.pieces.text;
  for (const Piece& piece : result.pieces.pieces) {
    if (piece.token != Piece::kNoToken) {
      result.tokens.push_back({piece.token, piece.begin, piece.end});
      continue;
    }
    const size_t first = result.tokens.size();
    AQT_RETURN_IF_ERROR(parts.model->Tokenize(text.subspan(piece.begin, piece.end - piece.begin), result.tokens));
    for (size_t i = first; i < result.tokens.size(); ++i) {
      result.tokens[i].begin += piece.begin;
      result.tokens[i].end += piece.begin;
    }
  }
  return result;
}

void Cut(bool left, size_t size, std::vector<Token>& tokens) {
  if (tokens.size() <= size) return;
  if (left) tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(size));
  tokens.resize(size);
}

// The sizes of two texts with `a` and `b` tokens that together have at most `max`: the longer one loses first.
std::pair<size_t, size_t> LongestFirst(size_t a, size_t b, size_t max) {
  size_t shorter = std::min(a, b);
  size_t longer = shorter > max ? shorter : std::max(shorter, max - shorter);
  if (shorter + longer > max) {
    shorter = max / 2;
    longer = shorter + max % 2;
  }
  return a > b ? std::make_pair(longer, shorter) : std::make_pair(shorter, longer);
}

// Shortens the texts to `max` tokens together. `second` may be null.
absl::Status Truncate(const Truncation& truncation, size_t max, Tokenized& first, Tokenized* second) {
  std::vector<Token> none;
  std::vector<Token>& a = first.tokens;
  std::vector<Token>& b = second != nullptr ? second->tokens : none;
  const size_t total = a.size() + b.size();
  if (total <= max) return absl::OkStatus();
  std::pair<size_t, size_t> sizes = {0, 0};
  const size_t excess = total - max;
  switch (truncation.strategy) {
    case Truncation::kLongestFirst:
      sizes = second == nullptr ? std::make_pair(max, size_t{0}) : LongestFirst(a.size(), b.size(), max);
      break;
    case Truncation::kOnlyFirst: sizes = {a.size() - std::min(a.size(), excess), b.size()}; break;
    case Truncation::kOnlySecond: sizes = {a.size(), b.size() - std::min(b.size(), excess)}; break;
  }
  if (max > 0 && truncation.strategy != Truncation::kLongestFirst) {
    const bool only_first = truncation.strategy == Truncation::kOnlyFirst;
    if ((only_first ? sizes.first : sizes.second) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("the texts have ", a.size(), " and ", b.size(),
                                                     " tokens; the strategy ", only_first ? "OnlyFirst" : "OnlySecond",
                                                     " cannot shorten them to ", max,
                                                     " together: raise max_length, or change truncation.strategy"));
    }
  }
  Cut(truncation.left, max == 0 ? 0 : sizes.first, a);
  Cut(truncation.left, max == 0 ? 0 : sizes.second, b);
  return absl::OkStatus();
}

// The place of a token in the bytes, without the spaces at its ends if the post-processor says so.
class Offsets {
 public:
  Offsets(const std::vector<TrimOffsets>& trims, const Text& text, absl::string_view bytes)
      : trims_(trims), text_(text), bytes_(bytes) {}

  std::pair<uint32_t, uint32_t> Of(const Token& token, bool is_first) const {
    if (token.begin == token.end) return {0, 0};
    std::pair<uint32_t, uint32_t> place = {text_[token.begin].begin, text_[token.end - 1].end};
    if (!token.is_text) return place;
    for (const TrimOffsets& trim : trims_) place = Trim(trim, token, is_first, place);
    return place;
  }

 private:
  static bool IsTrimmed(char32_t code) { return code == ByteCharacter(' ') || IsSpace(code); }

  std::pair<uint32_t, uint32_t> Trim(const TrimOffsets& trim, const Token& token, bool is_first,
                                     std::pair<uint32_t, uint32_t> place) const {
    uint32_t leading = 0, trailing = 0;
    while (token.begin + leading < token.end && IsTrimmed(text_[token.begin + leading].code)) ++leading;
    while (token.begin + trailing < token.end && IsTrimmed(text_[token.end - 1 - trailing].code)) ++trailing;
    // A single space before the first word may be one that was added.
    if (leading == 1 && trim.add_prefix_space && (is_first || place.first == 0)) leading = 0;
    auto& [begin, end] = place;
    for (; leading > 0 && begin < end; --leading) {
      do ++begin;
      while (begin < end && IsInside(begin));
    }
    for (; trailing > 0 && end > begin; --trailing) {
      do --end;
      while (end > begin && IsInside(end));
    }
    return place;
  }
  // Whether the byte continues a sequence of UTF-8.
  bool IsInside(uint32_t at) const { return at < bytes_.size() && (static_cast<uint8_t>(bytes_[at]) & 0xC0) == 0x80; }

  const std::vector<TrimOffsets>& trims_;
  const Text& text_;
  const absl::string_view bytes_;
};

struct Input {
  absl::string_view bytes;
  Tokenized tokenized;
};

void AppendTokens(const Input& input, int32_t type_id, const std::vector<TrimOffsets>& trims, bool with_offsets,
                  Encoding& encoding) {
  const Offsets offsets(trims, input.tokenized.pieces.text, input.bytes);
  bool is_first = true;
  for (const Token& token : input.tokenized.tokens) {
    encoding.ids.push_back(token.id);
    encoding.type_ids.push_back(type_id);
    encoding.special_tokens_mask.push_back(0);
    if (with_offsets) encoding.offsets.push_back(offsets.Of(token, is_first));
    is_first = false;
  }
}

// Inputs: one text, or two.
absl::StatusOr<Encoding> EncodeInputs(const Tokenizer::Parts& parts, std::vector<Input> inputs,
                                      const EncodeOptions& options) {
  const bool is_pair = inputs.size() == 2;
  for (Input& input : inputs) {
    AQT_ASSIGN_OR_RETURN(input.tokenized, Tokenize(parts, input.bytes));
  }
  const Template& layout = is_pair ? parts.post_processor.pair : parts.post_processor.single;
  const int64_t num_special = options.add_special_tokens ? NumSpecial(layout) : 0;
  const auto count = [&] {
    size_t total = 0;
    for (const Input& input : inputs) total += input.tokenized.tokens.size();
    return static_cast<int64_t>(total);
  };
  Encoding encoding;
  encoding.num_truncated = count();
  if (const auto max = options.max_length.has_value() ? options.max_length : parts.truncation.max_length) {
    if (*max < num_special) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_length is ", *max, "; the special tokens alone are ", num_special, ": raise it"));
    }
    Truncation truncation = parts.truncation;
    if (options.longest_first) truncation.strategy = Truncation::kLongestFirst;
    AQT_RETURN_IF_ERROR(Truncate(truncation, static_cast<size_t>(*max - num_special), inputs[0].tokenized,
                                 is_pair ? &inputs[1].tokenized : nullptr));
  }
  encoding.num_truncated -= count();
  encoding.ids.reserve(static_cast<size_t>(count() + num_special));
  for (const TemplatePart& part : layout) {
    if (part.kind != TemplatePart::kSpecial) {
      AppendTokens(inputs[part.kind == TemplatePart::kFirst ? 0 : 1], part.type_id, parts.post_processor.trims,
                   options.offsets, encoding);
      continue;
    }
    for (const int32_t id : part.ids) {
      if (!options.add_special_tokens) break;
      encoding.ids.push_back(id);
      encoding.type_ids.push_back(part.type_id);
      encoding.special_tokens_mask.push_back(1);
      if (options.offsets) encoding.offsets.emplace_back(0, 0);
    }
  }
  encoding.attention_mask.assign(encoding.ids.size(), 1);
  return encoding;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

absl::StatusOr<Encoding> Tokenizer::Encode(absl::string_view text, const EncodeOptions& options) const {
  std::vector<Input> inputs(1);
  inputs[0].bytes = text;
  return EncodeInputs(*parts_, std::move(inputs), options);
}

absl::StatusOr<Encoding> Tokenizer::Encode(absl::string_view text, absl::string_view second,
                                           const EncodeOptions& options) const {
  std::vector<Input> inputs(2);
  inputs[0].bytes = text;
  inputs[1].bytes = second;
  return EncodeInputs(*parts_, std::move(inputs), options);
}

int64_t Tokenizer::num_ids() const { return parts_->num_ids; }

std::optional<int32_t> Tokenizer::Find(absl::string_view token) const {
  if (const auto it = parts_->added.find(token); it != parts_->added.end()) return it->second;
  const int32_t id = parts_->model->Find(token);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

const Padding& Tokenizer::padding() const { return parts_->padding; }

}  // namespace aqt::tokenizers
