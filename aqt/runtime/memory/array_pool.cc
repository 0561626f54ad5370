#include "aqt/runtime/memory/array_pool.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "aqt/core/array.h"

namespace aqt::internal {

struct ArrayPool::Kept {
  // Makes room for `bytes` more in use. Frees kept memory, the largest first, if the total would exceed the limit.
  void MakeRoom(int64_t bytes) {
    while (!by_bytes.empty() && used + kept + bytes > most) {
      const auto largest = std::prev(by_bytes.end());
      kept -= largest->first;
      largest->second.pop_back();
      if (largest->second.empty()) by_bytes.erase(largest);
    }
  }

  std::mutex mutex;
  // Guarded by mutex:
  std::map<int64_t, std::vector<std::shared_ptr<void>>> by_bytes;
  int64_t used = 0, kept = 0, most = 0;
};

ArrayPool::ArrayPool(int64_t most_bytes) : kept_(std::make_shared<Kept>()) { kept_->most = most_bytes; }

std::shared_ptr<void> ArrayPool::Take(int64_t bytes) {
  std::shared_ptr<void> memory;
  {
    const std::lock_guard<std::mutex> lock(kept_->mutex);
    if (const auto it = kept_->by_bytes.find(bytes); it != kept_->by_bytes.end()) {
      memory = std::move(it->second.back());
      it->second.pop_back();
      if (it->second.empty()) kept_->by_bytes.erase(it);
      kept_->kept -= bytes;
    } else {
      kept_->MakeRoom(bytes);
    }
    kept_->used += bytes;
  }
  if (memory == nullptr) {
    const UseMemorySource none(nullptr);
    memory = AllocateUninitialized(bytes);
  }
  void* const data = memory.get();
  return {data, [kept = std::weak_ptr<Kept>(kept_), memory = std::move(memory), bytes](void*) mutable {
            const std::shared_ptr<Kept> pool = kept.lock();
            if (pool == nullptr) return;
            const std::lock_guard<std::mutex> lock(pool->mutex);
            pool->used -= bytes;
            if (pool->used + pool->kept + bytes > pool->most) return;
            pool->kept += bytes;
            pool->by_bytes[bytes].push_back(std::move(memory));
          }};
}

int64_t ArrayPool::kept_bytes() const {
  const std::lock_guard<std::mutex> lock(kept_->mutex);
  return kept_->kept;
}

}  // namespace aqt::internal
