#include "serving/convert/weight_codec.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/quant/weights/aqt_weight.h"
#include "aqt/quant/weights/compressed_tensors.h"

namespace aqt::serving {
namespace {

namespace ct = compressed_tensors;

// AQT's rule has one scale per row, so groups and tensors are reshaped to rows.
absl::StatusOr<ct::QuantizedWeight> QuantizeByAqt(const ArrayRef& rows, const WeightScheme& scheme,
                                                  Executor* executor) {
  AQT_CHECK(scheme.symmetric && rows.IsDense());
  const Shape scale_shape = ScaleShape(scheme, rows.shape);
  const int64_t units = scale_shape.num_elements();
  const ArrayRef reshaped(rows.dtype, {units, rows.shape.num_elements() / units}, rows.data);
  AQT_ASSIGN_OR_RETURN(const AqtQuantizedWeight weight,
                       AqtQuantizeWeightPerChannel(reshaped, scheme.num_bits, kernels::BestTarget(), executor));
  ct::QuantizedWeight out;
  AQT_ASSIGN_OR_RETURN(out.q, weight.q.Reshaped(rows.shape));
  AQT_ASSIGN_OR_RETURN(out.scale, weight.scale.Reshaped(scale_shape));
  return out;
}

bool AllFinite(const Array& scale) {
  const Array f32 = Cast(scale, DType::kF32);
  const absl::Span<const float> values = f32.View<float>();
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// A stored tensor of the expected type, or DataLoss.
absl::StatusOr<Array> ReadExpected(const io::Checkpoint& checkpoint, const std::string& name,
                                   std::optional<DType> dtype, const Shape& shape) {
  const io::Checkpoint::Tensor* tensor = checkpoint.Find(name);
  if (tensor == nullptr) return absl::DataLossError(absl::StrCat(io::Printable(name), " is missing"));
  if (tensor->info->shape != shape || (dtype.has_value() && io::ToDType(tensor->info->dtype) != dtype)) {
    return absl::DataLossError(absl::StrCat(io::Printable(name), " is ", io::ToString(tensor->info->dtype),
                                            tensor->info->shape.ToString(), "; the scheme says ",
                                            dtype.has_value() ? ToString(*dtype) : "", shape.ToString()));
  }
  return checkpoint.ReadArray(*tensor);
}

absl::Status CheckRange(const Array& q, int num_bits, const std::string& name) {
  const int limit = 1 << (num_bits - 1);
  for (const int8_t value : q.View<int8_t>()) {
    if (value < -limit || value >= limit) {
      return absl::DataLossError(
          absl::StrCat(io::Printable(name), " holds ", value, ", which ", num_bits, " bits cannot"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t RowUnit(const Scheme& scheme) {
  if (scheme.weights.strategy == WeightStrategy::kTensor) return 0;
  return scheme.format == Format::kPackQuantized && !scheme.weights.symmetric ? 32 : 1;
}

int64_t MinRows(WeightRules rules) { return rules == WeightRules::kAqt ? 2 : 1; }

absl::StatusOr<EncodedWeight> EncodeRows(const ArrayRef& rows, const Scheme& scheme, WeightRules rules,
                                         Executor* executor) {
  ct::QuantizedWeight weight;
  if (rules == WeightRules::kAqt) {
    AQT_ASSIGN_OR_RETURN(weight, QuantizeByAqt(rows, scheme.weights, executor));
  } else {
    ct::Options options;
    options.executor = executor;
    AQT_ASSIGN_OR_RETURN(weight, ct::QuantizeWeight(rows, scheme.weights, options));
  }
  if (!AllFinite(weight.scale)) {
    return absl::DataLossError("the range of the values overflows the dtype of the scale; use a symmetric scheme");
  }
  EncodedWeight out;
  out.scale = std::move(weight.scale);
  if (scheme.format == Format::kIntQuantized) {
    out.values = std::move(weight.q);
    out.zero_point = std::move(weight.zero_point);
    return out;
  }
  AQT_ASSIGN_OR_RETURN(out.values, ct::PackInts(weight.q, scheme.weights.num_bits));
  if (weight.zero_point.has_value()) {
    AQT_ASSIGN_OR_RETURN(out.zero_point, ct::PackZeroPoints(*weight.zero_point, scheme.weights.num_bits));
  }
  return out;
}

absl::StatusOr<EncodedInput> EncodeInputRange(const InputScheme& scheme, float min, float max, DType dtype) {
  // The range of a tensor of these two values is the range itself.
  const Array range = Cast(Array::Of<float>({min, max}, {1, 2}), dtype);
  WeightScheme as_weight;
  as_weight.num_bits = scheme.num_bits;
  as_weight.symmetric = scheme.symmetric;
  as_weight.strategy = WeightStrategy::kTensor;
  AQT_ASSIGN_OR_RETURN(ct::QuantizedWeight encoded, ct::QuantizeWeight(range, as_weight));
  if (!AllFinite(encoded.scale))
    return absl::InvalidArgumentError(absl::StrCat("the range overflows ", ToString(dtype)));
  return EncodedInput{std::move(encoded.scale), std::move(encoded.zero_point)};
}

absl::StatusOr<DecodedWeight> DecodeWeight(const io::Checkpoint& checkpoint, absl::string_view module,
                                           const Scheme& scheme, const Shape& shape, Executor* executor) {
  const WeightScheme& w = scheme.weights;
  const bool packed = scheme.format == Format::kPackQuantized;
  DecodedWeight out;
  ct::QuantizedWeight weight;
  for (const io::TensorSpec& spec : OutputTensors(scheme, module, io::FileDType::kF32, shape)) {
    const absl::string_view suffix = absl::string_view(spec.name).substr(module.size());
    const bool is_scale = suffix == kWeightScale || suffix == kInputScale;
    AQT_ASSIGN_OR_RETURN(Array array, ReadExpected(checkpoint, spec.name,
                                                   is_scale ? std::nullopt : io::ToDType(spec.dtype), spec.shape));
    if (suffix == kWeight) {
      AQT_RETURN_IF_ERROR(CheckRange(array, w.num_bits, spec.name));
      weight.q = std::move(array);
    } else if (suffix == kWeightPacked) {
      AQT_ASSIGN_OR_RETURN(weight.q, ct::UnpackInts(array, w.num_bits, shape[1]));
    } else if (suffix == kWeightShape) {
      if (array.View<int64_t>()[0] != shape[0] || array.View<int64_t>()[1] != shape[1]) {
        return absl::DataLossError(absl::StrCat(io::Printable(spec.name), " is [", array.View<int64_t>()[0], ",",
                                                array.View<int64_t>()[1], "]; the weight is ", shape.ToString()));
      }
    } else if (suffix == kWeightScale) {
      if (!AllFinite(array))
        return absl::DataLossError(absl::StrCat(io::Printable(spec.name), " holds a NaN or an infinity"));
      weight.scale = std::move(array);
    } else if (suffix == kWeightZeroPoint && packed) {
      AQT_ASSIGN_OR_RETURN(weight.zero_point, ct::UnpackZeroPoints(array, w.num_bits, shape[0]));
    } else if (suffix == kWeightZeroPoint) {
      weight.zero_point = std::move(array);
    }
  }
  ct::Options options;
  options.executor = executor;
  absl::StatusOr<Array> dequantized = ct::DequantizeWeight(weight, w, options);
  if (!dequantized.ok()) {  // shapes have been checked: any other error is the file's fault
    return absl::DataLossError(absl::StrCat(io::Printable(module), ": ", dequantized.status().message()));
  }
  out.q = std::move(weight.q);
  out.scale = std::move(weight.scale);
  out.dequantized = *std::move(dequantized);
  return out;
}

}  // namespace aqt::serving
