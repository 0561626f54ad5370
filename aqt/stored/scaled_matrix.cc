#include "aqt/stored/scaled_matrix.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/weights/stored_values.h"

namespace aqt::stored {
namespace {

class Matrix final : public StoredWeight {
 public:
  Matrix(std::string name, Shape shape, ScaledMatrix matrix)
      : StoredWeight(std::move(name), std::move(shape), matrix.codes), m_(matrix) {
    if (m_.batch_rows == 0) m_.batch_rows = std::max<int64_t>(rows(), 1);
  }

  absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const override {
    std::vector<int32_t> index;
    if (m_.group_index != nullptr) {
      AQT_ASSIGN_OR_RETURN(index, GroupIndex(reader));
    }
    AQT_RETURN_IF_ERROR(DecodeCodes(reader, first, n, out));
    if (n == 0 || cols() == 0) return absl::OkStatus();
    // The scales of these rows are adjacent.
    const int64_t from = ScaleRow(first), count = ScaleRow(first + n - 1) - from + 1;
    AQT_ASSIGN_OR_RETURN(std::vector<float> scales,
                         reader.Floats(*m_.scales, from * m_.scale_cols, count * m_.scale_cols, m_.powers));
    AQT_RETURN_IF_ERROR(Combine(reader, scales));
    std::vector<float> zeros;
    if (m_.zeros != nullptr) {
      AQT_ASSIGN_OR_RETURN(zeros, Zeros(reader, from, count));
    }
    for (int64_t r = first; r < first + n; ++r) {
      const int64_t at = (ScaleRow(r) - from) * m_.scale_cols;
      ScaleRow(scales.data() + at, zeros.empty() ? nullptr : zeros.data() + at, index, out + (r - first) * cols());
    }
    return absl::OkStatus();
  }

 private:
  // The row of scales of a row.
  int64_t ScaleRow(int64_t r) const {
    return r / m_.batch_rows * m_.scale_rows_per_batch + r % m_.batch_rows / m_.unit_rows;
  }

  // One row, in place.
  void ScaleRow(const float* scales, const float* zeros, const std::vector<int32_t>& index, float* w) const {
    if (index.empty()) {
      stored_values::Scale(w, zeros, scales, cols(), 0, m_.unit_cols, w);
      return;
    }
    for (int64_t c = 0; c < cols(); ++c) {
      const int32_t g = index[c];
      stored_values::Scale(w + c, zeros == nullptr ? nullptr : zeros + g, scales + g, 1, 0, 1, w + c);
    }
  }

  absl::Status Combine(const PartReader& reader, std::vector<float>& scales) const {
    const io::TensorInfo* const other = m_.divisor != nullptr ? m_.divisor : m_.factor;
    if (other == nullptr) return absl::OkStatus();
    AQT_ASSIGN_OR_RETURN(const std::vector<float> value, reader.Floats(*other, 0, 1));
    const int64_t n = static_cast<int64_t>(scales.size());
    if (other == m_.divisor) stored_values::DivideScales(value[0], n, scales.data());
    else stored_values::MultiplyScales(value[0], n, scales.data());
    return absl::OkStatus();
  }

  // The zero points of the rows [first, first + n) of the scales.
  absl::StatusOr<std::vector<float>> Zeros(const PartReader& reader, int64_t first, int64_t n) const {
    const int64_t columns = m_.scale_cols;
    if (!m_.packed_zeros) return reader.Floats(*m_.zeros, first * columns, n * columns);
    // The words that hold these rows' bits, beginning with a whole number of fields: 32 of them, or a word's.
    const int64_t fields = m_.per_word > 0 ? m_.per_word : 32, begin = first / fields * fields;
    const int64_t word = stored_values::WordsFor(begin, m_.bits, m_.per_word);
    const int64_t end = stored_values::WordsFor(first + n, m_.bits, m_.per_word);
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> words,
                         reader.Bytes(*m_.zeros, word * columns * 4, (end - word) * columns * 4));
    const int half = 1 << (m_.bits - 1);
    std::vector<float> zeros(static_cast<size_t>(n * columns));
    for (int64_t c = 0; c < columns; ++c) {
      const stored_values::BitFields column{words.data() + c * 4, columns * 4, m_.bits, m_.per_word};
      for (int64_t r = 0; r < n; ++r) {
        zeros[r * columns + c] = static_cast<float>(static_cast<int>(column[first + r - begin]) - half);
      }
    }
    return zeros;
  }

  absl::StatusOr<std::vector<int32_t>> GroupIndex(const PartReader& reader) const {
    AQT_ASSIGN_OR_RETURN(std::vector<int32_t> index, reader.Ints(*m_.group_index, 0, cols()));
    // What the package writes for weights whose columns were not reordered.
    if (std::all_of(index.begin(), index.end(), [](int32_t g) { return g == -1; })) return std::vector<int32_t>();
    for (size_t c = 0; c < index.size(); ++c) {
      if (index[c] >= 0 && index[c] < m_.scale_cols) continue;
      return absl::DataLossError(absl::StrCat(Describe(reader.source(), *m_.group_index), ": element ", c, " is ",
                                              index[c], "; expected a group from 0 to ", m_.scale_cols - 1,
                                              "; download the checkpoint again"));
    }
    return index;
  }

  absl::Status DecodeCodes(const PartReader& reader, int64_t first, int64_t n, float* out) const {
    const int64_t row_bytes = rows() == 0 ? 0 : m_.codes->num_bytes() / rows();
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, reader.Bytes(*m_.codes, first * row_bytes, n * row_bytes));
    const int64_t size = static_cast<int64_t>(bytes.size());
    switch (m_.kind) {
      case CodeKind::kE2M1: stored_values::UnpackE2M1(bytes.data(), size, out); return absl::OkStatus();
      case CodeKind::kE2M3: stored_values::UnpackE2M3(bytes.data(), size, out); return absl::OkStatus();
      case CodeKind::kBits: {
        const int half = 1 << (m_.bits - 1);
        for (int64_t r = 0; r < n; ++r) {
          const stored_values::BitFields fields{bytes.data() + r * row_bytes, 4, m_.bits, m_.per_word};
          stored_values::UnpackBits(fields, cols(), half, out + r * cols());
        }
        return absl::OkStatus();
      }
      case CodeKind::kBytes: break;
    }
    if (m_.codes->dtype == io::FileDType::kF8E4M3) {
      stored_values::UnpackE4M3(bytes.data(), size, out);
      return absl::OkStatus();
    }
    const int limit = 1 << (m_.bits - 1);
    const auto* const values = reinterpret_cast<const int8_t*>(bytes.data());
    stored_values::UnpackBytes(values, size, out);
    const int64_t i = limit > 127 ? -1 : stored_values::FirstOutside(values, size, -limit, limit - 1);
    if (i < 0) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(Describe(reader.source(), *m_.codes), ": the value ", int{values[i]}, " at [", first + i / cols(),
                     ",", i % cols(), "] is outside [", -limit, ",", limit - 1, "], the range of ", m_.bits,
                     " bits; the file is damaged, or its ", "configuration states too few bits"));
  }

  ScaledMatrix m_;
};

}  // namespace

std::unique_ptr<StoredWeight> MakeScaledMatrix(std::string name, Shape shape, ScaledMatrix matrix) {
  return std::make_unique<Matrix>(std::move(name), std::move(shape), matrix);
}

}  // namespace aqt::stored
