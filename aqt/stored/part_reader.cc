#include "aqt/stored/part_reader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/quantize/decode_integers.h"
#include "aqt/quant/weights/stored_values.h"

namespace aqt::stored {
namespace {

constexpr int64_t kPanelBytes = 4 << 20;
constexpr int64_t kMinPanelCols = 64;  // bytes
constexpr int64_t kBytesOfPanels = 16 << 20;
// Bytes that are read at a time for a panel of columns.
constexpr int64_t kReadBytes = 256 << 10;

// The range of bytes of a row that one panel has, and `at` is in.
std::pair<int64_t, int64_t> PanelAt(int64_t rows, int64_t row_bytes, int64_t at) {
  const int64_t width = std::max(kPanelBytes / rows / kMinPanelCols * kMinPanelCols, kMinPanelCols);
  const int64_t left = at / width * width;
  return {left, std::min(left + width, row_bytes)};
}

template <class T>
void Widen(const std::vector<uint8_t>& bytes, std::vector<float>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    if constexpr (std::is_integral_v<T>) out[i] = static_cast<float>(value);
    else out[i] = ToFloat(value);
  }
}

// The elements of a dtype of PartReader::Floats.
std::vector<float> ToFloats(const std::vector<uint8_t>& bytes, io::FileDType dtype, bool powers) {
  std::vector<float> out(bytes.size() * 8 / io::BitWidth(dtype));
  const auto as_powers = [&] { std::transform(bytes.begin(), bytes.end(), out.begin(), stored_values::E8M0); };
  switch (dtype) {
    case io::FileDType::kF32: Widen<float>(bytes, out); break;
    case io::FileDType::kBF16: Widen<BFloat16>(bytes, out); break;
    case io::FileDType::kF16: Widen<Float16>(bytes, out); break;
    case io::FileDType::kF8E4M3: stored_values::UnpackE4M3(bytes.data(), out.size(), out.data()); break;
    case io::FileDType::kI8: Widen<int8_t>(bytes, out); break;
    case io::FileDType::kF8E8M0: as_powers(); break;
    case io::FileDType::kU8:
      if (powers) as_powers();
      else Widen<uint8_t>(bytes, out);
      break;
    default: AQT_CHECK(false);
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> PartReader::Bytes(const io::TensorInfo& tensor, int64_t begin, int64_t n) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(n));
  AQT_RETURN_IF_ERROR(source_.Read(tensor, begin, absl::MakeSpan(bytes)));
  return bytes;
}

absl::StatusOr<std::vector<float>> PartReader::Floats(const io::TensorInfo& tensor, int64_t begin, int64_t n,
                                                      bool powers) const {
  const int64_t size = io::BitWidth(tensor.dtype) / 8;
  AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, Bytes(tensor, begin * size, n * size));
  return ToFloats(bytes, tensor.dtype, powers);
}

absl::StatusOr<std::vector<int32_t>> PartReader::Ints(const io::TensorInfo& tensor, int64_t begin, int64_t n) const {
  AQT_CHECK(tensor.dtype == io::FileDType::kI32);
  std::vector<int32_t> out(static_cast<size_t>(n));
  AQT_RETURN_IF_ERROR(
      source_.Read(tensor, begin * 4, absl::MakeSpan(reinterpret_cast<uint8_t*>(out.data()), out.size() * 4)));
  return out;
}

std::shared_ptr<PartReader::Panel> PartReader::FindPanel(const Key& key) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found =
      std::find_if(panels_.begin(), panels_.end(), [&](const auto& entry) { return entry.first == key; });
  if (found != panels_.end()) {
    panels_.splice(panels_.begin(), panels_, found);
    return panels_.front().second;
  }
  panels_.emplace_front(key, std::make_shared<Panel>());
  panel_bytes_ += key.bytes();
  while (panel_bytes_ > kBytesOfPanels && panels_.size() > 1) {
    panel_bytes_ -= panels_.back().first.bytes();
    panels_.pop_back();
  }
  return panels_.front().second;
}

