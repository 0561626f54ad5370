#ifndef AQT_TOKENIZERS_TOKENIZER_H_
#define AQT_TOKENIZERS_TOKENIZER_H_

// Text to token ids, as the Python package `tokenizers` does it from a tokenizer.json (docs/tokenizers.md).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"

namespace aqt::tokenizers {

struct EncodeOptions {
  // [CLS], </s> and so on, as the file's post_processor says.
  bool add_special_tokens = true;
  // At most this number of tokens, special ones included; without a value, the file's own "truncation", if it has one.
  // The file's direction and strategy are used in both cases (default: tokens at the end go, of the longer text first).
  std::optional<int64_t> max_length;
  // The longer text of a pair loses tokens first, whatever the file's strategy: truncation=True of transformers.
  bool longest_first = false;
  // Whether to fill Encoding::offsets.
  bool offsets = false;
};

struct Encoding {
  std::vector<int32_t> ids;
  std::vector<int32_t> type_ids;             // which text of a pair, as the post_processor counts
  std::vector<int32_t> attention_mask;       // all 1: there is no padding
  std::vector<int32_t> special_tokens_mask;  // 1 for tokens that the post_processor adds, else 0
  // For each token the bytes [first, second) of its text that it comes from; (0, 0) for special ones.
  std::vector<std::pair<uint32_t, uint32_t>> offsets;
  int64_t num_truncated = 0;  // tokens that max_length removed
};

// What the file says about padding. Encode never pads.
struct Padding {
  std::optional<int64_t> id;  // of the token to pad with, if the file has a "padding", or a token [PAD] or <pad>
  int32_t type_id = 0;
  bool left = false;
};

// Immutable; all functions may be called from several threads.
class Tokenizer {
 public:
  // `path` is a tokenizer.json, a vocab.txt of BERT, or a folder with one of them. Fields that are not understood are
  // InvalidArgument, with the field, its value and what is read.
  static absl::StatusOr<Tokenizer> Open(const io::FileSystem& fs, absl::string_view path);
  // The text of a tokenizer.json; `name` is for messages. `config` is the text of the tokenizer_config.json beside it,
  // or empty. Of that file truncation_side, add_prefix_space, and for BERT do_lower_case, strip_accents and
  // tokenize_chinese_chars count, above what tokenizer.json says.
  static absl::StatusOr<Tokenizer> FromJson(absl::string_view json, const std::string& name,
                                            absl::string_view config = "");
  // A vocab.txt, with one token in each line, for BERT. `config` is the text of its tokenizer_config.json, or empty.
  static absl::StatusOr<Tokenizer> FromVocabulary(absl::string_view vocabulary, absl::string_view config,
                                                  const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The tokens of one text, or of a pair. Bytes that are not UTF-8 become U+FFFD. A text may have up to 16 MiB.
  absl::StatusOr<Encoding> Encode(absl::string_view text, const EncodeOptions& options = {}) const;
  absl::StatusOr<Encoding> Encode(absl::string_view text, absl::string_view second,
                                  const EncodeOptions& options = {}) const;

  // One more than the largest id.
  int64_t num_ids() const;
  // The id of a token, or nullopt.
  std::optional<int32_t> Find(absl::string_view token) const;
  const Padding& padding() const;

  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

 private:
  std::unique_ptr<const Parts> parts_;
};

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_TOKENIZER_H_
