#include "aqt/tokenizers/splitting/pre_tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/tokenizers/splitting/normalizer.h"
#include "aqt/tokenizers/splitting/split_behavior.h"
#include "aqt/tokenizers/text/pattern.h"
#include "aqt/tokenizers/text/unicode.h"

namespace aqt::tokenizers {
namespace {

using Made = absl::StatusOr<std::unique_ptr<const PreTokenizer>>;

constexpr int kMaxDepth = 8;

bool IsPunctuation(char32_t c) { return (CodeFlags(c) & kPunctuation) != 0; }
bool IsNumeric(char32_t c) { return (CodeFlags(c) & kNumeric) != 0; }

// Replaces each piece by the pieces that `split(piece, out)` appends.
template <typename SplitOne>
void SplitAll(Pieces& pieces, SplitOne split) {
  std::vector<Piece> out;
  out.reserve(pieces.pieces.size());
  for (const Piece& piece : pieces.pieces) {
    if (piece.token == Piece::kNoToken) {
      split(piece, out);
    } else {
      out.push_back(piece);
    }
  }
  pieces.pieces = std::move(out);
}

// Rebuilds the text: `rewrite(piece, text)` appends the new text of a piece that is not finished.
template <typename Rewrite>
void RewriteAll(Pieces& pieces, Rewrite rewrite) {
  Text text;
  text.reserve(pieces.text.size() + pieces.pieces.size());
  for (Piece& piece : pieces.pieces) {
    const auto begin = static_cast<uint32_t>(text.size());
    if (piece.token == Piece::kNoToken) {
      rewrite(piece, text);
    } else {
      text.insert(text.end(), pieces.text.begin() + piece.begin, pieces.text.begin() + piece.end);
    }
    piece.begin = begin;
    piece.end = static_cast<uint32_t>(text.size());
  }
  pieces.text = std::move(text);
}

// Splits at each code point for which `is_match` is true.
template <typename IsMatch>
void SplitAt(Pieces& pieces, SplitBehavior behavior, IsMatch is_match) {
  Matches matches;
  SplitAll(pieces, [&](const Piece& piece, std::vector<Piece>& out) {
    matches.clear();
    for (uint32_t i = piece.begin; i < piece.end; ++i) {
      if (is_match(pieces.text[i].code)) matches.emplace_back(i - piece.begin, i + 1 - piece.begin);
    }
    SplitPiece(pieces.text, piece, matches, behavior, /*invert=*/false, out);
  });
}

// Spaces go, and punctuation stands alone.
class BertPreTokenizer final : public PreTokenizer {
 public:
  void Split(Pieces& pieces) const override {
    SplitAll(pieces, [&](const Piece& piece, std::vector<Piece>& out) {
      uint32_t begin = piece.begin;
      const auto finish = [&](uint32_t end) {
        if (begin < end) out.push_back({begin, end, Piece::kNoToken, IsFirst(pieces.text, begin)});
        begin = end;
      };
      for (uint32_t i = piece.begin; i < piece.end; ++i) {
        const uint32_t flags = CodeFlags(pieces.text[i].code);
        if ((flags & (kSpace | kPunctuation)) == 0) continue;
        finish(i);
        if ((flags & kSpace) != 0) {
          begin = i + 1;
        } else {
          finish(i + 1);
        }
      }
      finish(piece.end);
    });
  }
};

// Runs of word characters, and runs of others.
class Whitespace final : public PreTokenizer {
 public:
  void Split(Pieces& pieces) const override {
    SplitAll(pieces, [&](const Piece& piece, std::vector<Piece>& out) {
      for (uint32_t i = piece.begin; i < piece.end;) {
        const uint32_t kind = KindOf(pieces.text[i].code);
        const uint32_t begin = i;
        while (i < piece.end && KindOf(pieces.text[i].code) == kind) ++i;
        if (kind != kSpace) out.push_back({begin, i, Piece::kNoToken, IsFirst(pieces.text, begin)});
      }
    });
  }

 private:
  static uint32_t KindOf(char32_t code) {
    const uint32_t flags = CodeFlags(code);
    return (flags & kWord) != 0 ? uint32_t{kWord} : flags & kSpace;
  }
};

class SplitAtSpaces final : public PreTokenizer {
 public:
  void Split(Pieces& pieces) const override { SplitAt(pieces, SplitBehavior::kRemoved, IsSpace); }
};

class SplitAtCode final : public PreTokenizer {
 public:
  explicit SplitAtCode(char32_t code) : code_(code) {}
  void Split(Pieces& pieces) const override {
    SplitAt(pieces, SplitBehavior::kRemoved, [this](char32_t c) { return c == code_; });
  }

