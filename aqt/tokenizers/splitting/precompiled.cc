#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "aqt/tokenizers/splitting/normalizer.h"
#include "aqt/tokenizers/text/unicode.h"

namespace aqt::tokenizers {
namespace {

// Grapheme clusters from this number of bytes on are looked up by code points.
constexpr size_t kLongCluster = 6;

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::vector<uint32_t> units, std::string texts) : units_(std::move(units)), texts_(std::move(texts)) {}

  absl::Status Normalize(size_t limit, Text& text) const override {
    std::vector<Change> changes;
    changes.reserve(text.size());
    bool modified = false;
    std::string bytes;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = GraphemeEnd(text, begin);
      bytes.clear();
      for (size_t i = begin; i < end && bytes.size() < kLongCluster; ++i) AppendUtf8(text[i].code, bytes);
      if (bytes.size() < kLongCluster && Replace(bytes, end - begin, changes)) {
        modified = true;
      } else {
        for (size_t i = begin; i < end; ++i) {
          bytes.clear();
          AppendUtf8(text[i].code, bytes);
          if (Replace(bytes, 1, changes)) {
            modified = true;
          } else {
            changes.push_back({text[i].code, 0});
          }
        }
      }
      if (changes.size() > limit) return TooLong(changes.size(), limit);
      begin = end;
    }
    if (modified) ApplyChanges(changes, text);
    return absl::OkStatus();
  }

 private:
  // If the map has a beginning of `bytes`, which are `count` code points, appends what replaces all of them.
  bool Replace(absl::string_view bytes, size_t count, std::vector<Change>& changes) const {
    const int64_t at = Lookup(bytes);
    if (at < 0) return false;
    const size_t end = std::min(texts_.find('\0', static_cast<size_t>(at)), texts_.size());
    const size_t old_size = changes.size();
    for (const char32_t code : ToCodes(absl::string_view(texts_).substr(at, end - at))) changes.push_back({code, 0});
    const size_t size = changes.size() - old_size;
    // The last ones are inserted, or the last one also stands for those that are gone.
    for (size_t i = count; i < size; ++i) changes[old_size + i].change = 1;
    if (size < count && !changes.empty()) changes.back().change -= static_cast<int>(count - size);
    return true;
  }

  // Where the text of the shortest key that `bytes` begin with is, or -1.
  int64_t Lookup(absl::string_view bytes) const {
    const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
    size_t node = offset(units_[0]);
    for (const char byte : bytes) {
      if (byte == '\0') return -1;
      node ^= static_cast<uint8_t>(byte);
      if (node >= units_.size()) return -1;
      const uint32_t unit = units_[node];
      if ((unit & ((1u << 31) | 0xFF)) != static_cast<uint8_t>(byte)) return -1;
      node ^= offset(unit);
      if ((unit >> 8 & 1) == 0) continue;
      if (node >= units_.size()) return -1;
      const uint32_t value = units_[node] & ((1u << 31) - 1);
      return value < texts_.size() ? static_cast<int64_t>(value) : -1;
    }
    return -1;
  }

  const std::vector<uint32_t> units_;
  const std::string texts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Normalizer>> MakePrecompiled(absl::string_view base64) {
  std::string blob;
  if (!absl::Base64Unescape(base64, &blob)) return absl::InvalidArgumentError("it is not Base64");
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<uint8_t>(blob[at + i])) << (8 * i);
    return value;
  };
  const uint32_t size = blob.size() >= 8 ? word(0) : 0;
  if (size < 4 || size % 4 != 0 || size > blob.size() - 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("its ", blob.size(), " bytes must be the size of a trie, the trie and texts; the size is ", size));
  }
  std::vector<uint32_t> units;
  for (size_t at = 4; at < size + size_t{4}; at += 4) units.push_back(word(at));
  return std::unique_ptr<const Normalizer>(
      std::make_unique<Precompiled>(std::move(units), blob.substr(4 + size_t{size})));
}

}  // namespace aqt::tokenizers
