#include "aqt/stored/scaled_matrix.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/quantize/decode_integers.h"
#include "aqt/kernels/small_floats/decode_small_floats.h"
#include "aqt/quant/weights/stored_values.h"

namespace aqt::stored {
namespace {

// Elements of codes that are read at a time, at least a row.
constexpr int64_t kCodesAtOnce = 1 << 16;

class Matrix final : public StoredWeight {
 public:
  Matrix(std::string name, Shape shape, ScaledMatrix matrix, std::optional<Product> product)
      : StoredWeight(std::move(name), std::move(shape), matrix.codes), m_(matrix), product_(std::move(product)) {
    if (m_.batch_rows == 0) m_.batch_rows = std::max<int64_t>(rows(), 1);
  }

  absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const override {
    std::vector<int32_t> index;
    if (m_.group_index != nullptr) {
      AQT_ASSIGN_OR_RETURN(index, GroupIndex(reader));
    }
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> codes, reader.Bytes(*m_.codes, first * RowBytes(), n * RowBytes()));
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
    for (int64_t r = first; r < first + n; ++r, out += cols()) {
      const int64_t at = (ScaleRow(r) - from) * m_.scale_cols;
      AQT_RETURN_IF_ERROR(DecodeRow(reader, r, codes.data() + (r - first) * RowBytes(), scales.data() + at,
                                    zeros.empty() ? nullptr : zeros.data() + at, index, out));
    }
    return absl::OkStatus();
  }

  std::string WhyNoCodes() const override {
    if (!product_.has_value()) return StoredWeight::WhyNoCodes();
    if (m_.kind == CodeKind::kE2M1 || m_.kind == CodeKind::kE2M3) return "they are floats of 4 or 6 bits";
    if (m_.powers || m_.divisor != nullptr || m_.factor != nullptr) return "their scales are 8-bit floats";
    if (m_.zeros != nullptr) return "they have zero points";
    if (m_.group_index != nullptr) return "their columns are in another order";
    if (rows() == 0 || cols() == 0 || m_.batch_rows != rows()) return "they are not matrices";
    if (m_.scale_cols > 1 && cols() % m_.unit_cols != 0) return "their last group or block is smaller";
    return "";
  }

  absl::StatusOr<WeightCodes> ReadCodes(const PartReader& reader) const override {
    if (const std::string why = WhyNoCodes(); !why.empty()) return StoredWeight::ReadCodes(reader);
    WeightCodes codes;
    codes.bits = m_.bits;
    codes.input = product_->input;
    codes.input_unknown = product_->unknown;
    AQT_ASSIGN_OR_RETURN(codes.scales, ReadScales(reader));
    if (m_.codes->dtype == io::FileDType::kF8E4M3) {
      AQT_ASSIGN_OR_RETURN(codes.values, reader.source().ReadArray(*m_.codes));
      const auto* const bytes = static_cast<const uint8_t*>(codes.values.data());
      const uint8_t* const end = bytes + codes.values.num_bytes();
      const uint8_t* const nan = std::find_if(bytes, end, [](uint8_t code) { return (code & 0x7f) == 0x7f; });
      if (nan != end) return NotFinite(reader, *m_.codes, nan - bytes, cols());
    } else {
      AQT_ASSIGN_OR_RETURN(codes.values, ReadIntegers(reader));
    }
    if (product_->input_scale == nullptr || !product_->unknown.empty()) return codes;
    AQT_ASSIGN_OR_RETURN(const std::vector<float> scale, reader.Floats(*product_->input_scale, 0, 1));
    if (!std::isfinite(scale[0]) || scale[0] <= 0) {
      return absl::DataLossError(absl::StrCat(Describe(reader.source(), *product_->input_scale), " is ", scale[0],
                                              "; expected a positive scale; download the checkpoint again"));
    }
    codes.input_scale = scale[0];
    return codes;
  }

 private:
  static absl::Status NotFinite(const PartReader& reader, const io::TensorInfo& tensor, int64_t at, int64_t columns) {
    return absl::DataLossError(absl::StrCat(Describe(reader.source(), tensor), ": element [", at / columns, ",",
                                            at % columns, "] is a NaN or an infinity; the file is damaged"));
  }

  // One for each row and each column of scales.
  absl::StatusOr<Array> ReadScales(const PartReader& reader) const {
    const int64_t stored = ScaleRow(rows() - 1) + 1;
    AQT_ASSIGN_OR_RETURN(const std::vector<float> scales, reader.Floats(*m_.scales, 0, stored * m_.scale_cols));
    const auto bad = std::find_if(scales.begin(), scales.end(), [](float x) { return !std::isfinite(x); });
    if (bad != scales.end()) return NotFinite(reader, *m_.scales, bad - scales.begin(), m_.scale_cols);
    ArrayBuilder out = ArrayBuilder::ForOverwrite({DType::kF32, {rows(), m_.scale_cols}});
    float* to = out.Mutable<float>().data();
    for (int64_t r = 0; r < rows(); ++r, to += m_.scale_cols) {
      std::copy_n(scales.data() + ScaleRow(r) * m_.scale_cols, m_.scale_cols, to);
    }
    return std::move(out).Build();
  }

