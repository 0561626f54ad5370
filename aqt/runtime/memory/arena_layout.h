#ifndef AQT_RUNTIME_MEMORY_ARENA_LAYOUT_H_
#define AQT_RUNTIME_MEMORY_ARENA_LAYOUT_H_

// Offsets in one block of memory for buffers with disjoint lifetimes. Internal.

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace aqt::internal {

// Allocates the smallest free range that is large enough (the first of equal ones), and extends the block if there is
// none. Offsets and sizes are multiples of 64 bytes.
class ArenaLayout {
 public:
  static constexpr int64_t kAlignment = 64;

  int64_t Take(int64_t bytes);                // the offset; 0 bytes take nothing
  void Give(int64_t offset, int64_t bytes);   // with the `bytes` of its Take
  int64_t num_bytes() const { return end_; }  // size of the block

 private:
  void AddFree(int64_t offset, int64_t bytes);
  void RemoveFree(std::map<int64_t, int64_t>::iterator range);

  int64_t end_ = 0;
  std::map<int64_t, int64_t> free_;                 // offset -> bytes; no two touch
  std::set<std::pair<int64_t, int64_t>> by_bytes_;  // the same ranges as (bytes, offset)
};

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_MEMORY_ARENA_LAYOUT_H_
