// Byte-pair encoding: a piece begins as single characters, and the two neighbours whose merge was learned first are
// joined until no merge applies.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/tokenizers/vocabularies/model.h"

namespace aqt::tokenizers {
namespace {

constexpr int32_t kNone = -1;

struct Merge {
  uint32_t rank;
  int32_t id;  // of the joined token
};

struct BpeOptions {
  std::optional<std::string> unknown;
  std::string prefix;  // of every token but the first of a piece
  std::string suffix;  // of the last one
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // for a piece that is a token
};

uint64_t PairKey(int32_t a, int32_t b) {
  return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
}

class Bpe final : public Model {
 public:
  static absl::StatusOr<std::unique_ptr<const Model>> Make(Vocabulary vocabulary, BpeOptions options,
                                                           const io::JsonValue& merges, const std::string& where) {
    auto model = std::make_unique<Bpe>(std::move(vocabulary), std::move(options));
    if (model->options_.unknown.has_value() && model->unknown_ == kNone) {
      return absl::InvalidArgumentError(absl::StrCat(where, ".unk_token is ", io::Printable(*model->options_.unknown),
                                                     ", which is not in the vocabulary"));
    }
    AQT_RETURN_IF_ERROR(model->ReadMerges(merges, where));
    return std::unique_ptr<const Model>(std::move(model));
  }

  Bpe(Vocabulary vocabulary, BpeOptions options) : options_(std::move(options)), largest_id_(LargestId(vocabulary)) {
    tokens_.reserve(vocabulary.size());
    for (auto& [token, id] : vocabulary) tokens_[std::move(token)] = id;
    if (options_.unknown.has_value()) unknown_ = Find(*options_.unknown);
    for (int byte = 0; byte < 256; ++byte) bytes_[byte] = Find(absl::StrFormat("<0x%02X>", byte));
    for (char32_t code = 0; code < kNumDirect; ++code) {
      std::string text;
      AppendUtf8(code, text);
      direct_[code] = Find(text);
    }
  }

  absl::Status Tokenize(absl::Span<const Char> piece, std::vector<Token>& tokens) const override {
    if (options_.ignore_merges) {
      const PieceBytes text(piece);
      if (const int32_t id = Find(text.bytes); id != kNone) {
        tokens.push_back({id, 0, static_cast<uint32_t>(piece.size())});
        return absl::OkStatus();
      }
    }
    std::vector<Symbol> symbols = Symbols(piece);
    MergeAll(symbols);
    for (const Symbol& symbol : symbols) {
      if (symbol.alive) tokens.push_back({symbol.id, symbol.begin, symbol.end, symbol.is_text});
    }
    return absl::OkStatus();
  }
  int32_t Find(absl::string_view token) const override {
    const auto it = tokens_.find(token);
    return it == tokens_.end() ? kNone : it->second;
  }
  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  int64_t largest_id() const override { return largest_id_; }

 private:
  static constexpr char32_t kNumDirect = 0x180;

  struct Symbol {
    int32_t id;
    uint32_t begin;  // code points of the piece
    uint32_t end;
    int32_t previous;
    int32_t next;
    bool alive;
    bool is_text;
  };

  absl::Status ReadMerges(const io::JsonValue& merges, const std::string& where) {
    merges_.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const std::string name = absl::StrCat("merges[", i, "]");
      std::pair<std::string, std::string> pair;
      if (merges[i].is_array() && merges[i].size() == 2 && merges[i][0].is_string() && merges[i][1].is_string()) {
        pair = {merges[i][0].text(), merges[i][1].text()};
      } else if (merges[i].is_string()) {
        const std::vector<std::string> parts = absl::StrSplit(merges[i].text(), ' ');
        if (parts.size() != 2)
          return io::WrongField(where, name, merges[i], "expected two tokens with one space between");
        pair = {parts[0], parts[1]};
      } else {
        return io::WrongField(where, name, merges[i], "expected two tokens");
      }
      const int32_t a = Find(pair.first), b = Find(pair.second);
      if (pair.second.size() < options_.prefix.size() || a == kNone || b == kNone) {
        return io::WrongField(where, name, merges[i], "both tokens must be in the vocabulary");
      }
      const int32_t joined = Find(absl::StrCat(pair.first, pair.second.substr(options_.prefix.size())));
      if (joined == kNone) return io::WrongField(where, name, merges[i], "the joined token must be in the vocabulary");
      merges_[PairKey(a, b)] = {static_cast<uint32_t>(i), joined};
    }
    return absl::OkStatus();
  }

