#ifndef AQT_TOKENIZERS_SPLITTING_NORMALIZER_H_
#define AQT_TOKENIZERS_SPLITTING_NORMALIZER_H_

// The first step of a tokenizer: the text is cleaned, lowercased, brought into a normal form.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/json_fields.h"
#include "aqt/tokenizers/text/text.h"

namespace aqt::tokenizers {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // ResourceExhausted if the text would grow beyond GrowthLimit of its size before the first normalizer.
  virtual absl::Status Normalize(size_t limit, Text& text) const = 0;
};

// How many code points a text of `size` may become. No real tokenizer comes near.
inline size_t GrowthLimit(size_t size) { return std::min<size_t>(64 * size + 65536, size_t{32} << 20); }
absl::Status TooLong(size_t size, size_t limit);

// The object "normalizer" of tokenizer.json, or one in a Sequence. InvalidArgument names what is not read.
absl::StatusOr<std::unique_ptr<const Normalizer>> ParseNormalizer(const io::JsonValue& json, const std::string& where);

// ---- kinds with a file of their own

struct BertNormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
std::unique_ptr<const Normalizer> MakeBertNormalizer(const BertNormalizerOptions& options);

// SentencePiece's map of characters: a double-array trie and texts, in Base64.
absl::StatusOr<std::unique_ptr<const Normalizer>> MakePrecompiled(absl::string_view base64);

// The character that stands for a byte in byte-level tokenizers.
char32_t ByteCharacter(uint8_t byte);
// Replaces each code point by the characters of its bytes.
void ToByteCharacters(Text& text);

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_SPLITTING_NORMALIZER_H_
