#ifndef AQT_RUNTIME_MEMORY_ARRAY_POOL_H_
#define AQT_RUNTIME_MEMORY_ARRAY_POOL_H_

// Memory for the arrays that composites make which run as in Eval. Memory that is new to a process costs about as
// much as writing it again, so what is given back is kept for the next array of its size. Internal.

#include <cstdint>
#include <memory>

#include "aqt/core/memory_source.h"

namespace aqt::internal {

// Thread-safe. Its memory may outlive it.
class ArrayPool final : public MemorySource {
 public:
  // The bytes in use plus the bytes kept never exceed `most_bytes`, unless the bytes in use alone do. So the pool never
  // raises the peak.
  explicit ArrayPool(int64_t most_bytes);

  // Kept memory of this size, or new memory.
  std::shared_ptr<void> Take(int64_t bytes) override;

  int64_t kept_bytes() const;

 private:
  struct Kept;
  std::shared_ptr<Kept> kept_;
};

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_MEMORY_ARRAY_POOL_H_