 private:
  const char32_t code_;
};

class Punctuation final : public PreTokenizer {
 public:
  explicit Punctuation(SplitBehavior behavior) : behavior_(behavior) {}
  void Split(Pieces& pieces) const override { SplitAt(pieces, behavior_, IsPunctuation); }

 private:
  const SplitBehavior behavior_;
};

class Digits final : public PreTokenizer {
 public:
  explicit Digits(bool individual) : individual_(individual) {}
  void Split(Pieces& pieces) const override {
    SplitAt(pieces, individual_ ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, IsNumeric);
  }

 private:
  const bool individual_;
};

void SplitByPattern(const Pattern& pattern, SplitBehavior behavior, bool invert, Pieces& pieces) {
  Matches matches;
  SplitAll(pieces, [&](const Piece& piece, std::vector<Piece>& out) {
    matches.clear();
    pattern.Find(absl::MakeConstSpan(pieces.text).subspan(piece.begin, piece.end - piece.begin), matches);
    SplitPiece(pieces.text, piece, matches, behavior, invert, out);
  });
}

class SplitPattern final : public PreTokenizer {
 public:
  SplitPattern(std::unique_ptr<const Pattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void Split(Pieces& pieces) const override { SplitByPattern(*pattern_, behavior_, invert_, pieces); }

 private:
  const std::unique_ptr<const Pattern> pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space), use_regex_(use_regex) {}

  void Split(Pieces& pieces) const override {
    if (add_prefix_space_) {
      RewriteAll(pieces, [&](const Piece& piece, Text& text) {
        const Char& first = pieces.text[piece.begin];
        if (first.code != ' ') text.push_back({' ', first.begin, first.end});
        text.insert(text.end(), pieces.text.begin() + piece.begin, pieces.text.begin() + piece.end);
      });
    }
    if (use_regex_) SplitByPattern(Gpt2Pattern(), SplitBehavior::kIsolated, /*invert=*/false, pieces);
    RewriteAll(pieces, [&](const Piece& piece, Text& text) {
      Text bytes(pieces.text.begin() + piece.begin, pieces.text.begin() + piece.end);
      ToByteCharacters(bytes);
      text.insert(text.end(), bytes.begin(), bytes.end());
    });
  }

 private:
  const bool add_prefix_space_;
  const bool use_regex_;
};

class Metaspace final : public PreTokenizer {
 public:
  enum Scheme : uint8_t { kFirst, kNever, kAlways };
  Metaspace(char32_t replacement, Scheme scheme, bool split)
      : replacement_(replacement), scheme_(scheme), split_(split) {}

  void Split(Pieces& pieces) const override {
    RewriteAll(pieces, [&](const Piece& piece, Text& text) {
      const Char& first = pieces.text[piece.begin];
      const bool begins = first.code == ' ' || first.code == replacement_;
      if (!begins && (scheme_ == kAlways || (scheme_ == kFirst && piece.first))) {
        text.push_back({replacement_, first.begin, first.end});
      }
      for (uint32_t i = piece.begin; i < piece.end; ++i) {
        Char c = pieces.text[i];
        if (c.code == ' ') c.code = replacement_;
        text.push_back(c);
      }
    });
    if (split_) SplitAt(pieces, SplitBehavior::kMergedWithNext, [this](char32_t c) { return c == replacement_; });
  }

 private:
  const char32_t replacement_;
  const Scheme scheme_;
  const bool split_;
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const PreTokenizer>> parts) : parts_(std::move(parts)) {}
  void Split(Pieces& pieces) const override {
    for (const auto& part : parts_) part->Split(pieces);
  }

