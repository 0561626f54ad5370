// Unigram: of all ways to write a piece as tokens, the one with the highest sum of scores (Viterbi).

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/tokenizers/vocabularies/model.h"
#include "aqt/tokenizers/vocabularies/trie.h"

namespace aqt::tokenizers {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the lowest score

class Unigram final : public Model {
 public:
  Unigram(Vocabulary vocabulary, std::vector<double> scores, std::optional<int32_t> unknown, bool byte_fallback)
      : scores_(std::move(scores)), unknown_(unknown), byte_fallback_(byte_fallback), tokens_(std::move(vocabulary)) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const double score : scores_) lowest = std::min(lowest, score);
    unknown_score_ = lowest - kUnknownPenalty;
    for (int byte = 0; byte < 256; ++byte) bytes_[byte] = tokens_.Find(absl::StrFormat("<0x%02X>", byte));
  }

  absl::Status Tokenize(absl::Span<const Char> piece, std::vector<Token>& tokens) const override {
    const PieceBytes text(piece);
    const std::vector<Best> best = FindBest(text);
    if (best.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the text ", io::Printable(text.bytes),
                       " has a character that is not in the vocabulary, and the model has "
                       "no unk_id; add one"));
    }
    // Backwards; neighbouring unknown characters are one token.
    const size_t first = tokens.size();
    for (size_t end = text.bytes.size(); end > 0;) {
      size_t begin = best[end].begin;
      const bool is_unknown = best[end].id == unknown_;
      while (is_unknown && begin > 0 && best[begin].id == unknown_) begin = best[begin].begin;
      AddBackwards(text, begin, end, tokens);
      end = begin;
    }
    std::reverse(tokens.begin() + static_cast<std::ptrdiff_t>(first), tokens.end());
    return absl::OkStatus();
  }
  int32_t Find(absl::string_view token) const override { return tokens_.Find(token); }
  int64_t size() const override { return static_cast<int64_t>(scores_.size()); }
  int64_t largest_id() const override { return size() - 1; }

 private:
  static constexpr uint32_t kUnreached = std::numeric_limits<uint32_t>::max();

  // The best way to write the text up to some place.
  struct Best {
    double score = 0;
    uint32_t begin = kUnreached;  // where its last token begins
    int32_t id = 0;               // of that token
  };

  // For each place of the text. Empty if there is no way.
  std::vector<Best> FindBest(const PieceBytes& text) const {
    std::vector<Best> best(text.bytes.size() + 1);
    const auto improve = [&](size_t begin, size_t end, double score, int32_t id) {
      if (best[end].begin == kUnreached || score > best[end].score)
        best[end] = {score, static_cast<uint32_t>(begin), id};
    };
    for (size_t begin = 0; begin < text.bytes.size();) {
      size_t width = 1;  // of the code point
      while (begin + width < text.bytes.size() && text.code_points[begin + width] == text.code_points[begin]) ++width;
      bool has_single = false;
      tokens_.VisitPrefixes(absl::string_view(text.bytes).substr(begin), [&](size_t size, int32_t id) {
        improve(begin, begin + size, scores_[id] + best[begin].score, id);
        has_single = has_single || size == width;
      });
      if (!has_single) {
        const double score = unknown_score_ + best[begin].score;
        if (!unknown_.has_value()) {
          if (best[begin + width].begin == kUnreached || score > best[begin + width].score) return {};
        } else {
          improve(begin, begin + width, score, *unknown_);
        }
      }
      begin += width;
    }
    return best;
  }

  // The tokens of [begin, end) in reverse order: one, or one for each byte.
  void AddBackwards(const PieceBytes& text, size_t begin, size_t end, std::vector<Token>& tokens) const {
    const absl::string_view part = absl::string_view(text.bytes).substr(begin, end - begin);
    const uint32_t first = text.code_points[begin], last = text.code_points[end];
    int32_t id = tokens_.Find(part);
    if (id == Trie::kNone && byte_fallback_ && std::all_of(part.begin(), part.end(), [&](char byte) {
          return bytes_[static_cast<uint8_t>(byte)] != Trie::kNone;
        })) {
      for (size_t i = part.size(); i-- > 0;)
        tokens.push_back({bytes_[static_cast<uint8_t>(part[i])], first, last, /*is_text=*/false});
      return;
    }
    if (id == Trie::kNone) id = *unknown_;
    tokens.push_back({id, first, last});
  }

  const std::vector<double> scores_;
  const std::optional<int32_t> unknown_;
  const bool byte_fallback_;
  const Trie tokens_;
  double unknown_score_ = 0;
  int32_t bytes_[256];
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Model>> ParseUnigram(const io::JsonValue& json, const std::string& where) {
  io::JsonFields fields(json, where);
  fields.Any("type");
  const std::optional<int64_t> unknown = fields.OptionalInt("unk_id");
  const bool byte_fallback = fields.Bool("byte_fallback", false);
  const io::JsonValue& vocab = fields.Array("vocab");
  if (unknown.has_value() && *unknown >= static_cast<int64_t>(vocab.size())) {
    fields.Fail("unk_id", absl::StrCat("the vocabulary has ", vocab.size(), " tokens"));
  }
  if (vocab.size() == 0) fields.Fail("vocab", "expected at least one token");
  AQT_RETURN_IF_ERROR(fields.Finish());
  Vocabulary vocabulary;
  std::vector<double> scores;
  for (size_t i = 0; i < vocab.size(); ++i) {
    const io::JsonValue& entry = vocab[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return io::WrongField(where, absl::StrCat("vocab[", i, "]"), entry, "expected a token and its score");
    }
    std::string token = entry[0].text();
    if (token.size() > kMaxTokenBytes) {
      return io::WrongField(
          where, absl::StrCat("vocab[", i, "]"), entry,
          absl::StrCat("this token has ", token.size(), " bytes; at most ", kMaxTokenBytes, " are read"));
    }
    vocabulary.emplace_back(std::move(token), static_cast<int32_t>(i));
    scores.push_back(entry[1].number());
  }
  std::optional<int32_t> unknown_id;
  if (unknown.has_value()) unknown_id = static_cast<int32_t>(*unknown);
  return std::make_unique<const Unigram>(std::move(vocabulary), std::move(scores), unknown_id, byte_fallback);
}

}  // namespace aqt::tokenizers
