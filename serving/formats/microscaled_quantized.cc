#include "serving/formats/microscaled_quantized.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/weights/microscaled.h"

namespace aqt::serving {
namespace {

namespace ct = compressed_tensors;

// Whether one of the n codes of scales is not a positive number or 0.
bool AnyBadScale(const uint8_t* codes, int64_t n, ScaleType type) {
  const uint8_t least_bad = type == ScaleType::kE8M0 ? 0xff : 0x7f;
  return std::any_of(codes, codes + n, [least_bad](uint8_t code) { return code >= least_bad; });
}

class MicroscaledQuantized final : public WeightFormat {
 public:
  MicroscaledQuantized(absl::string_view name, int num_bits, ScaleType scale_type)
      : name_(name), num_bits_(num_bits), scale_type_(scale_type) {}

  absl::string_view name() const override { return name_; }

  bool IsDefaultFor(const WeightScheme& weights, bool) const override { return Holds(weights); }

  absl::Status Validate(const WeightScheme& weights) const override {
    if (Holds(weights)) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(
        name_, " with such weights is not supported; it holds floats of ", num_bits_, " bits in groups of ",
        ct::GroupSizeOf(scale_type_), " with ",
        global() ? "8-bit floats as scales (strategy \"tensor_group\", scale_dtype \"torch.float8_e4m3fn\")"
                 : "scales that are powers of two (scale_dtype \"torch.uint8\")"));
  }

  std::vector<io::TensorSpec> Outputs(const WeightScheme& weights, const Shape& shape, io::FileDType) const override {
    std::vector<io::TensorSpec> out(global() ? 3 : 2);
    if (packs()) {
      out[0] = {kWeightPacked, io::FileDType::kU8, {shape[0], shape[1] * num_bits_ / 8}};
    } else {
      out[0] = {kWeight, io::FileDType::kF8E4M3, shape};
    }
    const io::FileDType scales = global() ? io::FileDType::kF8E4M3 : io::FileDType::kU8;
    out[1] = {kWeightScale, scales, UnitsOf(weights, shape).scale_shape};
    if (global()) out[2] = {kWeightGlobalScale, io::FileDType::kF32, {1}};
    return out;
  }

  bool TakesPacked() const override { return packs(); }

  absl::StatusOr<std::vector<StoredRows>> Encode(QuantizedWeight rows, int64_t first_row, const WeightScheme&,
                                                 const Shape&) const override {
    if (packs() && rows.q.dtype() == DType::kE4M3FN) {
      AQT_ASSIGN_OR_RETURN(rows.q, ct::PackSmallFloats(rows.q, num_bits_));
    }
    std::vector<StoredRows> out;
    out.push_back({packs() ? kWeightPacked : kWeight, first_row, std::move(rows.q)});
    out.push_back({kWeightScale, first_row, std::move(rows.scale)});
    if (global() && first_row == 0) {
      out.push_back({kWeightGlobalScale, 0, Array::Of<float>({rows.global_scale}, {1})});
    }
    return out;
  }

  absl::StatusOr<QuantizedWeight> Decode(const StoredTensors& stored, const WeightScheme&,
                                         const Shape&) const override {
    QuantizedWeight weight;
    weight.scale = stored.find(kWeightScale)->second;
    if (AnyBadScale(static_cast<const uint8_t*>(weight.scale.data()), weight.scale.num_elements(), scale_type_)) {
      return absl::DataLossError(absl::StrCat(
          kWeightScale, global() ? " holds a NaN or a negative number; finite numbers of at least 0 are expected"
                                 : " holds 255, which is not a number; 0 to 254 are expected"));
    }
    if (global()) {
      weight.global_scale = stored.find(kWeightGlobalScale)->second.View<float>()[0];
      if (!(weight.global_scale > 0 && std::isfinite(weight.global_scale))) {
        return absl::DataLossError(
            absl::StrCat(kWeightGlobalScale, " is ", weight.global_scale, "; a positive finite number is expected"));
      }
    }
    const Array& values = stored.find(packs() ? kWeightPacked : kWeight)->second;
    if (packs()) {
      AQT_ASSIGN_OR_RETURN(weight.q, ct::UnpackSmallFloats(values, num_bits_));
      return weight;
    }
    weight.q = values;
    for (const Float8E4M3FN value : weight.q.View<Float8E4M3FN>()) {
      if ((value.bits & 0x7f) == 0x7f) return absl::DataLossError(absl::StrCat(kWeight, " holds a NaN"));
    }
    return weight;
  }

 private:
  bool packs() const { return num_bits_ < 8; }
  bool global() const { return scale_type_ == ScaleType::kE4M3; }
  bool Holds(const WeightScheme& weights) const {
    return weights.scale_type == scale_type_ && weights.num_bits == num_bits_;
  }

  absl::string_view name_;
  int num_bits_;
  ScaleType scale_type_;
};

}  // namespace

const WeightFormat& MxFp4Quantized() {
  static const auto* const format = new MicroscaledQuantized("mxfp4-pack-quantized", 4, ScaleType::kE8M0);
  return *format;
}
const WeightFormat& MxFp6Quantized() {
  static const auto* const format = new MicroscaledQuantized("mxfp6-pack-quantized", 6, ScaleType::kE8M0);
  return *format;
}
const WeightFormat& MxFp8Quantized() {
  static const auto* const format = new MicroscaledQuantized("mxfp8-quantized", 8, ScaleType::kE8M0);
  return *format;
}
const WeightFormat& NvFp4Quantized() {
  static const auto* const format = new MicroscaledQuantized("nvfp4-pack-quantized", 4, ScaleType::kE4M3);
  return *format;
}

}  // namespace aqt::serving
