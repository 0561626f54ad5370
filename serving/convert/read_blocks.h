#ifndef AQT_SERVING_CONVERT_BLOCK_BUFFERS_H_
#define AQT_SERVING_CONVERT_BLOCK_BUFFERS_H_

// The memory of the blocks in which weights are read.

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace aqt::serving {

// The usual size of a block; one with a row that is longer is larger.
inline constexpr int64_t kMaxBlock = 1 << 20;
// Of the blocks of all threads, and what they become.
inline constexpr int64_t kMemoryBudget = 16 << 20;

// Memory for one block per thread, kept from task to task.
class BlockBuffers {
 public:
  std::vector<uint8_t> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return {};
    std::vector<uint8_t> buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  void Give(std::vector<uint8_t> buffer) {
    if (static_cast<int64_t>(buffer.capacity()) > kMaxBlock) return;  // too large to keep
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<std::vector<uint8_t>> free_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_BLOCK_BUFFERS_H_
