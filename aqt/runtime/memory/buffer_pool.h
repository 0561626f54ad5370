#ifndef AQT_RUNTIME_MEMORY_BUFFER_POOL_H_
#define AQT_RUNTIME_MEMORY_BUFFER_POOL_H_

// Memory for outputs, reused after its last owner releases it. Internal.

#include <cstdint>
#include <memory>

namespace aqt::internal {

// Thread-safe. Its memory may outlive it.
class BufferPool {
 public:
  // Keeps at most this many bytes for reuse.
  explicit BufferPool(int64_t most_kept_bytes);

  // Uninitialised memory, aligned like an array's. Each call returns a new owner, so that code that watches an array's
  // owner sees when the array is gone.
  std::shared_ptr<void> Take(int64_t bytes);

 private:
  struct Kept;
  std::shared_ptr<Kept> kept_;
};

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_MEMORY_BUFFER_POOL_H_
