#include <memory>
#include <utility>

#include "aqt/tokenizers/splitting/normalizer.h"
#include "aqt/tokenizers/text/unicode.h"

namespace aqt::tokenizers {
namespace {

// What BERT takes for Chinese, which includes the ideographs of Japanese.
bool IsChinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const BertNormalizerOptions& options) : options_(options) {}

  absl::Status Normalize(size_t limit, Text& text) const override {
    if (options_.clean_text) Clean(text);
    if (options_.handle_chinese_chars) SetApartChinese(text);
    if (options_.strip_accents) {
      tokenizers::Normalize(NormalForm::kNfd, text);
      size_t size = 0;
      for (const Char& c : text) {
        if ((CodeFlags(c.code) & kNonspacingMark) == 0) text[size++] = c;
      }
      text.resize(size);
    }
    if (options_.lowercase) LowercaseText(text);
    if (text.size() > limit) return TooLong(text.size(), limit);
    return absl::OkStatus();
  }

 private:
  static void Clean(Text& text) {
    size_t size = 0;
    for (Char c : text) {
      const uint32_t flags = CodeFlags(c.code);
      if ((flags & kRemoved) != 0) continue;
      if ((flags & kSpace) != 0) c.code = ' ';
      text[size++] = c;
    }
    text.resize(size);
  }

  static void SetApartChinese(Text& text) {
    size_t chinese = 0;
    for (const Char& c : text) chinese += IsChinese(c.code) ? 1 : 0;
    if (chinese == 0) return;
    Text result;
    result.reserve(text.size() + 2 * chinese);
    for (const Char& c : text) {
      const Char space = {' ', c.begin, c.end};
      if (IsChinese(c.code)) {
        result.insert(result.end(), {space, c, space});
      } else {
        result.push_back(c);
      }
    }
    text = std::move(result);
  }

  const BertNormalizerOptions options_;
};

}  // namespace

std::unique_ptr<const Normalizer> MakeBertNormalizer(const BertNormalizerOptions& options) {
  return std::make_unique<BertNormalizer>(options);
}

}  // namespace aqt::tokenizers