absl::Status PartReader::ReadPanel(const io::TensorInfo& matrix, int64_t row_bytes, const Key& key,
                                   uint8_t* out) const {
  const int64_t width = key.right - key.left;
  const auto read = [&](int64_t row, int64_t rows, uint8_t* to) -> absl::Status {
    const bool whole = width == row_bytes;  // then the rows are adjacent
    const int64_t reads = whole ? 1 : rows, bytes = rows * width / reads;
    for (int64_t r = 0; r < reads; ++r) {
      AQT_RETURN_IF_ERROR(source_.Read(matrix, (key.first + row + r) * row_bytes + key.left,
                                       absl::MakeSpan(to + r * bytes, static_cast<size_t>(bytes))));
    }
    return absl::OkStatus();
  };
  if (!key.transposed) return read(0, key.rows, out);
  const int64_t at_once = std::min(std::max<int64_t>(1, kReadBytes / width), key.rows), words = width / 4;
  const auto part = std::make_unique_for_overwrite<uint32_t[]>(at_once * words);
  for (int64_t row = 0; row < key.rows; row += at_once) {
    const int64_t n = std::min(at_once, key.rows - row);
    AQT_RETURN_IF_ERROR(read(row, n, reinterpret_cast<uint8_t*>(part.get())));
    kernels::TransposeWords(part.get(), n, words, words, reinterpret_cast<uint32_t*>(out) + row, key.rows);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const PartReader::Panel>> PartReader::Load(const io::TensorInfo& matrix,
                                                                          int64_t row_bytes, const Key& key) const {
  std::shared_ptr<Panel> panel = FindPanel(key);
  const std::lock_guard<std::mutex> lock(panel->mutex);
  if (!panel->loaded) {
    panel->loaded = true;
    panel->bytes = std::make_unique_for_overwrite<uint8_t[]>(key.bytes());
    panel->status = ReadPanel(matrix, row_bytes, key, panel->bytes.get());
  }
  AQT_RETURN_IF_ERROR(panel->status);
  return panel;
}

absl::StatusOr<std::vector<uint8_t>> PartReader::Columns(const io::TensorInfo& matrix, int64_t row_bytes, int64_t first,
                                                         int64_t rows, int64_t begin, int64_t end) const {
  std::vector<uint8_t> out(static_cast<size_t>(rows * (end - begin)));
  if (out.empty()) return out;
  for (int64_t at = begin; at < end;) {
    const auto [left, right] = PanelAt(rows, row_bytes, at);
    AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const Panel> panel,
                         Load(matrix, row_bytes, {matrix.shard, matrix.begin, first, rows, left, right, false}));
    const int64_t to = std::min(end, right);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(&out[r * (end - begin) + at - begin], &panel->bytes[r * (right - left) + at - left], to - at);
    }
    at = to;
  }
  return out;
}

absl::StatusOr<WordColumn> PartReader::Column(const io::TensorInfo& matrix, int64_t col) const {
  const int64_t rows = matrix.shape[0], row_bytes = matrix.shape[1] * 4;
  AQT_CHECK(matrix.dtype == io::FileDType::kI32 && rows > 0);
  const auto [left, right] = PanelAt(rows, row_bytes, col * 4);
  AQT_ASSIGN_OR_RETURN(std::shared_ptr<const Panel> panel,
                       Load(matrix, row_bytes, {matrix.shard, matrix.begin, 0, rows, left, right, true}));
  const uint8_t* const words = panel->bytes.get() + (col * 4 - left) * rows;
  return WordColumn{words, std::move(panel)};
}

absl::StatusOr<std::vector<float>> PartReader::FloatColumns(const io::TensorInfo& matrix, int64_t begin,
                                                            int64_t end) const {
  const int64_t size = io::BitWidth(matrix.dtype) / 8;
  AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                       Columns(matrix, matrix.shape[1] * size, 0, matrix.shape[0], begin * size, end * size));
  return ToFloats(bytes, matrix.dtype, /*powers=*/false);
}

}  // namespace aqt::stored
