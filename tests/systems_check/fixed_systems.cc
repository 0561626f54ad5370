#include "tests/systems_check/fixed_systems.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "tests/systems_check/systems_compat.h"

namespace aqt::systems {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 26;

const SystemsSwitch* SwitchOf(absl::string_view name) {
  for (const SystemsSwitch& one : SystemsSwitches()) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

// ---- writing

// A number that reads back as the same value of its dtype.
std::string NumberText(double value, DType dtype) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  const int digits = dtype == DType::kF16 || dtype == DType::kBF16 ? 5 : dtype == DType::kF64 ? 17 : 9;
  return IsFloat(dtype) ? absl::StrFormat("%.*g", digits, value) : absl::StrFormat("%.0f", value);
}

std::string TextOf(const Array& array) {
  const Array numbers = Cast(array, DType::kF64);
  return absl::StrCat(
      "{\"aval\": \"", array.aval().ToString(), "\", \"values\": [",
      absl::StrJoin(numbers.View<double>(), ", ",
                    [&](std::string* out, double v) { absl::StrAppend(out, NumberText(v, array.dtype())); }),
      "]}");
}

std::string TextOf(const SystemValue& value);

std::string TextOf(const SystemValue::Dict& dict) {
  return absl::StrCat("{",
                      absl::StrJoin(dict, ", ",
                                    [](std::string* out, const auto& item) {
                                      absl::StrAppend(out, Json(item.first).dump(), ": ", TextOf(item.second));
                                    }),
                      "}");
}

std::string TextOf(const SystemValue& value) {
  if (const Array* array = std::get_if<Array>(&value.of)) {
    return absl::StrCat("{\"kind\": \"array\", \"array\": ", TextOf(*array), "}");
  }
  if (const ScaledArrays* scaled = std::get_if<ScaledArrays>(&value.of)) {
    return absl::StrCat("{\"kind\": \"scaled\", \"data\": ", TextOf(scaled->data),
                        ", \"scale\": ", TextOf(scaled->scale), "}");
  }
  if (const SystemValue::List* list = std::get_if<SystemValue::List>(&value.of)) {
    return absl::StrCat(
        "{\"kind\": \"list\", \"items\": [",
        absl::StrJoin(*list, ", ",
                      [](std::string* out, const SystemValue& item) { absl::StrAppend(out, TextOf(item)); }),
        "]}");
  }
  return absl::StrCat("{\"kind\": \"dict\", \"items\": ", TextOf(std::get<SystemValue::Dict>(value.of)), "}");
}

std::string TextOf(const FixedSystemCase& fixed) {
  std::string text = absl::StrCat("{\"compat\": ", Json(fixed.compat).dump(), ", \"reason\": ");
  const std::string reasons = absl::StrJoin(fixed.compat, "; ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, SwitchOf(name)->reason);
  });
  absl::StrAppend(&text, Json(reasons).dump());
  if (fixed.error) return absl::StrCat(text, ", \"error\": true}");
  absl::StrAppend(&text, ", \"expected\": {");
  absl::StrAppend(&text, absl::StrJoin(fixed.expected, ",", [](std::string* out, const auto& item) {
    absl::StrAppend(out, "\n   ", Json(item.first).dump(), ": ", TextOf(item.second));
  }));
  return absl::StrCat(text, "}}");
}

// ---- reading

double NumberOf(const Json& json) {
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  return json.get<double>();
}

absl::StatusOr<Array> ArrayOf(const Json& json) {
  const std::string aval = json.at("aval");
  const size_t bracket = aval.find('[');
  const std::optional<DType> dtype = DTypeFromString(aval.substr(0, bracket));
  if (!dtype.has_value() || bracket == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", aval, "\" is no dtype and shape"));
  }
  const Shape shape(Json::parse(aval.substr(bracket)).get<std::vector<int64_t>>());
  const Json& values = json.at("values");
  if (static_cast<int64_t>(values.size()) != shape.num_elements()) {
    return absl::InvalidArgumentError(absl::StrCat(aval, " has ", values.size(), " values"));
  }
  ArrayBuilder numbers(DType::kF64, shape);
  for (size_t i = 0; i < values.size(); ++i) numbers.Mutable<double>()[i] = NumberOf(values[i]);
  return Cast(std::move(numbers).Build(), *dtype);
}

