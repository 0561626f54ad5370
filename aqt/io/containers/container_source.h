#ifndef AQT_IO_CONTAINERS_CONTAINER_SOURCE_H_
#define AQT_IO_CONTAINERS_CONTAINER_SOURCE_H_

// Private to this folder: the tensors of an opened file, whatever its format.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/io/archives/zip.h"
#include "aqt/io/containers/strided.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/tensor_spec.h"

namespace aqt::io {

// Where the elements of a tensor are.
struct StoredTensor {
  TensorSpec spec;
  std::shared_ptr<const RandomAccessFile> data;
  bool sequential = false;       // `data` can only be decoded from its beginning on
  int64_t begin = 0;             // the byte of element (0, 0, ..)
  std::vector<int64_t> strides;  // in elements, not negative; empty: row-major
  // For integers of fewer than 8 bits, one per byte: only these bits count. 0: all bits.
  int low_bits = 0;
  bool is_signed = false;
};

// Thread-safe. Memory: that of ContainerMemory. A tensor that is both sequential and not row-major is decoded into
// memory as a whole, one at a time.
class ContainerSource final : public TensorSource {
 public:
  static constexpr int64_t kMaxDecodedBytes = int64_t{256} << 20;
  // A tensor may repeat elements (a stride of 0), but not to more than this size.
  static constexpr int64_t kMaxRepeatedBytes = int64_t{1} << 30;

  // DataLoss, naming the tensor, if two tensors have the same name, or an element is outside its data; Unimplemented
  // for the limits above. Tensors that share elements are separate tensors.
  static absl::StatusOr<std::unique_ptr<ContainerSource>> Make(const RandomAccessFile& file,
                                                               std::vector<StoredTensor> tensors, Metadata metadata,
                                                               std::vector<std::string> warnings,
                                                               const ContainerMemory& memory);

 private:
  struct Entry {
    std::shared_ptr<const RandomAccessFile> data;
    int64_t begin = 0;
    StridedView view;  // empty extents and strides if row-major
    bool row_major = true;
    bool sequential = false;
    int low_bits = 0;
    bool is_signed = false;
    uint64_t owner = 0;  // in the cache, if not row-major
  };

  explicit ContainerSource(const ContainerMemory& memory) : memory_(memory) {}
  static absl::StatusOr<Entry> MakeEntry(const StoredTensor& tensor, int64_t bytes);
  absl::Status ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override;
  absl::Status ReadEntry(const Entry& entry, int64_t bytes, int64_t offset, absl::Span<uint8_t> dst) const;
  absl::StatusOr<std::shared_ptr<const RandomAccessFile>> Decoded(const Entry& entry) const;

  ContainerMemory memory_;
  std::vector<Entry> entries_;   // in the order of tensors()
  std::vector<int64_t> begins_;  // TensorInfo::begin of each
  mutable std::mutex mutex_;
  mutable const Entry* decoded_entry_ = nullptr;             // guarded by mutex_
  mutable std::shared_ptr<const RandomAccessFile> decoded_;  // guarded by mutex_
};

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_CONTAINER_SOURCE_H_
