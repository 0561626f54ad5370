#ifndef AQT_IO_ARCHIVES_BLOCK_CACHE_H_
#define AQT_IO_ARCHIVES_BLOCK_CACHE_H_

// Private to this folder: blocks of data that are expensive to make, kept for the next reader. Threads that read a
// tensor together ask for its parts almost in order; each part is made once.

#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace aqt::io {

// Thread-safe; one block is made at a time. Holds at most kMaxBlocks blocks, so a file and all its shards share one.
class BlockCache {
 public:
  static constexpr int64_t kBlockBytes = int64_t{1} << 20;
  static constexpr size_t kMaxBlocks = 12;

  // Writes the bytes from `begin` on into the block.
  using Make = std::function<absl::Status(int64_t begin, absl::Span<uint8_t> block)>;

  // A number for data that is to be cached, different from all others.
  uint64_t NewOwner();

  // Fills `dst` with the bytes from `offset` on of the owner's data, which has `size` bytes; all are inside.
  absl::Status Read(uint64_t owner, int64_t size, int64_t offset, absl::Span<uint8_t> dst, const Make& make);

 private:
  struct Block {
    uint64_t owner = 0;
    int64_t begin = 0;
    std::vector<uint8_t> bytes;
  };
  // The block that begins there; valid until the next call. With mutex_ held.
  absl::StatusOr<const Block*> Find(uint64_t owner, int64_t size, int64_t begin, const Make& make);

  std::mutex mutex_;
  uint64_t owners_ = 0;      // guarded by mutex_
  std::list<Block> blocks_;  // the latest first; guarded by mutex_
};

}  // namespace aqt::io

#endif  // AQT_IO_ARCHIVES_BLOCK_CACHE_H_
