#include "serving/formats/plain_quantized.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"

namespace aqt::serving {
namespace {

absl::Status CheckIntegers(const Array& q, int num_bits) {
  const int limit = 1 << (num_bits - 1);
  for (const int8_t value : q.View<int8_t>()) {
    if (value < -limit || value >= limit) {
      return absl::DataLossError(
          absl::StrCat(kWeight, " holds ", value, ", which does not fit in ", num_bits, " bits"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFloats(const Array& q) {
  for (const Float8E4M3FN value : q.View<Float8E4M3FN>()) {
    if ((value.bits & 0x7f) == 0x7f) return absl::DataLossError(absl::StrCat(kWeight, " holds a NaN"));
  }
  return absl::OkStatus();
}

class PlainQuantized final : public WeightFormat {
 public:
  // Holds values of `type`, or of each type if null. If `default_needs_activations`, it is a default only with
  // quantized activations.
  PlainQuantized(absl::string_view name, std::optional<ValueType> type, bool default_needs_activations)
      : name_(name), type_(type), default_needs_activations_(default_needs_activations) {}

  absl::string_view name() const override { return name_; }

  bool IsDefaultFor(const WeightScheme& weights, bool quantized_activations) const override {
    return Holds(weights.type) && (quantized_activations || !default_needs_activations_);
  }

  absl::Status Validate(const WeightScheme& weights) const override {
    if (weights.scale_type != ScaleType::kWeight) {
      return absl::UnimplementedError(
          absl::StrCat(name_, " with scales of 8 bits (MX, NVFP4) is not supported; leave the format out"));
    }
    if (Holds(weights.type)) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(name_, " with weights of type ", ToString(weights.type),
                                                 " is not supported; it holds type ", ToString(*type_)));
  }

  std::vector<io::TensorSpec> Outputs(const WeightScheme& weights, const Shape& shape,
                                      io::FileDType dtype) const override {
    const Shape scale = UnitsOf(weights, shape).scale_shape;
    const io::FileDType values = weights.type == ValueType::kFloat ? io::FileDType::kF8E4M3 : io::FileDType::kI8;
    std::vector<io::TensorSpec> out = {{kWeight, values, shape}, {kWeightScale, dtype, scale}};
    if (!weights.symmetric) out.push_back({kWeightZeroPoint, io::FileDType::kI8, scale});
    return out;
  }

  absl::StatusOr<std::vector<StoredRows>> Encode(QuantizedWeight rows, int64_t first_row, const WeightScheme& weights,
                                                 const Shape& shape) const override {
    const int64_t first_unit = first_row / UnitsOf(weights, shape).rows;
    std::vector<StoredRows> out = {{kWeight, first_row, std::move(rows.q)},
                                   {kWeightScale, first_unit, std::move(rows.scale)}};
    if (rows.zero_point.has_value()) out.push_back({kWeightZeroPoint, first_unit, *std::move(rows.zero_point)});
    return out;
  }

  absl::StatusOr<QuantizedWeight> Decode(const StoredTensors& stored, const WeightScheme& weights,
                                         const Shape&) const override {
    QuantizedWeight weight;
    weight.q = stored.find(kWeight)->second;
    AQT_RETURN_IF_ERROR(weights.type == ValueType::kFloat ? CheckFloats(weight.q)
                                                          : CheckIntegers(weight.q, weights.num_bits));
    weight.scale = stored.find(kWeightScale)->second;
    if (!weights.symmetric) weight.zero_point = stored.find(kWeightZeroPoint)->second;
    return weight;
  }

 private:
  bool Holds(ValueType type) const { return !type_.has_value() || *type_ == type; }

  absl::string_view name_;
  std::optional<ValueType> type_;
  bool default_needs_activations_;
};

}  // namespace

const WeightFormat& IntQuantized() {
  static const auto* const format = new PlainQuantized("int-quantized", ValueType::kInt, true);
  return *format;
}
const WeightFormat& FloatQuantized() {
  static const auto* const format = new PlainQuantized("float-quantized", ValueType::kFloat, true);
  return *format;
}
const WeightFormat& NaiveQuantized() {
  static const auto* const format = new PlainQuantized("naive-quantized", std::nullopt, false);
  return *format;
}

}  // namespace aqt::serving
