#ifndef AQT_RUNTIME_ARENA_POOL_H_
#define AQT_RUNTIME_ARENA_POOL_H_

// Memory of running calls that several Executables share: as many arenas as calls run at the same time, instead of one
// for each program.

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace aqt {

// Thread-safe.
class ArenaPool {
 public:
  struct Arena {
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
  };

  // An arena of at least this size: the smallest that is free and large enough; otherwise a new one, in place of the
  // largest free one.
  Arena Take(int64_t bytes);
  // Keeps the arena for a later call.
  void Give(Arena arena);

  // The size of the arenas that are free.
  int64_t free_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Arena> free_;  // guarded by mutex_; ascending sizes
};

}  // namespace aqt

#endif  // AQT_RUNTIME_ARENA_POOL_H_
