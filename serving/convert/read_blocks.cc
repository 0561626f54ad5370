#include "serving/convert/read_blocks.h"

#include <algorithm>
#include <utility>

#include "aqt/core/status_macros.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/parallel.h"

namespace aqt::serving {

std::vector<uint8_t> BlockBuffers::Take(int64_t bytes) {
  std::vector<uint8_t> buffer;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      buffer = std::move(free_.back());
      free_.pop_back();
    }
  }
  buffer.resize(bytes);
  return buffer;
}

void BlockBuffers::Give(std::vector<uint8_t> buffer) {
  if (static_cast<int64_t>(buffer.capacity()) > kMaxBlock) return;  // too large to keep
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(buffer));
}

absl::Status ReadInBlocks(
    const io::TensorSource& input, const Plan& plan, const ConvertOptions& options,
    absl::FunctionRef<bool(const TensorPlan&)> selects,
    absl::FunctionRef<absl::Status(const TensorPlan& tensor, int64_t begin, absl::Span<const uint8_t> bytes)> f) {
  struct Block {
    const TensorPlan* tensor;
    int64_t begin, bytes;
  };
  std::vector<Block> blocks;
  for (const TensorPlan& tensor : plan.tensors) {
    if (!selects(tensor)) continue;
    for (int64_t begin = 0; begin < tensor.old_bytes; begin += kMaxBlock) {
      blocks.push_back({&tensor, begin, std::min(kMaxBlock, tensor.old_bytes - begin)});
    }
  }
  BlockBuffers buffers;
  return ParallelRun(
      static_cast<int64_t>(blocks.size()), {.threads = options.jobs, .memory_budget = kMemoryBudget},
      [&](int64_t i) { return blocks[i].bytes; },
      [&](int64_t i) -> absl::Status {
        AQT_RETURN_IF_ERROR(CheckCancelled(options.cancelled));
        const auto& [tensor, begin, bytes] = blocks[i];
        std::vector<uint8_t> buffer = buffers.Take(bytes);
        AQT_RETURN_IF_ERROR(input.Read(*tensor->input, begin, absl::MakeSpan(buffer)));
        AQT_RETURN_IF_ERROR(f(*tensor, begin, buffer));
        buffers.Give(std::move(buffer));
        return absl::OkStatus();
      });
}

}  // namespace aqt::serving
