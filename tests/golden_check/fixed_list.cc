#include "tests/golden_check/fixed_list.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/golden_check/sha256.h"

namespace aqt::golden {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 26;

// -0 as 0, since Compare treats them as equal.
Array WithoutNegativeZeros(const Array& x) {
  ArrayBuilder builder(x.aval());
  VisitDType(x.dtype(), [&]<class T>() {
    const absl::Span<const T> values = x.View<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      builder.Mutable<T>()[i] = ConvertElement<double>(values[i]) == 0 ? T{} : values[i];
    }
    return 0;
  });
  return std::move(builder).Build();
}

std::string DigestOf(const Array& x) {
  const Array y = WithoutNegativeZeros(x);
  const int64_t bytes = y.num_elements() * SizeOf(y.dtype());
  return Sha256Hex(absl::string_view(reinterpret_cast<const char*>(y.data()), bytes));
}

Json NumberToJson(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double NumberFromJson(const Json& json) {
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  return json.get<double>();
}

// "f32[2,3]"
absl::StatusOr<Aval> ParseAval(const std::string& text) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::string prefix = absl::StrCat(ToString(dtype), "[");
    if (text.compare(0, prefix.size(), prefix) != 0) continue;
    const Json extents = Json::parse(text.substr(prefix.size() - 1));
    return Aval{dtype, Shape(extents.get<std::vector<int64_t>>())};
  }
  return absl::InvalidArgumentError(absl::StrCat("aval ", text, ": values are given for f32, bf16 and f16 only"));
}

absl::StatusOr<FixedTensor> ToFixedTensor(const Json& json) {
  FixedTensor tensor{.aval = json.at("aval"), .sha256 = "", .value = std::nullopt};
  if (json.contains("sha256")) {
    tensor.sha256 = json["sha256"];
    return tensor;
  }
  AQT_ASSIGN_OR_RETURN(const Aval aval, ParseAval(tensor.aval));
  const Json& numbers = json.at("values");
  ArrayBuilder builder(DType::kF32, aval.shape);
  if (static_cast<int64_t>(numbers.size()) != aval.shape.num_elements()) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.aval, " has ", numbers.size(), " values"));
  }
  for (size_t i = 0; i < numbers.size(); ++i)
    builder.Mutable<float>()[i] = static_cast<float>(NumberFromJson(numbers[i]));
  tensor.value = Cast(std::move(builder).Build(), aval.dtype);
  return tensor;
}

absl::StatusOr<FixedCase> ToFixedCase(const Json& json) {
  FixedCase fixed{.compat = json.at("compat"), .tensors = {}};
  for (const std::string& name : fixed.compat) {
    const bool known = std::any_of(CompatFields().begin(), CompatFields().end(),
                                   [&](const CompatField& field) { return field.name == name; });
    if (!known) return absl::InvalidArgumentError(absl::StrCat("Compat has no field ", name));
  }
  if (json.contains("error")) {
    fixed.error = json["error"];
  } else {
    for (const auto& [name, tensor] : json.at("tensors").items()) {
      AQT_ASSIGN_OR_RETURN(fixed.tensors[name], ToFixedTensor(tensor));
    }
  }
  if (fixed.compat.empty() || (fixed.tensors.empty() && fixed.error.empty())) {
    return absl::InvalidArgumentError("an entry needs a field of Compat and a tensor or an error");
  }
  return fixed;
}

Json ToJson(const FixedCase& fixed) {
  if (!fixed.error.empty()) return {{"compat", fixed.compat}, {"error", fixed.error}};
  Json tensors = Json::object();
  for (const auto& [name, tensor] : fixed.tensors) {
    Json& json = tensors[name];
    json["aval"] = tensor.aval;
    if (!tensor.value.has_value()) {
      json["sha256"] = tensor.sha256;
      continue;
    }
    json["values"] = Json::array();
    const Array f32 = Cast(*tensor.value, DType::kF32);
    for (const float value : f32.View<float>()) json["values"].push_back(NumberToJson(value));
  }
  return {{"compat", fixed.compat}, {"tensors", std::move(tensors)}};
}

