#ifndef AQT_CORE_MEMORY_SOURCE_H_
#define AQT_CORE_MEMORY_SOURCE_H_

// Where a thread gets the memory of large arrays, instead of operator new. Values never depend on it.

#include <cstdint>
#include <memory>

namespace aqt {

// An allocator for large arrays.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Returns uninitialized memory of at least this size, aligned to 64 bytes. Throws std::bad_alloc if memory runs out.
  virtual std::shared_ptr<void> Take(int64_t bytes) = 0;
};

// Below this size operator new is as fast.
inline constexpr int64_t kMinSourceBytes = 256 << 10;

// While this object exists, AllocateUninitialized and AllocateAligned (array.h) on this thread take blocks of at least
// kMinSourceBytes from `source`, or from operator new if it is null. Scopes may nest.
class UseMemorySource {
 public:
  explicit UseMemorySource(MemorySource* source);
  ~UseMemorySource();
  UseMemorySource(const UseMemorySource&) = delete;
  UseMemorySource& operator=(const UseMemorySource&) = delete;

  // The source of this thread, or null.
  static MemorySource* Current();

 private:
  MemorySource* const before_;
};

}  // namespace aqt

#endif  // AQT_CORE_MEMORY_SOURCE_H_
