#include "aqt/tokenizers/vocabularies/trie.h"

#include <algorithm>
#include <cstring>

namespace aqt::tokenizers {
namespace {

// Entries [begin, end) share the first `depth` bytes, which are a node's.
struct Range {
  size_t begin;
  size_t end;
  size_t depth;
};

}  // namespace

Trie::Trie(std::vector<std::pair<std::string, int32_t>> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  roots_.fill(kNone);
  std::vector<Range> level = {{0, entries.size(), 0}}, next;
  bool is_root = true;
  while (!level.empty()) {
    // The children of one level follow each other in the next one.
    next.clear();
    for (const Range& range : level) {
      if (!is_root) first_child_.push_back(static_cast<int32_t>(values_.size()));
      size_t i = range.begin;
      while (i < range.end && entries[i].first.size() == range.depth) ++i;
      while (i < range.end) {
        const char label = entries[i].first[range.depth];
        Range child = {i, i, range.depth + 1};
        int32_t value = kNone;
        for (; i < range.end && entries[i].first[range.depth] == label; ++i) {
          if (entries[i].first.size() == child.depth) value = entries[i].second;
        }
        child.end = i;
        if (is_root) roots_[static_cast<uint8_t>(label)] = static_cast<int32_t>(values_.size());
        labels_.push_back(label);
        values_.push_back(value);
        next.push_back(child);
      }
    }
    is_root = false;
    level.swap(next);
  }
  first_child_.push_back(static_cast<int32_t>(values_.size()));
}

int32_t Trie::Child(int32_t node, char label) const {
  const int32_t begin = first_child_[node], end = first_child_[node + 1];
  const void* const found = std::memchr(labels_.data() + begin, label, static_cast<size_t>(end - begin));
  return found == nullptr ? kNone : static_cast<int32_t>(static_cast<const char*>(found) - labels_.data());
}

int32_t Trie::Find(absl::string_view key) const {
  int32_t found = kNone;
  VisitPrefixes(key, [&](size_t size, int32_t value) {
    if (size == key.size()) found = value;
  });
  return found;
}

}  // namespace aqt::tokenizers
