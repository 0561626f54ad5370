#include "aqt/quant/text/config_path.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"

namespace aqt::internal {
namespace {

constexpr absl::string_view kNone = "none";

}  // namespace

ConfigPath ConfigPath::In(const google::protobuf::Message& message, const char* field) const {
  return {place.In(message, field), absl::StrCat(path, path.empty() ? "" : ".", field)};
}

absl::Status ConfigPath::At(const absl::Status& status) const {
  return place.At(path.empty() ? status : Annotate(status, path));
}

absl::Status ConfigPath::Error(absl::string_view message) const { return At(absl::InvalidArgumentError(message)); }

std::string DTypeText(std::optional<DType> dtype) { return std::string(dtype.has_value() ? ToString(*dtype) : kNone); }

absl::StatusOr<std::optional<DType>> ReadDType(const std::string& text, const ConfigPath& path) {
  if (text == kNone) return std::optional<DType>();
  const std::optional<DType> dtype = DTypeFromString(text);
  if (dtype.has_value()) return dtype;
  constexpr std::pair<absl::string_view, absl::string_view> kNumpyNames[] = {
      {"int2", "s2"},          {"int4", "s4"},     {"int8", "s8"},       {"int32", "s32"},
      {"float16", "f16"},      {"float32", "f32"}, {"bfloat16", "bf16"}, {"float8_e4m3fn", "e4m3fn"},
      {"float8_e5m2", "e5m2"}, {"None", "none"}};
  for (const auto& [numpy, name] : kNumpyNames) {
    if (text == numpy) return path.Error(absl::StrCat("\"", text, "\" is not a data type; write \"", name, "\""));
  }
  return path.Error(absl::StrCat("\"", text,
                                 "\" is not a data type; expected s2, s4, s8, s32, e4m3fn, e5m2, f16, bf16, "
                                 "f32 or none"));
}

}  // namespace aqt::internal
