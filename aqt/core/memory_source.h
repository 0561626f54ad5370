#ifndef AQT_CORE_MEMORY_SOURCE_H_
#define AQT_CORE_MEMORY_SOURCE_H_

// Where a thread takes the memory of large arrays from, if not from operator new. Values never depend on it.

#include <cstdint>
#include <memory>

namespace aqt {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Uninitialised memory of at least this size, aligned to 64 bytes. Throws std::bad_alloc if there is not enough.
  virtual std::shared_ptr<void> Take(int64_t bytes) = 0;
};

// Smaller blocks are as fast from operator new.
inline constexpr int64_t kMinSourceBytes = 256 << 10;

// While it lives, AllocateUninitialized and AllocateAligned (array.h) of this thread take blocks of kMinSourceBytes or
// more from the source; null: from operator new. They may be nested.
class UseMemorySource {
 public:
  explicit UseMemorySource(MemorySource* source);
  ~UseMemorySource();
  UseMemorySource(const UseMemorySource&) = delete;
  UseMemorySource& operator=(const UseMemorySource&) = delete;

  // The source of this thread; null if there is none.
  static MemorySource* Current();

 private:
  MemorySource* const before_;
};

}  // namespace aqt

#endif  // AQT_CORE_MEMORY_SOURCE_H_
