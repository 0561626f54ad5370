// Input: a tokenizer.json, or a vocab.txt, then a byte 0xFF and texts with 0xFE between. A file that is accepted gives
// the same tokens twice, ids below num_ids, places inside the text, and not more tokens than asked for.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "aqt/tokenizers/tokenizer.h"

namespace {

using aqt::tokenizers::EncodeOptions;
using aqt::tokenizers::Encoding;
using aqt::tokenizers::Tokenizer;

void CheckEncoding(const Tokenizer& tokenizer, const Encoding& encoding, const EncodeOptions& options, size_t size) {
  const size_t n = encoding.ids.size();
  AQT_CHECK(encoding.type_ids.size() == n && encoding.attention_mask.size() == n);
  AQT_CHECK(!options.max_length.has_value() || static_cast<int64_t>(n) <= *options.max_length);
  for (const int32_t id : encoding.ids) AQT_CHECK(id >= 0 && id < tokenizer.num_ids());
  AQT_CHECK(encoding.offsets.size() == (options.offsets ? n : 0));
  for (const auto& [begin, end] : encoding.offsets) AQT_CHECK(begin <= end && end <= size);
}

void EncodeAll(const Tokenizer& tokenizer, absl::string_view texts) {
  absl::string_view last;
  for (const absl::string_view text : absl::StrSplit(texts, '\xFE')) {
    EncodeOptions options;
    options.offsets = true;
    const auto one = tokenizer.Encode(text, options);
    if (one.ok()) CheckEncoding(tokenizer, *one, options, text.size());
    options.max_length = 6;
    const auto two = tokenizer.Encode(text, last, options);
    if (two.ok()) CheckEncoding(tokenizer, *two, options, std::max(text.size(), last.size()));
    const auto again = tokenizer.Encode(text);
    AQT_CHECK(again.ok() == one.ok() && (!one.ok() || again->ids == one->ids));
    last = text;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\xFF');
  if (end == absl::string_view::npos) return 0;
  const absl::string_view file = input.substr(0, end);
  const bool is_json = !file.empty() && file[0] == '{';
  const auto tokenizer = is_json ? Tokenizer::FromJson(file, "input") : Tokenizer::FromVocabulary(file, "", "input");
  if (tokenizer.ok()) EncodeAll(*tokenizer, input.substr(end + 1));
  return 0;
}
