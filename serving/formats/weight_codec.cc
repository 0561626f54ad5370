#include "serving/formats/weight_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/quant/weights/aqt_weight.h"
#include "aqt/quant/weights/compressed_tensors.h"
#include "aqt/quant/weights/microscaled.h"

namespace aqt::serving {
namespace {

namespace ct = compressed_tensors;

// AQT's rule has one scale per row, so groups and tensors are reshaped to rows.
absl::StatusOr<ct::QuantizedWeight> QuantizeByAqt(const ArrayRef& rows, const WeightScheme& scheme,
                                                  Executor* executor) {
  AQT_CHECK(scheme.type == ValueType::kInt && scheme.symmetric && rows.IsDense());
  const Shape scale_shape = UnitsOf(scheme, rows.shape).scale_shape;
  const int64_t units = scale_shape.num_elements();
  const ArrayRef reshaped(rows.dtype, {units, rows.shape.num_elements() / units}, rows.data);
  AQT_ASSIGN_OR_RETURN(const AqtQuantizedWeight weight,
                       AqtQuantizeWeightPerChannel(reshaped, scheme.num_bits, kernels::BestTarget(), executor));
  ct::QuantizedWeight out;
  AQT_ASSIGN_OR_RETURN(out.q, weight.q.Reshaped(rows.shape));
  AQT_ASSIGN_OR_RETURN(out.scale, weight.scale.Reshaped(scale_shape));
  return out;
}

absl::StatusOr<ct::QuantizedWeight> Quantize(const ArrayRef& rows, const Scheme& scheme, WeightRules rules, bool packed,
                                             float global_scale, Executor* executor) {
  if (rules == WeightRules::kAqt) return QuantizeByAqt(rows, scheme.weights, executor);
  ct::Options options;
  options.executor = executor;
  options.packed = packed;
  options.global_scale = global_scale;
  return ct::QuantizeWeight(rows, scheme.weights, options);
}

// The first scale that is not finite, or -1.
int64_t FirstNotFinite(const Array& scale) {
  if (scale.dtype() == DType::kU8 || scale.dtype() == DType::kE4M3FN) {  // of MX or NVFP4: one code is not a number
    const auto* const codes = static_cast<const char*>(scale.data());
    const void* const found = std::memchr(codes, scale.dtype() == DType::kU8 ? 0xff : 0x7f, scale.num_elements());
    return found == nullptr ? -1 : static_cast<const char*>(found) - codes;
  }
  const Array f32 = Cast(scale, DType::kF32);
  const absl::Span<const float> values = f32.View<float>();
  const auto it = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  return it == values.end() ? -1 : it - values.begin();
}
bool AllFinite(const Array& scale) { return FirstNotFinite(scale) < 0; }

// A stored tensor of the expected type, or DataLoss.
absl::StatusOr<Array> ReadExpected(const io::TensorSource& source, const std::string& name, std::optional<DType> dtype,
                                   const Shape& shape) {
  const io::TensorInfo* tensor = source.Find(name);
  if (tensor == nullptr) return absl::DataLossError(absl::StrCat(io::Printable(name), " is missing"));
  if (tensor->shape != shape || (dtype.has_value() && io::ToDType(tensor->dtype) != dtype)) {
    return absl::DataLossError(absl::StrCat(io::Printable(name), " is ", io::ToString(tensor->dtype),
                                            tensor->shape.ToString(), "; the scheme says ",
                                            dtype.has_value() ? ToString(*dtype) : "", shape.ToString()));
  }
  return source.ReadArray(*tensor);
}

}  // namespace

int64_t MinRows(WeightRules rules) { return rules == WeightRules::kAqt ? 2 : 1; }

absl::StatusOr<std::vector<StoredRows>> EncodeRows(const ArrayRef& rows, int64_t first_row, const Shape& shape,
                                                   const Scheme& scheme, WeightRules rules, float global_scale,
                                                   Executor* executor) {
  AQT_ASSIGN_OR_RETURN(ct::QuantizedWeight weight,
                       Quantize(rows, scheme, rules, scheme.format->TakesPacked(), global_scale, executor));
  if (const int64_t unit = FirstNotFinite(weight.scale); unit >= 0) {
    const ct::Units units = UnitsOf(scheme.weights, rows.shape);
    const std::string where = scheme.weights.strategy == WeightStrategy::kTensor
                                  ? ""
                                  : absl::StrCat(" in row ", first_row + unit / units.per_row * units.rows);
    return absl::DataLossError(absl::StrCat("the range of the values", where, " overflows the dtype of the scale; use ",
                                            scheme.weights.symmetric ? "another" : "a symmetric",
                                            " scheme, or keep this weight in floating point"));
  }
  return scheme.format->Encode(std::move(weight), first_row, scheme.weights, shape);
}

absl::StatusOr<QuantizedWeight> QuantizeRows(const ArrayRef& rows, const Scheme& scheme, WeightRules rules,
                                             float global_scale, Executor* executor) {
  return Quantize(rows, scheme, rules, /*packed=*/false, global_scale, executor);
}

absl::StatusOr<EncodedInput> EncodeInputRange(const InputScheme& scheme, float min, float max, DType dtype) {
  if (scheme.scale_type == ScaleType::kE4M3) {
    const float global = ct::GlobalScaleOf(std::max({0.0f, -min, max}), DType::kF32);
    return EncodedInput{Array::Of<float>({global}, {1}), std::nullopt};
  }
  // The range of a tensor with these two values is the range itself.
  const Array range = Cast(Array::Of<float>({min, max}, {1, 2}), dtype);
  WeightScheme as_weight;
  as_weight.type = scheme.type;
  as_weight.num_bits = scheme.num_bits;
  as_weight.symmetric = scheme.symmetric;
  as_weight.strategy = WeightStrategy::kTensor;
  AQT_ASSIGN_OR_RETURN(ct::QuantizedWeight encoded, ct::QuantizeWeight(range, as_weight));
  if (!AllFinite(encoded.scale))
    return absl::InvalidArgumentError(absl::StrCat("the range overflows ", ToString(dtype)));
  return EncodedInput{std::move(encoded.scale), std::move(encoded.zero_point)};
}

absl::StatusOr<DecodedWeight> DecodeWeight(const io::TensorSource& source, absl::string_view module,
                                           const Scheme& scheme, const Shape& shape, Executor* executor) {
  StoredTensors stored;
  for (const io::TensorSpec& spec : OutputTensors(scheme, module, io::FileDType::kF32, shape)) {
    std::string suffix = spec.name.substr(module.size());
    // Scales in the dtype of the weight, which only they show.
    const bool is_open =
        suffix == kInputScale || (suffix == kWeightScale && scheme.weights.scale_type == ScaleType::kWeight);
    AQT_ASSIGN_OR_RETURN(Array array,
                         ReadExpected(source, spec.name, is_open ? std::nullopt : io::ToDType(spec.dtype), spec.shape));
    stored.emplace(std::move(suffix), std::move(array));
  }
  absl::StatusOr<ct::QuantizedWeight> weight = scheme.format->Decode(stored, scheme.weights, shape);
  if (!weight.ok()) return absl::DataLossError(absl::StrCat(io::Printable(module), weight.status().message()));
  if (!AllFinite(weight->scale)) {
    return absl::DataLossError(absl::StrCat(io::Printable(module), kWeightScale, " holds a NaN or an infinity"));
  }
  ct::Options options;
  options.executor = executor;
  absl::StatusOr<Array> dequantized = ct::DequantizeWeight(*weight, scheme.weights, options);
  if (!dequantized.ok()) {  // shapes have been checked: any other error comes from the file
    return absl::DataLossError(absl::StrCat(io::Printable(module), ": ", dequantized.status().message()));
  }
  const ScaleType scale_type = scheme.weights.scale_type;
  Array scale = scale_type == ScaleType::kWeight ? weight->scale : ct::FactorsOf(*weight, scale_type);
  return DecodedWeight{std::move(weight->q), std::move(scale), *std::move(dequantized)};
}

}  // namespace aqt::serving
