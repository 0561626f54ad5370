// MXFP4 as in gpt-oss. For a weight X of E experts
//   X_blocks U8 [E, out, in / 32, 16]: two E2M1 codes per byte, low nibble first; X_scales U8 [E, out, in / 32] (E8M0)
//   X[e][k][n] = e2m1 * 2^(scale - 127): the float weight is transposed, [E, in, out], unless it is asked for as stored

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/small_floats/decode_small_floats.h"
#include "aqt/quant/weights/stored_values.h"
#include "aqt/stored/stored_format.h"

namespace aqt::stored {
namespace {

using io::FileDType;

constexpr absl::string_view kSuffixes[] = {"_blocks", "_scales"};
constexpr int64_t kBlockBytes = 16;
constexpr int64_t kBlockValues = 32;

class Experts final : public StoredWeight {
 public:
  Experts(std::string name, const io::TensorInfo* blocks, const io::TensorInfo* scales)
      : StoredWeight(std::move(name), {blocks->shape[0], blocks->shape[2] * kBlockValues, blocks->shape[1]}, blocks),
        blocks_(blocks),
        scales_(scales) {}

  absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const override {
    const int64_t in = shape()[1];
    for (int64_t row = first; row < first + n;) {  // the rows of one expert and one block of inputs
      const int64_t expert = row / in, k = row % in, block = k / kBlockValues;
      const int64_t end = std::min({first + n, expert * in + (block + 1) * kBlockValues});
      AQT_RETURN_IF_ERROR(
          DecodeBlock(reader, expert, block, k % kBlockValues, end - row, out + (row - first) * cols()));
      row = end;
    }
    return absl::OkStatus();
  }

 private:
  // `n` rows of a block of inputs, the first of which is `begin` within it.
  absl::Status DecodeBlock(const PartReader& reader, int64_t expert, int64_t block, int64_t begin, int64_t n,
                           float* out) const {
    const int64_t outputs = cols(), blocks = blocks_->shape[2], row = expert * outputs;
    AQT_ASSIGN_OR_RETURN(
        const std::vector<uint8_t> codes,
        reader.Columns(*blocks_, blocks * kBlockBytes, row, outputs, block * kBlockBytes, (block + 1) * kBlockBytes));
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> powers,
                         reader.Columns(*scales_, blocks, row, outputs, block, block + 1));
    for (int64_t c = 0; c < outputs; ++c) {
      float scaled[kBlockValues];
      const float scale = stored_values::E8M0(powers[c]);
      kernels::DecodeSmallFloats({.q = &codes[c * kBlockBytes], .n = kBlockValues, .scale = &scale, .x = scaled});
      for (int64_t r = 0; r < n; ++r) out[r * outputs + c] = scaled[begin + r];
    }
    return absl::OkStatus();
  }

  const io::TensorInfo* blocks_;
  const io::TensorInfo* scales_;
};

// The same, [E, out, in].
class ExpertsAsStored final : public StoredWeight {
 public:
  ExpertsAsStored(std::string name, const io::TensorInfo* blocks, const io::TensorInfo* scales)
      : StoredWeight(std::move(name), {blocks->shape[0], blocks->shape[1], blocks->shape[2] * kBlockValues}, blocks),
        scales_(scales) {}

  absl::Status DecodeRows(const PartReader& reader, int64_t first, int64_t n, float* out) const override {
    const int64_t blocks = main().shape[2], begin = first * blocks, count = n * blocks;
    AQT_ASSIGN_OR_RETURN(const std::vector<uint8_t> codes,
                         reader.Bytes(main(), begin * kBlockBytes, count * kBlockBytes));
    AQT_ASSIGN_OR_RETURN(const std::vector<float> scales, reader.Floats(*scales_, begin, count, /*powers=*/true));
    kernels::DecodeSmallFloats({.q = codes.data(), .n = count * kBlockValues, .scale = scales.data(), .x = out});
    return absl::OkStatus();
  }

 private:
  const io::TensorInfo* scales_;
};

class Format final : public StoredFormat {
 public:
  absl::string_view name() const override { return "mxfp4"; }
  bool IsMethod(absl::string_view method) const override { return method == "mxfp4"; }
  bool IsShownBy(const io::TensorSource& source) const override {
    for (const io::TensorInfo& tensor : source.tensors()) {
      const absl::string_view stem = StemOf(tensor.name, "_blocks");
      if (!stem.empty() && tensor.dtype == FileDType::kU8 && source.Find(absl::StrCat(stem, "_scales")) != nullptr) {
        return true;
      }
    }
    return false;
  }
  absl::Span<const absl::string_view> PartSuffixes() const override { return kSuffixes; }

  absl::StatusOr<StoredWeights> Find(const PartReader& reader, const StoredConfig& config) const override {
    const io::TensorSource& source = reader.source();
    StoredWeights found;
    for (const io::TensorInfo& tensor : source.tensors()) {
      const std::string weight(StemOf(tensor.name, "_blocks"));
      if (weight.empty()) continue;
      Parts parts(source, weight);
      AQT_ASSIGN_OR_RETURN(const io::TensorInfo* const blocks, parts.Need(tensor.name));
      AQT_RETURN_IF_ERROR(parts.CheckDType(*blocks, {FileDType::kU8}));
      const Shape& shape = blocks->shape;
      if (shape.rank() != 4 || shape[3] != kBlockBytes) {
        return parts.Wrong(*blocks, "the shape [experts, out, in / 32, 16]");
      }
      AQT_ASSIGN_OR_RETURN(
          const io::TensorInfo* const scales,
          parts.Need(weight + "_scales", {FileDType::kU8, FileDType::kF8E8M0}, {Shape{shape[0], shape[1], shape[2]}}));
      if (config.experts_out_in) found.Add(std::make_unique<ExpertsAsStored>(weight, blocks, scales), parts);
      else found.Add(std::make_unique<Experts>(weight, blocks, scales), parts);
    }
    return found;
  }
};

}  // namespace

const StoredFormat& GptOss() {
  static const auto* const format = new Format();
  return *format;
}

}  // namespace aqt::stored
