#include "aqt/runtime/memory/arena_layout.h"

#include <iterator>

#include "aqt/core/ceil_div.h"

namespace aqt::internal {

void ArenaLayout::AddFree(int64_t offset, int64_t bytes) {
  free_.emplace(offset, bytes);
  by_bytes_.emplace(bytes, offset);
}

void ArenaLayout::RemoveFree(std::map<int64_t, int64_t>::iterator range) {
  by_bytes_.erase({range->second, range->first});
  free_.erase(range);
}

int64_t ArenaLayout::Take(int64_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  if (bytes == 0) return 0;
  const auto fit = by_bytes_.lower_bound({bytes, 0});
  if (fit != by_bytes_.end()) {
    const auto [size, offset] = *fit;
    RemoveFree(free_.find(offset));
    if (size > bytes) AddFree(offset + bytes, size - bytes);
    return offset;
  }
  int64_t offset = end_;
  if (!free_.empty() && std::prev(free_.end())->first + std::prev(free_.end())->second == end_) {
    offset = std::prev(free_.end())->first;  // a free range at the end is extended
    RemoveFree(std::prev(free_.end()));
  }
  end_ = offset + bytes;
  return offset;
}

void ArenaLayout::Give(int64_t offset, int64_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  if (bytes == 0) return;
  auto next = free_.upper_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    const auto joined = next++;
    RemoveFree(joined);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      RemoveFree(before);
    }
  }
  AddFree(offset, bytes);
}

}  // namespace aqt::internal
