#ifndef AQT_TESTS_GOLDEN_CHECK_PARSE_QUANTIZER_H_
#define AQT_TESTS_GOLDEN_CHECK_PARSE_QUANTIZER_H_

// Quantizers, from the JSON of the manifest to the library's structs, and the functions that read all configurations.
// Missing fields and wrong types throw; ParseConfig turns that into a status.

#include <initializer_list>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "nlohmann/json.hpp"
#include "tests/golden_check/golden_case.h"

namespace aqt::golden {

using Json = nlohmann::ordered_json;

// Unimplemented: the library has no API for `what`.
absl::Status NoApi(absl::string_view what);

// Every field must be one of these, so that new fields are not ignored silently.
absl::Status CheckFields(const Json& object, absl::string_view what, std::initializer_list<absl::string_view> known);

// T, or null.
template <class T>
std::optional<T> Optional(const Json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return std::nullopt;
  return object[key].get<T>();
}

Axes ToAxes(const Json& list);
absl::StatusOr<DType> ToDType(const std::string& name);
// The dtype of `object[key]`; null if that is null.
absl::StatusOr<std::optional<DType>> OptionalDType(const Json& object, const char* key);

// The fields quant_bound and fwd_clip_bound follow from the others. Every scale and qvalue depends on them.
absl::StatusOr<Numerics> ToNumerics(const Json& json);
absl::StatusOr<std::optional<Calibration>> ToCalibration(const Json& json, const Tensors& inputs);
// The fields that all quantizers have. Axes in the JSON become calib_shared_axes.
absl::StatusOr<Quantizer> ToQuantizer(const Json& json, const Tensors& inputs);
// The quantizer of one side of a contraction, with its modes.
absl::StatusOr<TensorConfig> ToTensor(const Json& json, const Tensors& inputs);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_PARSE_QUANTIZER_H_
