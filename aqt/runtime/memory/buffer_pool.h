#ifndef AQT_RUNTIME_MEMORY_BUFFER_POOL_H_
#define AQT_RUNTIME_MEMORY_BUFFER_POOL_H_

// Memory for outputs that comes back when nobody holds it any longer. Internal.

#include <cstdint>
#include <memory>

namespace aqt::internal {

// Thread-safe. Its memory may outlive it.
class BufferPool {
 public:
  // Keeps at most this much for later.
  explicit BufferPool(int64_t most_kept_bytes);

  // Uninitialised memory, aligned like an array's. Each time it has a new owner, so that whoever watches the owner of
  // an array sees that it is gone.
  std::shared_ptr<void> Take(int64_t bytes);

 private:
  struct Kept;
  std::shared_ptr<Kept> kept_;
};

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_MEMORY_BUFFER_POOL_H_
