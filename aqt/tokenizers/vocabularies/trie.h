#ifndef AQT_TOKENIZERS_VOCABULARIES_TRIE_H_
#define AQT_TOKENIZERS_VOCABULARIES_TRIE_H_

// A set of strings with values, for the question which of them a text begins with.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace aqt::tokenizers {

class Trie {
 public:
  static constexpr int32_t kNone = -1;

  // The empty string is left out. Of equal keys the last one counts.
  explicit Trie(std::vector<std::pair<std::string, int32_t>> entries);

  // Calls visit(length, value) for each key that `text` begins with, from the shortest on.
  template <typename Visit>
  void VisitPrefixes(absl::string_view text, Visit visit) const {
    if (text.empty()) return;
    int32_t node = roots_[static_cast<uint8_t>(text[0])];
    for (size_t size = 1; node != kNone; ++size) {
      if (values_[node] != kNone) visit(size, values_[node]);
      if (size == text.size()) return;
      node = Child(node, text[size]);
    }
  }

  // The value of a key, or kNone.
  int32_t Find(absl::string_view key) const;

 private:
  int32_t Child(int32_t node, char label) const;

  // The children of node n are the nodes from first_child_[n] to first_child_[n + 1], sorted by label.
  std::vector<int32_t> first_child_;
  std::string labels_;
  std::vector<int32_t> values_;
  std::array<int32_t, 256> roots_;
};

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_VOCABULARIES_TRIE_H_