absl::Status Annotated(const std::string& path, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
}

absl::StatusOr<Json> ReadJson(const io::FileSystem& fs, const std::string& path) {
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxFileBytes));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Annotated(path, "is not a JSON object");
  return json;
}

}  // namespace

FixedTensor MakeFixedTensor(const Array& value, const Tolerance& tolerance) {
  FixedTensor tensor{.aval = value.aval().ToString(), .sha256 = "", .value = std::nullopt};
  const DType dtype = value.dtype();
  const bool values = tolerance.kind != Tolerance::Kind::kExact &&
                      (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16);
  if (values) {
    tensor.value = value;
  } else {
    tensor.sha256 = DigestOf(value);
  }
  return tensor;
}

std::optional<std::string> Compare(const Array& got, const FixedTensor& want, const Tolerance& tolerance) {
  if (want.value.has_value()) return Compare(got, *want.value, tolerance);
  if (got.aval().ToString() != want.aval) return absl::StrCat("is ", got.aval().ToString(), ", want ", want.aval);
  const std::string digest = DigestOf(got);
  if (digest == want.sha256) return std::nullopt;
  return absl::StrCat("has the SHA-256 ", digest, ", want ", want.sha256);
}

absl::StatusOr<FixedList> LoadFixedList(const io::FileSystem& fs, const std::string& path, Arithmetic arithmetic) {
  AQT_ASSIGN_OR_RETURN(const Json json, ReadJson(fs, path));
  FixedList list;
  const std::string section(ToString(arithmetic));
  if (!json.contains(section)) return list;
  std::string name;
  try {
    for (const auto& [key, value] : json[section].items()) {
      name = key;
      absl::StatusOr<FixedCase> fixed = ToFixedCase(value);
      if (!fixed.ok()) return Annotated(path, absl::StrCat(name, ": ", fixed.status().message()));
      list.emplace(name, *std::move(fixed));
    }
  } catch (const nlohmann::json::exception& error) {
    return Annotated(path, absl::StrCat(name, ": ", error.what()));
  }
  return list;
}

absl::Status SaveFixedList(const io::FileSystem& fs, const std::string& path, Arithmetic arithmetic,
                           const FixedList& list) {
  Json json = Json::object();
  const absl::StatusOr<Json> old = ReadJson(fs, path);
  if (old.ok()) {
    json = *old;
  } else if (!absl::IsNotFound(old.status())) {
    return old.status();
  }
  Json& section = json[std::string(ToString(arithmetic))];
  section = Json::object();
  for (const auto& [name, fixed] : list) section[name] = ToJson(fixed);
  // A line for each tensor.
  std::string text = "{\n";
  for (auto arithmetic_entry = json.begin(); arithmetic_entry != json.end(); ++arithmetic_entry) {
    absl::StrAppend(&text, arithmetic_entry == json.begin() ? "" : ",\n", " ", Json(arithmetic_entry.key()).dump(),
                    ": {");
    for (auto entry = arithmetic_entry->begin(); entry != arithmetic_entry->end(); ++entry) {
      absl::StrAppend(&text, entry == arithmetic_entry->begin() ? "\n" : ",\n", "  ", Json(entry.key()).dump(),
                      ": {\"compat\": ", entry->at("compat").dump());
      if (entry->contains("error")) {
        absl::StrAppend(&text, ", \"error\": ", entry->at("error").dump(), "}");
        continue;
      }
      absl::StrAppend(&text, ", \"tensors\": {");
      const Json& tensors = entry->at("tensors");
      for (auto tensor = tensors.begin(); tensor != tensors.end(); ++tensor) {
        absl::StrAppend(&text, tensor == tensors.begin() ? "\n" : ",\n", "   ", Json(tensor.key()).dump(), ": ",
                        tensor->dump());
      }
      absl::StrAppend(&text, "}}");
    }
    absl::StrAppend(&text, "}");
  }
  absl::StrAppend(&text, "\n}\n");
  return io::WriteFile(fs, path, text, {.overwrite = true});
}

}  // namespace aqt::golden
