#include "serving/formats/pack_quantized.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"

namespace aqt::serving {
namespace {

namespace ct = compressed_tensors;

constexpr char kWeightShape[] = ".weight_shape";
// The number of rows after which zero points begin a new word, for any number of bits.
constexpr int64_t kZeroPointRows = 32;

bool PacksZeroPoints(const WeightScheme& weights) {
  return weights.strategy == WeightStrategy::kChannel || weights.strategy == WeightStrategy::kGroup;
}

int64_t WordsFor(int64_t values, int num_bits) { return (values * num_bits + 31) / 32; }

class Packed final : public WeightFormat {
 public:
  absl::string_view name() const override { return "pack-quantized"; }

  bool IsDefaultFor(const WeightScheme& weights, bool quantized_activations) const override {
    return weights.type == ValueType::kInt && !quantized_activations;
  }

  absl::Status Validate(const WeightScheme& weights) const override {
    if (weights.type != ValueType::kInt) {
      return absl::UnimplementedError("pack-quantized with weights of type float is not supported; it holds type int");
    }
    return absl::OkStatus();
  }

  std::vector<io::TensorSpec> Outputs(const WeightScheme& weights, const Shape& shape,
                                      io::FileDType dtype) const override {
    const Shape scale = UnitsOf(weights, shape).scale_shape;
    std::vector<io::TensorSpec> out = {
        {kWeightPacked, io::FileDType::kI32, {shape[0], WordsFor(shape[1], weights.num_bits)}},
        {kWeightShape, io::FileDType::kI64, {2}},
        {kWeightScale, dtype, scale}};
    if (!weights.symmetric) {
      if (PacksZeroPoints(weights)) {
        out.push_back({kWeightZeroPoint, io::FileDType::kI32, {WordsFor(shape[0], weights.num_bits), scale[1]}});
      } else {
        out.push_back({kWeightZeroPoint, io::FileDType::kI8, scale});
      }
    }
    return out;
  }

  int64_t RowUnit(const WeightScheme& weights) const override {
    const int64_t unit = WeightFormat::RowUnit(weights);
    return weights.symmetric || !PacksZeroPoints(weights) ? unit : kZeroPointRows;
  }

  bool TakesPacked() const override { return true; }

  absl::StatusOr<std::vector<StoredRows>> Encode(QuantizedWeight rows, int64_t first_row, const WeightScheme& weights,
                                                 const Shape& shape) const override {
    if (rows.q.dtype() == DType::kS8) {
      AQT_ASSIGN_OR_RETURN(rows.q, ct::PackInts(rows.q, weights.num_bits));
    }
    const int64_t first_unit = first_row / UnitsOf(weights, shape).rows;
    std::vector<StoredRows> out = {{kWeightPacked, first_row, std::move(rows.q)},
                                   {kWeightScale, first_unit, std::move(rows.scale)}};
    if (first_row == 0) out.push_back({kWeightShape, 0, Array::Of<int64_t>({shape[0], shape[1]}, {2})});
    if (rows.zero_point.has_value() && !PacksZeroPoints(weights)) {
      out.push_back({kWeightZeroPoint, first_unit, *std::move(rows.zero_point)});
    } else if (rows.zero_point.has_value()) {
      AQT_ASSIGN_OR_RETURN(Array zero_words, ct::PackZeroPoints(*rows.zero_point, weights.num_bits));
      out.push_back({kWeightZeroPoint, first_row * weights.num_bits / 32, std::move(zero_words)});
    }
    return out;
  }

  absl::StatusOr<QuantizedWeight> Decode(const StoredTensors& stored, const WeightScheme& weights,
                                         const Shape& shape) const override {
    const absl::Span<const int64_t> stored_shape = stored.find(kWeightShape)->second.View<int64_t>();
    if (!std::equal(stored_shape.begin(), stored_shape.end(), shape.begin(), shape.end())) {
      return absl::DataLossError(absl::StrCat(kWeightShape, " is [", stored_shape[0], ",", stored_shape[1],
                                              "]; the weight is ", shape.ToString()));
    }
    QuantizedWeight weight;
    AQT_ASSIGN_OR_RETURN(weight.q, ct::UnpackInts(stored.find(kWeightPacked)->second, weights.num_bits, shape[1]));
    weight.scale = stored.find(kWeightScale)->second;
    if (!weights.symmetric && !PacksZeroPoints(weights)) {
      weight.zero_point = stored.find(kWeightZeroPoint)->second;
    } else if (!weights.symmetric) {
      AQT_ASSIGN_OR_RETURN(weight.zero_point,
                           ct::UnpackZeroPoints(stored.find(kWeightZeroPoint)->second, weights.num_bits, shape[0]));
    }
    return weight;
  }
};

}  // namespace

const WeightFormat& PackQuantized() {
  static const auto* const format = new Packed();
  return *format;
}

}  // namespace aqt::serving
