#ifndef AQT_IO_TENSORS_MEMORY_TENSOR_SOURCE_H_
#define AQT_IO_TENSORS_MEMORY_TENSOR_SOURCE_H_

// A TensorSource in memory, for tests.

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::io {

class MemoryTensorSource final : public TensorSource {
 public:
  // Arrays with distinct names and dtypes that files support, in one shard called `name`.
  MemoryTensorSource(std::string name, std::vector<std::pair<std::string, Array>> arrays, Metadata metadata = {});

  // The largest number of bytes requested by one ReadBytes.
  int64_t largest_read() const { return largest_read_; }

 private:
  absl::Status ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override;

  std::vector<Array> arrays_;  // indexed by a tensor's `begin`
  mutable std::atomic<int64_t> largest_read_ = 0;
};

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_MEMORY_TENSOR_SOURCE_H_
