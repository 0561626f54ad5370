#ifndef AQT_RUNTIME_MEMORY_ARRAY_POOL_H_
#define AQT_RUNTIME_MEMORY_ARRAY_POOL_H_

// Memory for the arrays that operations make while they run as in Eval. Memory that is new to a process costs about as
// much as writing it again, so what is given back is kept for the next array of its size. Internal.

#include <cstdint>
#include <memory>

#include "aqt/core/memory_source.h"

namespace aqt::internal {

// Thread-safe. Its memory may outlive it.
class ArrayPool final : public MemorySource {
 public:
  // What is in use and what is kept together have at most this size, unless more is in use. So the pool makes the peak
  // of what is in use no higher.
  explicit ArrayPool(int64_t most_bytes);

  // Kept memory of this size, or new one.
  std::shared_ptr<void> Take(int64_t bytes) override;

  int64_t kept_bytes() const;

 private:
  struct Kept;
  std::shared_ptr<Kept> kept_;
};

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_MEMORY_ARRAY_POOL_H_
