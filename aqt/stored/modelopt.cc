// ModelOpt's FP8 and NVFP4. For a module M with a weight [o, i]
//   FP8:    M.weight F8_E4M3 [o, i]; M.weight_scale F32 [] or [1], or [o] or [o, 1]
//           w = f32(e4m3) * weight_scale
//   NVFP4:  M.weight U8 [o, i / 2], two E2M1 codes per byte, low nibble first; M.weight_scale F8_E4M3 [o, i / 16];
//           M.weight_scale_2 F32 [] or [1]
//           w = e2m1 * (f32(weight_scale) * weight_scale_2)

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

constexpr absl::string_view kSuffixes[] = {".weight_scale", ".weight_scale_2", ".input_scale", ".pre_quant_scale",
                                           ".output_scale"};
constexpr int64_t kGroup = 16;

// Unimplemented if a weight was changed together with its input.
absl::Status CheckNotSmoothed(const io::TensorSource& source, absl::string_view module) {
  const io::TensorInfo* const scale = source.Find(absl::StrCat(module, ".pre_quant_scale"));
  if (scale == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      Describe(source, *scale), ": the module's input must be multiplied by it (AWQ, SmoothQuant), which a float ",
      "checkpoint cannot say; start from the floating point original"));
}

absl::Status AddFp8(const io::TensorSource& source, const io::TensorInfo& weight, absl::string_view module,
                    StoredWeights& found) {
  Parts parts(source, weight.name);
  ScaledMatrix m;
  m.codes = parts.Optional(weight.name);
  const int64_t o = weight.shape[0], i = weight.shape[1];
  AQT_ASSIGN_OR_RETURN(
      m.scales, parts.Need(absl::StrCat(module, ".weight_scale"), kFloats, {Shape{}, Shape{1}, Shape{o}, Shape{o, 1}}));
  m.unit_rows = m.scales->shape.num_elements() == 1 ? std::max<int64_t>(o, 1) : 1;
  m.unit_cols = std::max<int64_t>(i, 1);
  found.Add(MakeScaledMatrix(weight.name, weight.shape, m), parts);
  return absl::OkStatus();
}

absl::Status AddNvfp4(const io::TensorSource& source, const io::TensorInfo& weight, absl::string_view module,
                      const StoredConfig& config, StoredWeights& found) {
  Parts parts(source, weight.name);
  ScaledMatrix m;
  m.codes = parts.Optional(weight.name);
  m.kind = CodeKind::kE2M1;
  const Shape shape = {weight.shape[0], 2 * weight.shape[1]};
  m.unit_cols = config.group_size.value_or(kGroup);
  if (m.unit_cols < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.where, ": group_size is ", m.unit_cols, "; expected a positive size, such as 16"));
  }
  if (shape[1] % m.unit_cols != 0) {
    return parts.Wrong(weight, absl::StrCat("rows of whole groups of ", m.unit_cols, " values, two in a byte"));
  }
  m.scale_cols = shape[1] / m.unit_cols;
  AQT_ASSIGN_OR_RETURN(m.scales, parts.Need(absl::StrCat(module, ".weight_scale"), {FileDType::kF8E4M3},
                                            {Shape{shape[0], m.scale_cols}}));
  AQT_ASSIGN_OR_RETURN(m.factor,
                       parts.Need(absl::StrCat(module, ".weight_scale_2"), {FileDType::kF32}, {Shape{}, Shape{1}}));
  found.Add(MakeScaledMatrix(weight.name, shape, m), parts);
  return absl::OkStatus();
}

class Format final : public StoredFormat {
 public:
  absl::string_view name() const override { return "modelopt"; }
  bool IsMethod(absl::string_view method) const override {
    return method == "modelopt" || method == "modelopt_fp4" || method == "modelopt_fp8" || method == "modelopt_mixed";
  }
  bool IsShownBy(const io::TensorSource& source) const override {
    return HasTensor(source, ".weight_scale_2") || HasScaled(source, ".weight_scale", FileDType::kF8E4M3);
  }
  absl::Span<const absl::string_view> PartSuffixes() const override { return kSuffixes; }

  absl::StatusOr<StoredWeights> Find(const PartReader& reader, const StoredConfig& config) const override {
    const io::TensorSource& source = reader.source();
    StoredWeights found;
    for (const io::TensorInfo& tensor : source.tensors()) {
      const absl::string_view module = StemOf(tensor.name, ".weight");
      if (module.empty() || tensor.shape.rank() != 2) continue;
      const bool fp8 = tensor.dtype == FileDType::kF8E4M3, fp4 = tensor.dtype == FileDType::kU8;
      if (!fp8 && !fp4) continue;
      AQT_RETURN_IF_ERROR(CheckNotSmoothed(source, module));
      AQT_RETURN_IF_ERROR(fp8 ? AddFp8(source, tensor, module, found)
                              : AddNvfp4(source, tensor, module, config, found));
      found.Drop(source, module, {".input_scale", ".output_scale"});
    }
    found.DropAll(source, {".k_scale", ".v_scale", ".q_scale"});
    found.details = io::Printable(config.algorithm);
    return found;
  }
};

}  // namespace

const StoredFormat& ModelOpt() {
  static const auto* const format = new Format();
  return *format;
}

}  // namespace aqt::stored
