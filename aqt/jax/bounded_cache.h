#ifndef AQT_JAX_BOUNDED_CACHE_H_
#define AQT_JAX_BOUNDED_CACHE_H_

// A map from texts to immutable values that keeps the values that were used last. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"

namespace aqt::jax {

template <class Value>
class BoundedCache {
 public:
  using Shared = std::shared_ptr<const Value>;

  explicit BoundedCache(size_t capacity) : capacity_(capacity) {}

  // The value of `key`, made by `make` if there is none. Threads that miss at the same time each make one, and share
  // the first. Errors are not kept.
  absl::StatusOr<Shared> Get(absl::string_view key, absl::FunctionRef<absl::StatusOr<Value>()> make) {
    if (Shared found = Find(key); found != nullptr) return found;
    AQT_ASSIGN_OR_RETURN(Value value, make());
    auto made = std::make_shared<const Value>(std::move(value));
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = entries_.try_emplace(std::string(key), Entry{std::move(made), ++clock_});
    Shared result = entry->second.value;
    if (is_new && entries_.size() > capacity_) EraseOldest();
    return result;
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    Shared value;
    uint64_t used;  // when it was used last
  };

  Shared Find(absl::string_view key) {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return nullptr;
    entry->second.used = ++clock_;
    return entry->second.value;
  }

  // The caller holds mutex_.
  void EraseOldest() {
    auto oldest = entries_.begin();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->second.used < oldest->second.used) oldest = it;
    }
    entries_.erase(oldest);
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_;  // guarded by mutex_
  uint64_t clock_ = 0;                               // guarded by mutex_
};

}  // namespace aqt::jax

#endif  // AQT_JAX_BOUNDED_CACHE_H_
