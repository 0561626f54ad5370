#ifndef AQT_SERVING_CONVERT_READ_BLOCKS_H_
#define AQT_SERVING_CONVERT_READ_BLOCKS_H_

// Tensors read in blocks, by several threads.

#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/io/tensors/tensor_source.h"
#include "serving/convert/convert.h"
#include "serving/plan/plan.h"

namespace aqt::serving {

// The usual size of a block; one with a row that is longer is larger.
inline constexpr int64_t kMaxBlock = 1 << 20;
// Bytes that the blocks of all threads and their results take together.
inline constexpr int64_t kMemoryBudget = 16 << 20;

// Memory for one block per thread, kept from task to task.
class BlockBuffers {
 public:
  // Any content.
  std::vector<uint8_t> Take(int64_t bytes);
  void Give(std::vector<uint8_t> buffer);

 private:
  std::mutex mutex_;
  std::vector<std::vector<uint8_t>> free_;
};

// Calls f(tensor, begin, bytes) for the blocks of the tensors that `selects`, in any order, on options.jobs threads:
// `bytes` are the tensor's from `begin` on. The first error ends it, and so does options.cancelled.
absl::Status ReadInBlocks(
    const io::TensorSource& input, const Plan& plan, const ConvertOptions& options,
    absl::FunctionRef<bool(const TensorPlan&)> selects,
    absl::FunctionRef<absl::Status(const TensorPlan& tensor, int64_t begin, absl::Span<const uint8_t> bytes)> f);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_READ_BLOCKS_H_
