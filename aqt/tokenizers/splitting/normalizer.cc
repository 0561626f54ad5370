#include "aqt/tokenizers/splitting/normalizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/tokenizers/text/pattern.h"
#include "aqt/tokenizers/text/unicode.h"

namespace aqt::tokenizers {
namespace {

using Made = absl::StatusOr<std::unique_ptr<const Normalizer>>;

constexpr int kMaxDepth = 8;

class Form final : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  absl::Status Normalize(size_t limit, Text& text) const override {
    tokenizers::Normalize(form_, text);
    return text.size() > limit ? TooLong(text.size(), limit) : absl::OkStatus();
  }

 private:
  const NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  absl::Status Normalize(size_t limit, Text& text) const override {
    LowercaseText(text);
    return text.size() > limit ? TooLong(text.size(), limit) : absl::OkStatus();
  }
};

template <typename Keep>
void KeepOnly(Text& text, Keep keep) {
  text.erase(std::remove_if(text.begin(), text.end(), [&](const Char& c) { return !keep(c.code); }), text.end());
}

class StripAccents final : public Normalizer {
 public:
  absl::Status Normalize(size_t, Text& text) const override {
    KeepOnly(text, [](char32_t c) { return (CodeFlags(c) & kCombiningMark) == 0; });
    return absl::OkStatus();
  }
};

// The rules of a machine translation project (NMT): control characters go, rare spaces become a space.
class Nmt final : public Normalizer {
 public:
  absl::Status Normalize(size_t, Text& text) const override {
    KeepOnly(text, [](char32_t c) {
      return !((c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
    });
    for (Char& c : text) {
      if (IsNmtSpace(c.code)) c.code = ' ';
    }
    return absl::OkStatus();
  }

 private:
  static bool IsNmtSpace(char32_t c) {
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Normalize(size_t, Text& text) const override {
    if (right_) {
      while (!text.empty() && IsSpace(text.back().code)) text.pop_back();
    }
    if (left_) {
      text.erase(text.begin(), std::find_if(text.begin(), text.end(), [](const Char& c) { return !IsSpace(c.code); }));
    }
    return absl::OkStatus();
  }

 private:
  const bool left_;
  const bool right_;
};

class Replace final : public Normalizer {
 public:
  Replace(std::unique_ptr<const Pattern> pattern, absl::string_view content)
      : pattern_(std::move(pattern)), content_(ToCodes(content)) {}

  absl::Status Normalize(size_t limit, Text& text) const override {
    Matches matches;
    pattern_->Find(text, matches);
    if (matches.empty()) return absl::OkStatus();
    const size_t most = text.size() + matches.size() * content_.size();
    if (most > limit) return TooLong(most, limit);
    Text result;
    result.reserve(most);
    size_t done = 0;
    for (const auto& [begin, end] : matches) {
      result.insert(result.end(), text.begin() + done, text.begin() + begin);
      // What is inserted has the place of the last code point that it replaces.
      for (const char32_t code : content_) result.push_back({code, text[end - 1].begin, text[end - 1].end});
      done = end;
    }
    result.insert(result.end(), text.begin() + done, text.end());
    text = std::move(result);
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<const Pattern> pattern_;
  const std::u32string content_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(absl::string_view content) : content_(ToCodes(content)) {}

  absl::Status Normalize(size_t limit, Text& text) const override {
    if (text.empty()) return absl::OkStatus();
    if (text.size() + content_.size() > limit) return TooLong(text.size() + content_.size(), limit);
    Text begin;
    for (const char32_t code : content_) begin.push_back({code, text[0].begin, text[0].end});
    text.insert(text.begin(), begin.begin(), begin.end());
    return absl::OkStatus();
  }

 private:
  const std::u32string content_;
};

class ByteLevel final : public Normalizer {
 public:
  absl::Status Normalize(size_t limit, Text& text) const override {
    ToByteCharacters(text);
    return text.size() > limit ? TooLong(text.size(), limit) : absl::OkStatus();
  }
};

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const Normalizer>> parts) : parts_(std::move(parts)) {}
  absl::Status Normalize(size_t limit, Text& text) const override {
    for (const auto& part : parts_) AQT_RETURN_IF_ERROR(part->Normalize(limit, text));
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<const Normalizer>> parts_;
};

Made Parse(const io::JsonValue& json, const std::string& where, int depth);

Made ParseSequence(io::JsonFields& fields, int depth) {
  std::vector<std::unique_ptr<const Normalizer>> parts;
  const io::JsonValue& list = fields.Array("normalizers");
  if (depth >= kMaxDepth) fields.Fail("normalizers", absl::StrCat("at most ", kMaxDepth, " levels are read"));
  AQT_RETURN_IF_ERROR(fields.Finish());
  for (size_t i = 0; i < list.size(); ++i) {
    AQT_ASSIGN_OR_RETURN(auto part, Parse(list[i], absl::StrCat(fields.where(), ".normalizers[", i, "]"), depth + 1));
    parts.push_back(std::move(part));
  }
  return std::make_unique<Sequence>(std::move(parts));
}

Made ParseBert(io::JsonFields& fields) {
  BertNormalizerOptions options;
  options.clean_text = fields.Bool("clean_text");
  options.handle_chinese_chars = fields.Bool("handle_chinese_chars");
  options.lowercase = fields.Bool("lowercase");
  options.strip_accents = fields.OptionalBool("strip_accents").value_or(options.lowercase);
  AQT_RETURN_IF_ERROR(fields.Finish());
  return MakeBertNormalizer(options);
}

Made ParseReplace(io::JsonFields& fields) {
  const std::string content = fields.Text("content");
  const io::JsonValue& json = fields.Any("pattern");
  AQT_RETURN_IF_ERROR(fields.Finish());
  AQT_ASSIGN_OR_RETURN(auto pattern, ParsePattern(json, absl::StrCat(fields.where(), ".pattern")));
  return std::make_unique<Replace>(std::move(pattern), content);
}

Made ParsePrecompiled(io::JsonFields& fields) {
  const std::string map = fields.Text("precompiled_charsmap");
  AQT_RETURN_IF_ERROR(fields.Finish());
  Made made = MakePrecompiled(map);
  if (!made.ok()) return Annotate(made.status(), absl::StrCat(fields.where(), ".precompiled_charsmap"));
  return made;
}

Made Simple(io::JsonFields& fields, std::unique_ptr<const Normalizer> normalizer) {
  AQT_RETURN_IF_ERROR(fields.Finish());
  return normalizer;
}

Made Parse(const io::JsonValue& json, const std::string& where, int depth) {
  io::JsonFields fields(json, where);
  const std::string type = fields.Text("type");
  if (type == "Sequence") return ParseSequence(fields, depth);
  if (type == "BertNormalizer") return ParseBert(fields);
  if (type == "Replace") return ParseReplace(fields);
  if (type == "Precompiled") return ParsePrecompiled(fields);
  if (type == "NFC") return Simple(fields, std::make_unique<Form>(NormalForm::kNfc));
  if (type == "NFD") return Simple(fields, std::make_unique<Form>(NormalForm::kNfd));
  if (type == "NFKC") return Simple(fields, std::make_unique<Form>(NormalForm::kNfkc));
  if (type == "NFKD") return Simple(fields, std::make_unique<Form>(NormalForm::kNfkd));
  if (type == "Lowercase") return Simple(fields, std::make_unique<Lowercase>());
  if (type == "StripAccents") return Simple(fields, std::make_unique<StripAccents>());
  if (type == "Nmt") return Simple(fields, std::make_unique<Nmt>());
  if (type == "ByteLevel") return Simple(fields, std::make_unique<ByteLevel>());
  if (type == "Prepend") {
    const std::string content = fields.Text("prepend");
    return Simple(fields, std::make_unique<Prepend>(content));
  }
  if (type == "Strip") {
    const bool left = fields.Bool("strip_left"), right = fields.Bool("strip_right");
    return Simple(fields, std::make_unique<Strip>(left, right));
  }
  fields.Fail(
      "type",
      "read are BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, "
      "Sequence, Strip and StripAccents");
  return fields.Finish();
}

}  // namespace

absl::Status TooLong(size_t size, size_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat("the text grows to ", size,
                                                   " code points while it is normalized; at most ", limit,
                                                   " are allowed for a text of its size"));
}

absl::StatusOr<std::unique_ptr<const Normalizer>> ParseNormalizer(const io::JsonValue& json, const std::string& where) {
  return Parse(json, where, 0);
}

char32_t ByteCharacter(uint8_t byte) {
  const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
  if (prints) return byte;
  // The others follow each other from U+0100 on: 0x00 to 0x20, 0x7F to 0xA0, 0xAD.
  if (byte <= 0x20) return char32_t{0x100} + byte;
  return byte == 0xAD ? char32_t{0x143} : char32_t{0x121} + (byte - 0x7F);
}

void ToByteCharacters(Text& text) {
  Text result;
  result.reserve(text.size() * 5 / 4);
  std::string bytes;
  for (const Char& c : text) {
    if (c.code < 0x80) {
      result.push_back({ByteCharacter(static_cast<uint8_t>(c.code)), c.begin, c.end});
      continue;
    }
    bytes.clear();
    AppendUtf8(c.code, bytes);
    for (const char byte : bytes) result.push_back({ByteCharacter(static_cast<uint8_t>(byte)), c.begin, c.end});
  }
  text = std::move(result);
}

}  // namespace aqt::tokenizers
