#ifndef AQT_STORED_PART_READER_H_
#define AQT_STORED_PART_READER_H_

// Reads parts of stored tensors: ranges of elements as floats, and columns of matrices.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::stored {

// A column of a matrix of 32-bit words.
struct WordColumn {
  const uint8_t* words = nullptr;     // one after the other, as many as the matrix has rows
  std::shared_ptr<const void> owner;  // keeps them in memory
};

// Thread-safe. Memory: 16 MiB, more only if several threads read different matrices by columns, or if a matrix has more
// than 65,536 rows.
class PartReader {
 public:
  // `source` must outlive this.
  explicit PartReader(const io::TensorSource& source) : source_(source) {}

  const io::TensorSource& source() const { return source_; }

  // The bytes [begin, begin + dst.size()) of a tensor.
  absl::Status Bytes(const io::TensorInfo& tensor, int64_t begin, absl::Span<uint8_t> dst) const {
    return source_.Read(tensor, begin, dst);
  }
  absl::StatusOr<std::vector<uint8_t>> Bytes(const io::TensorInfo& tensor, int64_t begin, int64_t n) const;
  // The elements [begin, begin + n) as f32; of F8_E8M0 and U8 as powers of two (E8M0) if `powers`. The dtype is F32,
  // BF16, F16, F8_E4M3, F8_E8M0, U8 or I8.
  absl::StatusOr<std::vector<float>> Floats(const io::TensorInfo& tensor, int64_t begin, int64_t n,
                                            bool powers = false) const;
  // The elements [begin, begin + n) of an I32 tensor.
  absl::StatusOr<std::vector<int32_t>> Ints(const io::TensorInfo& tensor, int64_t begin, int64_t n) const;

  // The bytes [begin, end) of each of the rows [first, first + rows) of a matrix whose rows have `row_bytes` bytes, one
  // after the other. The tensor is read in panels of rows x some columns, which are kept for the next call.
  absl::StatusOr<std::vector<uint8_t>> Columns(const io::TensorInfo& matrix, int64_t row_bytes, int64_t first,
                                               int64_t rows, int64_t begin, int64_t end) const;

  // Column `col` of a matrix [rows, cols] of I32, rows > 0. Its neighbours are read with it, and kept.
  absl::StatusOr<WordColumn> Column(const io::TensorInfo& matrix, int64_t col) const;

  // The columns [begin, end) of a matrix of floats, as f32 [rows, end - begin].
  absl::StatusOr<std::vector<float>> FloatColumns(const io::TensorInfo& matrix, int64_t begin, int64_t end) const;

 private:
  // Some columns of some rows.
  struct Key {
    int shard;
    int64_t begin;  // of the tensor
    int64_t first, rows, left, right;
    bool transposed;  // words, column by column
    bool operator==(const Key&) const = default;
    int64_t bytes() const { return rows * (right - left); }
  };
  struct Panel {
    std::mutex mutex;
    bool loaded = false;  // guarded by mutex, like the rest until it is true
    absl::Status status;
    std::unique_ptr<uint8_t[]> bytes;
  };
  // A panel that has been read.
  absl::StatusOr<std::shared_ptr<const Panel>> Load(const io::TensorInfo& matrix, int64_t row_bytes,
                                                    const Key& key) const;
  absl::Status ReadPanel(const io::TensorInfo& matrix, int64_t row_bytes, const Key& key, uint8_t* out) const;
  std::shared_ptr<Panel> FindPanel(const Key& key) const;

  const io::TensorSource& source_;
  mutable std::mutex mutex_;
  mutable std::list<std::pair<Key, std::shared_ptr<Panel>>> panels_;  // the latest first; guarded by mutex_
  mutable int64_t panel_bytes_ = 0;                                   // of panels_; guarded by mutex_
};

}  // namespace aqt::stored

#endif  // AQT_STORED_PART_READER_H_