absl::StatusOr<SystemValue> ValueOf(const Json& json);

absl::StatusOr<SystemValue::Dict> DictOf(const Json& json) {
  SystemValue::Dict dict;
  for (const auto& [key, value] : json.items()) {
    AQT_ASSIGN_OR_RETURN(dict[key], ValueOf(value));
  }
  return dict;
}

absl::StatusOr<SystemValue> ValueOf(const Json& json) {
  const std::string kind = json.at("kind");
  if (kind == "array") {
    AQT_ASSIGN_OR_RETURN(Array array, ArrayOf(json.at("array")));
    return SystemValue(std::move(array));
  }
  if (kind == "scaled") {
    ScaledArrays scaled;
    AQT_ASSIGN_OR_RETURN(scaled.data, ArrayOf(json.at("data")));
    AQT_ASSIGN_OR_RETURN(scaled.scale, ArrayOf(json.at("scale")));
    return SystemValue(std::move(scaled));
  }
  if (kind == "list") {
    SystemValue::List list;
    for (const Json& item : json.at("items")) {
      AQT_ASSIGN_OR_RETURN(list.emplace_back(), ValueOf(item));
    }
    return SystemValue(std::move(list));
  }
  if (kind == "dict") {
    AQT_ASSIGN_OR_RETURN(SystemValue::Dict dict, DictOf(json.at("items")));
    return SystemValue(std::move(dict));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown kind of value ", kind));
}

absl::StatusOr<FixedSystemCase> CaseOf(const Json& json) {
  FixedSystemCase fixed{.compat = json.at("compat").get<std::vector<std::string>>()};
  for (const std::string& name : fixed.compat) {
    if (SwitchOf(name) == nullptr) return absl::InvalidArgumentError(absl::StrCat("there is no switch ", name));
  }
  if (fixed.compat.empty() || json.at("reason").get<std::string>().empty()) {
    return absl::InvalidArgumentError("an entry needs a switch and a reason");
  }
  fixed.error = json.contains("error");
  if (fixed.error) return fixed;
  AQT_ASSIGN_OR_RETURN(fixed.expected, DictOf(json.at("expected")));
  return fixed;
}

}  // namespace

absl::StatusOr<FixedSystems> LoadFixedSystems(const io::FileSystem& fs, const std::string& path) {
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxFileBytes));
  FixedSystems list;
  std::string where = path;
  try {
    const Json json = Json::parse(text);
    for (const auto& [area, cases] : json.items()) {
      for (const auto& [name, value] : cases.items()) {
        where = absl::StrCat(path, ": ", area, " ", name);
        absl::StatusOr<FixedSystemCase> fixed = CaseOf(value);
        if (!fixed.ok()) return Annotate(fixed.status(), where);
        list[area].emplace(name, *std::move(fixed));
      }
    }
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", error.what()));
  }
  return list;
}

absl::Status SaveFixedSystems(const io::FileSystem& fs, const std::string& path, const FixedSystems& list) {
  const auto write_case = [](std::string* out, const auto& item) {
    absl::StrAppend(out, "\n  ", Json(item.first).dump(), ": ", TextOf(item.second));
  };
  const auto write_area = [&](std::string* out, const auto& item) {
    absl::StrAppend(out, "\n ", Json(item.first).dump(), ": {", absl::StrJoin(item.second, ",", write_case), "}");
  };
  return io::WriteFile(fs, path, absl::StrCat("{", absl::StrJoin(list, ",", write_area), "\n}\n"), {.overwrite = true});
}

}  // namespace aqt::systems
