#include "aqt/runtime/arena_pool.h"

#include <algorithm>
#include <utility>

#include "aqt/core/array.h"

namespace aqt {

ArenaPool::Arena ArenaPool::Take(int64_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = std::find_if(free_.begin(), free_.end(), [&](const Arena& arena) { return arena.bytes >= bytes; });
    if (it != free_.end()) {
      Arena arena = std::move(*it);
      free_.erase(it);
      return arena;
    }
    if (!free_.empty()) free_.pop_back();
  }
  return {AllocateUninitialized(bytes), bytes};
}

void ArenaPool::Give(Arena arena) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = std::find_if(free_.begin(), free_.end(), [&](const Arena& own) { return own.bytes >= arena.bytes; });
  free_.insert(at, std::move(arena));
}

int64_t ArenaPool::free_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const Arena& arena : free_) bytes += arena.bytes;
  return bytes;
}

}  // namespace aqt
