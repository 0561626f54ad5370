#include "aqt/runtime/memory/buffer_pool.h"

#include <mutex>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "aqt/core/array.h"

namespace aqt::internal {

struct BufferPool::Kept {
  std::mutex mutex;
  // Guarded by mutex:
  absl::flat_hash_map<int64_t, std::vector<std::shared_ptr<void>>> by_bytes;
  int64_t bytes = 0, most_bytes = 0;
};

BufferPool::BufferPool(int64_t most_kept_bytes) : kept_(std::make_shared<Kept>()) {
  kept_->most_bytes = most_kept_bytes;
}

std::shared_ptr<void> BufferPool::Take(int64_t bytes) {
  std::shared_ptr<void> memory;
  {
    const std::lock_guard<std::mutex> lock(kept_->mutex);
    const auto it = kept_->by_bytes.find(bytes);
    if (it != kept_->by_bytes.end() && !it->second.empty()) {
      memory = std::move(it->second.back());
      it->second.pop_back();
      kept_->bytes -= bytes;
    }
  }
  if (memory == nullptr) memory = AllocateUninitialized(bytes);
  void* const data = memory.get();
  return {data, [kept = std::weak_ptr<Kept>(kept_), memory = std::move(memory), bytes](void*) mutable {
            const std::shared_ptr<Kept> pool = kept.lock();
            if (pool == nullptr) return;
            const std::lock_guard<std::mutex> lock(pool->mutex);
            if (pool->bytes + bytes > pool->most_bytes) return;
            pool->bytes += bytes;
            pool->by_bytes[bytes].push_back(std::move(memory));
          }};
}

}  // namespace aqt::internal
