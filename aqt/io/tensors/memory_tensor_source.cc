#include "aqt/io/tensors/memory_tensor_source.h"

#include <cstring>

namespace aqt::io {

MemoryTensorSource::MemoryTensorSource(std::string name, std::vector<std::pair<std::string, Array>> arrays,
                                       Metadata metadata) {
  std::vector<TensorInfo> tensors;
  for (auto& [tensor, array] : arrays) {
    TensorInfo info;
    info.name = tensor;
    info.dtype = *ToFileDType(array.dtype());
    info.shape = array.shape();
    info.begin = static_cast<int64_t>(arrays_.size());
    info.end = info.begin + array.num_bytes();
    tensors.push_back(std::move(info));
    arrays_.push_back(std::move(array));
  }
  SetContents(name, {{name, name, std::move(metadata)}}, std::move(tensors));
}

absl::Status MemoryTensorSource::ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  const int64_t bytes = static_cast<int64_t>(dst.size());
  int64_t largest = largest_read_;
  while (bytes > largest && !largest_read_.compare_exchange_weak(largest, bytes)) {
  }
  std::memcpy(dst.data(), static_cast<const uint8_t*>(arrays_[tensor.begin].data()) + offset, dst.size());
  return absl::OkStatus();
}

}  // namespace aqt::io
