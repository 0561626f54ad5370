#include "aqt/io/tensors/map_tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/io/tensors/tensor_spec.h"

namespace aqt::io {
namespace {

// Whether the memory begins and ends with the bytes of the tensor: `source` may have opened a file that another one
// has replaced.
bool HasEnds(const TensorSource& source, const TensorInfo& tensor, const uint8_t* memory) {
  std::vector<uint8_t> bytes(static_cast<size_t>(std::min<int64_t>(tensor.num_bytes(), 4096)));
  const int64_t last = tensor.num_bytes() - static_cast<int64_t>(bytes.size());
  for (const int64_t offset : {int64_t{0}, last}) {
    if (!source.Read(tensor, offset, absl::MakeSpan(bytes)).ok()) return false;
    if (std::memcmp(memory + offset, bytes.data(), bytes.size()) != 0) return false;
  }
  return true;
}

}  // namespace

std::optional<Array> MapTensor(const MappedFiles& files, const TensorSource& source, const TensorInfo& tensor) {
  const std::optional<DType> dtype = ToDType(tensor.dtype);
  if (!dtype.has_value() || *dtype == DType::kBool || tensor.value_bits != 0) return std::nullopt;
  const Aval aval = {*dtype, tensor.shape};
  const TensorSource::Shard& shard = source.shards()[tensor.shard];
  if (aval.num_bytes() == 0 || aval.num_bytes() != tensor.num_bytes()) return std::nullopt;
  if (!absl::EndsWith(shard.path, kSafetensorsSuffix)) return std::nullopt;
  // The tensors of a shard tile its data, which ends with the file.
  int64_t data_bytes = 0;
  for (const TensorInfo& other : source.tensors()) {
    if (other.shard == tensor.shard) data_bytes = std::max(data_bytes, other.end);
  }
  const absl::StatusOr<FileInfo> info = files.Stat(shard.path);
  if (!info.ok()) return std::nullopt;
  const int64_t offset = info->size - data_bytes + tensor.begin;
  if (offset % SizeOf(*dtype) != 0) return std::nullopt;
  std::shared_ptr<const void> memory = files.Map(shard.path, offset, tensor.num_bytes());
  if (memory == nullptr || !HasEnds(source, tensor, static_cast<const uint8_t*>(memory.get()))) return std::nullopt;
  return Array(aval, std::move(memory));
}

}  // namespace aqt::io
