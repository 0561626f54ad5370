#include "aqt/stored/part_reader.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/weights/stored_values.h"

namespace aqt::stored {
namespace {

constexpr int64_t kPanelBytes = 1 << 20;
constexpr int64_t kMinPanelCols = 64;  // bytes
constexpr size_t kMaxPanels = 16;

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
  } else {
    panels_.emplace_front(key, std::make_shared<Panel>());
    if (panels_.size() > kMaxPanels) panels_.pop_back();
  }
  return panels_.front().second;
}

absl::StatusOr<std::vector<uint8_t>> PartReader::Columns(const io::TensorInfo& matrix, int64_t row_bytes, int64_t first,
                                                         int64_t rows, int64_t begin, int64_t end) const {
  std::vector<uint8_t> out(static_cast<size_t>(rows * (end - begin)));
  if (out.empty()) return out;
  const int64_t fit = std::max(kPanelBytes / rows / kMinPanelCols * kMinPanelCols, kMinPanelCols);
  const int64_t width = std::min(fit, row_bytes);
  for (int64_t panel = begin / width; panel * width < end; ++panel) {
    const int64_t left = panel * width, right = std::min(left + width, row_bytes);
    const std::shared_ptr<Panel> found = FindPanel({matrix.shard, matrix.begin, first, rows, panel});
    const std::lock_guard<std::mutex> lock(found->mutex);
    if (!found->loaded) {
      found->loaded = true;
      found->bytes.resize(static_cast<size_t>(rows * (right - left)));
      const bool whole = right - left == row_bytes;  // then the rows are adjacent
      const int64_t reads = whole ? 1 : rows, bytes = static_cast<int64_t>(found->bytes.size()) / reads;
      for (int64_t r = 0; r < reads && found->status.ok(); ++r) {
        found->status = source_.Read(matrix, (first + r) * row_bytes + left,
                                     absl::MakeSpan(found->bytes).subspan(r * bytes, bytes));
      }
    }
    AQT_RETURN_IF_ERROR(found->status);
    const int64_t from = std::max(begin, left), to = std::min(end, right);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(&out[r * (end - begin) + from - begin], &found->bytes[r * (right - left) + from - left], to - from);
    }
  }
  return out;
}

absl::StatusOr<std::vector<float>> PartReader::FloatColumns(const io::TensorInfo& matrix, int64_t begin,
                                                            int64_t end) const {
  const int64_t size = io::BitWidth(matrix.dtype) / 8;
  AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                       Columns(matrix, matrix.shape[1] * size, 0, matrix.shape[0], begin * size, end * size));
  return ToFloats(bytes, matrix.dtype, /*powers=*/false);
}

}  // namespace aqt::stored