 private:
  const std::vector<std::unique_ptr<const PreTokenizer>> parts_;
};

Made Parse(const io::JsonValue& json, const std::string& where, int depth);

Made ParseSequence(io::JsonFields& fields, int depth) {
  std::vector<std::unique_ptr<const PreTokenizer>> parts;
  const io::JsonValue& list = fields.Array("pretokenizers");
  if (depth >= kMaxDepth) fields.Fail("pretokenizers", absl::StrCat("at most ", kMaxDepth, " levels are read"));
  AQT_RETURN_IF_ERROR(fields.Finish());
  for (size_t i = 0; i < list.size(); ++i) {
    AQT_ASSIGN_OR_RETURN(auto part, Parse(list[i], absl::StrCat(fields.where(), ".pretokenizers[", i, "]"), depth + 1));
    parts.push_back(std::move(part));
  }
  return std::make_unique<Sequence>(std::move(parts));
}

SplitBehavior ParseBehavior(io::JsonFields& fields, bool required) {
  return static_cast<SplitBehavior>(fields.Word(
      "behavior", {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}, required ? 99 : 1));
}

Made ParseSplit(io::JsonFields& fields) {
  const SplitBehavior behavior = ParseBehavior(fields, /*required=*/true);
  const bool invert = fields.Bool("invert");
  const io::JsonValue& json = fields.Any("pattern");
  AQT_RETURN_IF_ERROR(fields.Finish());
  AQT_ASSIGN_OR_RETURN(auto pattern, ParsePattern(json, absl::StrCat(fields.where(), ".pattern")));
  return std::make_unique<SplitPattern>(std::move(pattern), behavior, invert);
}

// A field with one character.
char32_t ParseCode(io::JsonFields& fields, const char* key) {
  const std::u32string codes = ToCodes(fields.Text(key));
  if (codes.size() == 1) return codes[0];
  fields.Fail(key, "expected one character");
  return 0;
}

Made ParseMetaspace(io::JsonFields& fields) {
  const char32_t replacement = ParseCode(fields, "replacement");
  const bool has_scheme = !fields.Any("prepend_scheme").is_null();
  auto scheme = static_cast<Metaspace::Scheme>(fields.Word("prepend_scheme", {"first", "never", "always"}, 2));
  const std::optional<bool> prefix = fields.OptionalBool("add_prefix_space");  // of older files
  if (prefix == false) {
    if (scheme != Metaspace::kNever && has_scheme) fields.Fail("add_prefix_space", "prepend_scheme says otherwise");
    scheme = Metaspace::kNever;
  }
  fields.Any("str_rep");  // of older files: again the replacement
  const bool split = fields.Bool("split", true);
  AQT_RETURN_IF_ERROR(fields.Finish());
  return std::make_unique<Metaspace>(replacement, scheme, split);
}

Made ParseByteLevel(io::JsonFields& fields) {
  const bool add_prefix_space = fields.Bool("add_prefix_space");
  fields.Bool("trim_offsets");  // means something only as a post-processor
  const bool use_regex = fields.Bool("use_regex", true);
  AQT_RETURN_IF_ERROR(fields.Finish());
  return std::make_unique<ByteLevel>(add_prefix_space, use_regex);
}

Made Simple(io::JsonFields& fields, std::unique_ptr<const PreTokenizer> pre_tokenizer) {
  AQT_RETURN_IF_ERROR(fields.Finish());
  return pre_tokenizer;
}

Made Parse(const io::JsonValue& json, const std::string& where, int depth) {
  io::JsonFields fields(json, where);
  const std::string type = fields.Text("type");
  if (type == "Sequence") return ParseSequence(fields, depth);
  if (type == "Split") return ParseSplit(fields);
  if (type == "Metaspace") return ParseMetaspace(fields);
  if (type == "ByteLevel") return ParseByteLevel(fields);
  if (type == "BertPreTokenizer") return Simple(fields, MakeBertPreTokenizer());
  if (type == "Whitespace") return Simple(fields, std::make_unique<Whitespace>());
  if (type == "WhitespaceSplit") return Simple(fields, std::make_unique<SplitAtSpaces>());
  if (type == "CharDelimiterSplit") {
    const char32_t delimiter = ParseCode(fields, "delimiter");
    return Simple(fields, std::make_unique<SplitAtCode>(delimiter));
  }
  if (type == "Punctuation") {
    const SplitBehavior behavior = ParseBehavior(fields, /*required=*/false);
    return Simple(fields, std::make_unique<Punctuation>(behavior));
  }
  if (type == "Digits") {
    const bool individual = fields.Bool("individual_digits");
    return Simple(fields, std::make_unique<Digits>(individual));
  }
  fields.Fail(
      "type",
      "read are BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, Metaspace, Punctuation, Sequence, Split, "
      "Whitespace and WhitespaceSplit");
  return fields.Finish();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const PreTokenizer>> ParsePreTokenizer(const io::JsonValue& json,
                                                                      const std::string& where) {
  return Parse(json, where, 0);
}

std::unique_ptr<const PreTokenizer> MakeBertPreTokenizer() { return std::make_unique<BertPreTokenizer>(); }

}  // namespace aqt::tokenizers