  absl::StatusOr<Array> ReadIntegers(const PartReader& reader) const {
    ArrayBuilder out = ArrayBuilder::ForOverwrite({DType::kS8, {rows(), cols()}});
    int8_t* to = out.Mutable<int8_t>().data();
    const int64_t at_once = std::max<int64_t>(1, kCodesAtOnce / cols());
    std::vector<float> values(static_cast<size_t>(cols()));
    const std::vector<float> ones(static_cast<size_t>(m_.scale_cols), 1.0f);
    for (int64_t first = 0; first < rows(); first += at_once) {
      const int64_t n = std::min(at_once, rows() - first);
      AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> codes,
                           reader.Bytes(*m_.codes, first * RowBytes(), n * RowBytes()));
      for (int64_t r = 0; r < n; ++r) {
        AQT_RETURN_IF_ERROR(
            DecodeRow(reader, first + r, codes.data() + r * RowBytes(), ones.data(), nullptr, {}, values.data()));
        to = std::transform(values.begin(), values.end(), to, [](float value) { return static_cast<int8_t>(value); });
      }
    }
    return std::move(out).Build();
  }

  // The row of scales of a row.
  int64_t ScaleRow(int64_t r) const {
    return r / m_.batch_rows * m_.scale_rows_per_batch + r % m_.batch_rows / m_.unit_rows;
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

  int64_t RowBytes() const { return rows() == 0 ? 0 : m_.codes->num_bytes() / rows(); }

  // Null for integers.
  std::optional<kernels::SmallFloat> SmallFloatType() const {
    if (m_.kind == CodeKind::kE2M1) return kernels::SmallFloat::kE2M1;
    if (m_.kind == CodeKind::kE2M3) return kernels::SmallFloat::kE2M3;
    if (m_.codes->dtype == io::FileDType::kF8E4M3) return kernels::SmallFloat::kE4M3;
    return std::nullopt;
  }

  // The values of a row. `zeros` may be null, `index` empty.
  absl::Status DecodeRow(const PartReader& reader, int64_t row, const uint8_t* codes, const float* scales,
                         const float* zeros, const std::vector<int32_t>& index, float* out) const {
    if (const std::optional<kernels::SmallFloat> type = SmallFloatType(); type.has_value()) {
      const bool fused = zeros == nullptr && index.empty();
      constexpr float kOne = 1;
      kernels::DecodeSmallFloats({.q = codes,
                                  .type = *type,
                                  .n = cols(),
                                  .group = fused ? m_.unit_cols : cols(),
                                  .scale = fused ? scales : &kOne,
                                  .x = out});
      if (!fused) Scale(scales, zeros, index, out);
      return absl::OkStatus();
    }
    kernels::DecodeIntegersArgs args;
    args.q = codes;
    args.bits = m_.bits;
    args.n = cols();
    args.group = m_.unit_cols;
    args.group_of = index.empty() ? nullptr : index.data();
    args.zero = zeros;
    args.scale = scales;
    args.x = out;
    if (m_.kind == CodeKind::kBits) {
      const int half = 1 << (m_.bits - 1);
      if (m_.per_word > 0 && m_.per_word * m_.bits != 32) {  // words with unused bits
        stored_values::UnpackBits({codes, 4, m_.bits, m_.per_word}, cols(), half, out);
        Scale(scales, zeros, index, out);
        return absl::OkStatus();
      }
      args.layout = kernels::CodeLayout::kFields;
      args.bias = half;
    } else if (m_.bits < 8) {
      AQT_RETURN_IF_ERROR(CheckRange(reader, row, reinterpret_cast<const int8_t*>(codes)));
    }
    kernels::DecodeIntegers(args);
    return absl::OkStatus();
  }

  // Scales a row in place.
  void Scale(const float* scales, const float* zeros, const std::vector<int32_t>& index, float* w) const {
    if (index.empty()) {
      stored_values::Scale(w, zeros, scales, cols(), 0, m_.unit_cols, w);
      return;
    }
    for (int64_t c = 0; c < cols(); ++c) {
      const int32_t g = index[c];
      stored_values::Scale(w + c, zeros == nullptr ? nullptr : zeros + g, scales + g, 1, 0, 1, w + c);
    }
  }

  absl::Status CheckRange(const PartReader& reader, int64_t row, const int8_t* values) const {
    const int limit = 1 << (m_.bits - 1);
    const int64_t c = stored_values::FirstOutside(values, cols(), -limit, limit - 1);
    if (c < 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(Describe(reader.source(), *m_.codes), ": the value ", int{values[c]},
                                            " at [", row, ",", c, "] is outside [", -limit, ",", limit - 1,
                                            "], the range of ", m_.bits, " bits; the file is damaged, or its ",
                                            "configuration states too few bits"));
  }

  ScaledMatrix m_;
  std::optional<Product> product_;
};

}  // namespace

std::unique_ptr<StoredWeight> MakeScaledMatrix(std::string name, Shape shape, ScaledMatrix matrix,
                                               std::optional<Product> product) {
  return std::make_unique<Matrix>(std::move(name), std::move(shape), matrix, std::move(product));
}

}  // namespace aqt::stored
