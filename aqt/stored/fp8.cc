// 8-bit floats with float scales, as DeepSeek, Qwen and transformers store them. For a weight W of F8_E4M3 [..., o, i]
//   W_scale_inv or W_scale, or M.scale where W is M.weight: F32, BF16, F16 or F8_E8M0; a factor despite the first name
//     [] or [1]                                  one scale, without `weight_block_size`
//     [o] or [o, 1]                              one per row
//     [..., ceil(o / rows), ceil(i / columns)]   one per block of `weight_block_size` = [rows, columns]
//   w = f32(e4m3) * f32(scale)

#include <algorithm>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/stored/scaled_matrix.h"
#include "aqt/stored/stored_format.h"

namespace aqt::stored {
namespace {

using io::FileDType;

constexpr absl::string_view kSuffixes[] = {"_scale_inv", ".weight_scale", ".activation_scale", ".input_scale",
                                           ".input_scale_ub"};
constexpr FileDType kScales[] = {FileDType::kF32, FileDType::kBF16, FileDType::kF16, FileDType::kF8E8M0};

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// The scale of a weight; DataLoss if it has none, or several.
absl::StatusOr<const io::TensorInfo*> FindScale(const io::TensorSource& source, const std::string& weight,
                                                Parts& parts) {
  std::vector<std::string> names = {weight + "_scale_inv", weight + "_scale"};
  if (const absl::string_view module = StemOf(weight, ".weight"); !module.empty()) {
    names.push_back(absl::StrCat(module, ".scale"));
  }
  const io::TensorInfo* found = nullptr;
  for (const std::string& name : names) {
    const io::TensorInfo* const scale = source.Find(name);
    if (scale == nullptr) continue;
    if (found != nullptr) {
      return parts.Wrong(*scale, absl::StrCat("one scale, but there is also ", io::Printable(found->name)));
    }
    found = parts.Optional(name);
  }
  if (found == nullptr) return parts.Need(names[0]);
  AQT_RETURN_IF_ERROR(parts.CheckDType(*found, kScales));
  return found;
}

// Sets where the scales of a weight [..., o, i] are.
absl::Status PlaceScales(const Parts& parts, const Shape& shape, const StoredConfig& config, ScaledMatrix& m) {
  const int64_t rank = shape.rank(), o = shape[rank - 2], i = shape[rank - 1];
  const Shape& scales = m.scales->shape;
  int64_t rows = o;
  for (int64_t axis = 0; axis + 2 < rank; ++axis) rows *= shape[axis];
  m.batch_rows = o;
  m.unit_cols = std::max<int64_t>(i, 1);
  m.scale_cols = 1;
  if (!config.block.has_value() && scales.num_elements() == 1 && scales.rank() <= 1) {  // of the whole weight
    m.batch_rows = m.unit_rows = std::max<int64_t>(rows, 1);
    return absl::OkStatus();
  }
  Shape blocks = shape;
  if (config.block.has_value()) {
    const auto [height, width] = *config.block;
    blocks[rank - 2] = CeilDiv(o, height);
    blocks[rank - 1] = CeilDiv(i, width);
    if (scales == blocks) {
      m.unit_rows = height;
      m.unit_cols = width;
      m.scale_cols = blocks[rank - 1];
      m.scale_rows_per_batch = blocks[rank - 2];
      return absl::OkStatus();
    }
  } else if (scales == Shape{o} || (rank == 2 && scales == Shape{o, 1})) {
    m.scale_rows_per_batch = o;
    return absl::OkStatus();
  }
  const std::string expected =
      config.block.has_value()
          ? absl::StrCat("the shape ", blocks.ToString(), ", for blocks of ", (*config.block)[0], " x ",
                         (*config.block)[1], " of the weight ", shape.ToString())
          : absl::StrCat(
                "one scale, or one per row; blocks need a weight_block_size in the quantization_config of "
                "config.json, such as [128, 128]");
  return parts.Wrong(*m.scales, expected);
}

class Format final : public StoredFormat {
 public:
  absl::string_view name() const override { return "fp8"; }
  bool IsMethod(absl::string_view method) const override { return method == "fp8" || method == "fbgemm_fp8"; }
  bool IsShownBy(const io::TensorSource& source) const override { return HasTensor(source, "_scale_inv"); }
  absl::Span<const absl::string_view> PartSuffixes() const override { return kSuffixes; }

  absl::StatusOr<StoredWeights> Find(const PartReader& reader, const StoredConfig& config) const override {
    const io::TensorSource& source = reader.source();
    StoredWeights found;
    for (const io::TensorInfo& tensor : source.tensors()) {
      if (tensor.dtype != FileDType::kF8E4M3) continue;
      Parts parts(source, tensor.name);
      ScaledMatrix m;
      m.codes = parts.Optional(tensor.name);
      if (tensor.shape.rank() < 2) return parts.Wrong(tensor, "at least two dimensions");
      AQT_ASSIGN_OR_RETURN(m.scales, FindScale(source, tensor.name, parts));
      AQT_RETURN_IF_ERROR(PlaceScales(parts, tensor.shape, config, m));
      found.Add(MakeScaledMatrix(tensor.name, tensor.shape, m), parts);
      found.Drop(source, StemOf(tensor.name, ".weight"), {".activation_scale", ".input_scale", ".input_scale_ub"});
      found.Drop(source, tensor.name, {"_activation_scale"});
    }
    found.DropAll(source, {".k_scale", ".v_scale"});
    if (config.block.has_value()) {
      found.details = absl::StrCat("blocks of ", (*config.block)[0], " x ", (*config.block)[1]);
    }
    return found;
  }
};

}  // namespace

const StoredFormat& Fp8() {
  static const auto* const format = new Format();
  return *format;
}

}  // namespace aqt::stored
