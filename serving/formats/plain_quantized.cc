#include "serving/formats/plain_quantized.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"

namespace aqt::serving {
namespace {

absl::Status CheckRange(const Array& q, int num_bits) {
  const int limit = 1 << (num_bits - 1);
  for (const int8_t value : q.View<int8_t>()) {
    if (value < -limit || value >= limit) {
      return absl::DataLossError(absl::StrCat(kWeight, " holds ", value, ", which ", num_bits, " bits cannot"));
    }
  }
  return absl::OkStatus();
}

class PlainQuantized final : public WeightFormat {
 public:
  explicit PlainQuantized(absl::string_view name) : name_(name) {}

  absl::string_view name() const override { return name_; }

  bool IsDefaultFor(const WeightScheme&, bool quantized_activations) const override { return quantized_activations; }

  absl::Status Validate(const WeightScheme&) const override { return absl::OkStatus(); }

  std::vector<io::TensorSpec> Outputs(const WeightScheme& weights, const Shape& shape,
                                      io::FileDType dtype) const override {
    const Shape scale = ScaleShape(weights, shape);
    std::vector<io::TensorSpec> out = {{kWeight, io::FileDType::kI8, shape}, {kWeightScale, dtype, scale}};
    if (!weights.symmetric) out.push_back({kWeightZeroPoint, io::FileDType::kI8, scale});
    return out;
  }

  absl::StatusOr<std::vector<StoredRows>> Encode(QuantizedWeight rows, int64_t first_row, const WeightScheme&,
                                                 const Shape&) const override {
    std::vector<StoredRows> out = {{kWeight, first_row, std::move(rows.q)},
                                   {kWeightScale, first_row, std::move(rows.scale)}};
    if (rows.zero_point.has_value()) out.push_back({kWeightZeroPoint, first_row, *std::move(rows.zero_point)});
    return out;
  }

  absl::StatusOr<QuantizedWeight> Decode(const StoredTensors& stored, const WeightScheme& weights,
                                         const Shape&) const override {
    QuantizedWeight weight;
    weight.q = stored.find(kWeight)->second;
    AQT_RETURN_IF_ERROR(CheckRange(weight.q, weights.num_bits));
    weight.scale = stored.find(kWeightScale)->second;
    if (!weights.symmetric) weight.zero_point = stored.find(kWeightZeroPoint)->second;
    return weight;
  }

 private:
  absl::string_view name_;
};

}  // namespace

const WeightFormat& IntQuantized() {
  static const auto* const format = new PlainQuantized("int-quantized");
  return *format;
}

}  // namespace aqt::serving