  // The token of one code point, with prefix and suffix, or kNone. `text` becomes its text.
  int32_t FindCode(char32_t code, bool first, bool last, std::string& text) const {
    const bool plain = (first || options_.prefix.empty()) && (!last || options_.suffix.empty());
    if (plain && code < kNumDirect && direct_[code] != kNone) return direct_[code];
    text = first ? "" : options_.prefix;
    AppendUtf8(code, text);
    if (last) text += options_.suffix;
    return Find(text);
  }

  bool AllBytesKnown(absl::string_view text) const {
    return std::all_of(text.begin(), text.end(), [&](char c) { return bytes_[static_cast<uint8_t>(c)] != kNone; });
  }

  std::vector<Symbol> Symbols(absl::Span<const Char> piece) const {
    std::vector<Symbol> symbols;
    symbols.reserve(piece.size());
    const auto add = [&](int32_t id, uint32_t begin, uint32_t end, bool is_text) {
      const auto at = static_cast<int32_t>(symbols.size());
      symbols.push_back({id, begin, end, at - 1, at + 1, /*alive=*/true, is_text});
    };
    std::optional<std::pair<uint32_t, uint32_t>> unknown;  // waits for a known one, or for more to fuse with
    const auto add_unknown = [&] {
      if (unknown.has_value()) add(unknown_, unknown->first, unknown->second, /*is_text=*/false);
      unknown.reset();
    };
    std::string text;
    for (uint32_t i = 0; i < piece.size(); ++i) {
      const int32_t id = FindCode(piece[i].code, i == 0, i + 1 == piece.size(), text);
      if (id != kNone) {
        add_unknown();
        add(id, i, i + 1, /*is_text=*/true);
      } else if (options_.byte_fallback && AllBytesKnown(text)) {
        // An unknown one that waits stays behind, as in the original.
        for (const char byte : text) add(bytes_[static_cast<uint8_t>(byte)], i, i + 1, /*is_text=*/false);
      } else if (options_.unknown.has_value()) {
        if (unknown.has_value() && options_.fuse_unknown) {
          unknown->second = i + 1;
        } else {
          add_unknown();
          unknown = {i, i + 1};
        }
      }
    }
    add_unknown();
    if (!symbols.empty()) symbols.back().next = kNone;
    return symbols;
  }

  void MergeAll(std::vector<Symbol>& symbols) const {
    // The smallest rank first; among equals the leftmost.
    using Candidate = std::tuple<uint32_t, int32_t, int32_t>;  // rank, position, id
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto consider = [&](int32_t at) {
      if (at < 0 || symbols[at].next < 0) return;
      const auto it = merges_.find(PairKey(symbols[at].id, symbols[symbols[at].next].id));
      if (it != merges_.end()) queue.emplace(it->second.rank, at, it->second.id);
    };
    for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int32_t>(i));
    while (!queue.empty()) {
      const auto [rank, at, id] = queue.top();
      queue.pop();
      Symbol& left = symbols[at];
      if (!left.alive || left.next < 0) continue;
      Symbol& right = symbols[left.next];
      const auto it = merges_.find(PairKey(left.id, right.id));
      if (it == merges_.end() || it->second.id != id) continue;  // one of them has changed since
      left.id = id;
      left.end = std::max(left.end, right.end);
      right.alive = false;
      left.next = right.next;
      if (left.next >= 0) symbols[left.next].previous = at;
      consider(left.previous);
      consider(at);
    }
  }

  const BpeOptions options_;
  const int64_t largest_id_;
  absl::flat_hash_map<std::string, int32_t> tokens_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  int32_t unknown_ = kNone;
  int32_t bytes_[256];
  int32_t direct_[kNumDirect];  // the tokens of the first code points
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Model>> ParseBpe(const io::JsonValue& json, const std::string& where) {
  io::JsonFields fields(json, where);
  fields.Any("type");
  const io::JsonValue& dropout = fields.Any("dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.number() == 0)) {
    fields.Fail("dropout", "only null and 0 are read: dropout is for training");
  }
  BpeOptions options;
  if (!fields.Any("unk_token").is_null()) options.unknown = fields.Text("unk_token");
  options.prefix = fields.Text("continuing_subword_prefix", "");
  options.suffix = fields.Text("end_of_word_suffix", "");
  options.fuse_unknown = fields.Bool("fuse_unk", false);
  options.byte_fallback = fields.Bool("byte_fallback", false);
  options.ignore_merges = fields.Bool("ignore_merges", false);
  const io::JsonValue& vocab = fields.Any("vocab");
  const io::JsonValue& merges = fields.Array("merges");
  AQT_RETURN_IF_ERROR(fields.Finish());
  AQT_ASSIGN_OR_RETURN(Vocabulary vocabulary, ParseVocabulary(vocab, where));
  return Bpe::Make(std::move(vocabulary), std::move(options), merges, where);
}

}  // namespace aqt::tokenizers
