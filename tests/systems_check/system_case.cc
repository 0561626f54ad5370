#include "tests/systems_check/system_case.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/tensors/safetensors.h"

namespace aqt::systems {
namespace {

constexpr const char* kAreas[] = {"scalify", "jaxamp", "fp8layers"};
constexpr char kFormat[] = "systems-golden/1";

std::string ManifestPath(absl::string_view dir, absl::string_view area) {
  return absl::StrCat(dir, "/", area, ".json");
}

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// Reads the values of one area.
class Reader {
 public:
  explicit Reader(io::SafetensorsReader tensors) : tensors_(std::move(tensors)) {}

  absl::StatusOr<SystemValue::Dict> Dict(const Json& json) const {
    SystemValue::Dict dict;
    for (const auto& [key, value] : json.items()) {
      AQT_ASSIGN_OR_RETURN(dict[key], Value(value));
    }
    return dict;
  }

 private:
  absl::StatusOr<Array> Tensor(const std::string& key) const {
    const io::TensorInfo* info = tensors_.Find(key);
    if (info == nullptr) return absl::InvalidArgumentError(absl::StrCat("tensor ", key, " is not in the file"));
    return tensors_.ReadArray(*info);
  }

  absl::StatusOr<SystemValue> Value(const Json& json) const {
    const std::string kind = json.at("kind");
    if (kind == "array") {
      AQT_ASSIGN_OR_RETURN(Array array, Tensor(json.at("tensor")));
      return SystemValue(std::move(array));
    }
    if (kind == "scaled") {
      ScaledArrays scaled;
      AQT_ASSIGN_OR_RETURN(scaled.data, Tensor(json.at("data")));
      AQT_ASSIGN_OR_RETURN(scaled.scale, Tensor(json.at("scale")));
      return SystemValue(std::move(scaled));
    }
    if (kind == "list") {
      SystemValue::List list;
      for (const Json& item : json.at("items")) {
        AQT_ASSIGN_OR_RETURN(list.emplace_back(), Value(item));
      }
      return SystemValue(std::move(list));
    }
    if (kind == "dict") {
      AQT_ASSIGN_OR_RETURN(SystemValue::Dict dict, Dict(json.at("items")));
      return SystemValue(std::move(dict));
    }
    return absl::InvalidArgumentError(absl::StrCat("unknown kind of value ", kind));
  }

  const io::SafetensorsReader tensors_;
};

absl::StatusOr<SystemCase> ReadCase(const Reader& reader, const Json& json) {
  SystemCase result;
  result.name = json.at("name");
  result.config = json.value("config", Json::object());
  result.tolerance = json.value("tolerance", Json::object());
  result.expects_error = json.contains("expect_error");
  if (json.contains("compat")) result.compat = json.at("compat").get<std::vector<std::string>>();
  if (json.contains("inputs")) {
    AQT_ASSIGN_OR_RETURN(result.inputs, reader.Dict(json.at("inputs")));
  }
  if (!result.expects_error) {
    AQT_ASSIGN_OR_RETURN(result.expected, reader.Dict(json.at("expected")));
  }
  return result;
}

absl::StatusOr<SystemArea> LoadArea(const io::FileSystem& fs, absl::string_view dir, const std::string& name) {
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, ManifestPath(dir, name), kMaxFileBytes));
  SystemArea area{.name = name, .cases = {}};
  try {
    const Json manifest = Json::parse(text);
    if (manifest.at("format") != kFormat) {
      return absl::InvalidArgumentError(
          absl::StrCat("the format is ", manifest.at("format").dump(), ", expected \"", kFormat, "\""));
    }
    const std::string file = manifest.at("tensor_file");
    AQT_ASSIGN_OR_RETURN(io::SafetensorsReader tensors, io::SafetensorsReader::Open(fs, absl::StrCat(dir, "/", file)));
    const Reader reader(std::move(tensors));
    for (const Json& json : manifest.at("cases")) {
      absl::StatusOr<SystemCase> one = ReadCase(reader, json);
      if (!one.ok()) return Annotate(one.status(), json.value("name", "a case"));
      area.cases.push_back(*std::move(one));
    }
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(e.what());
  }
  return area;
}

}  // namespace

absl::StatusOr<Array> SystemCase::Input(absl::string_view input) const {
  const auto it = inputs.find(std::string(input));
  if (it == inputs.end()) return absl::InvalidArgumentError(absl::StrCat("the case has no input ", input));
  if (const Array* array = std::get_if<Array>(&it->second.of)) return *array;
  return absl::InvalidArgumentError(absl::StrCat("the input ", input, " is no array"));
}

absl::StatusOr<DType> DTypeOf(const std::string& name) {
  if (name == "f16" || name == "float16") return DType::kF16;
  if (name == "bf16" || name == "bfloat16") return DType::kBF16;
  if (name == "f32" || name == "float32") return DType::kF32;
  if (name == "e4m3fn") return DType::kE4M3FN;
  if (name == "e5m2") return DType::kE5M2;
  return absl::UnimplementedError(absl::StrCat("dtype ", name));
}

bool HasSystems(const io::FileSystem& fs, absl::string_view dir) {
  return std::any_of(std::begin(kAreas), std::end(kAreas),
                     [&](const char* area) { return fs.Stat(ManifestPath(dir, area)).ok(); });
}

absl::StatusOr<std::vector<SystemArea>> LoadSystems(const io::FileSystem& fs, absl::string_view dir,
                                                    const std::vector<std::string>& areas) {
  for (const std::string& area : areas) {
    if (std::find(std::begin(kAreas), std::end(kAreas), area) == std::end(kAreas)) {
      return absl::InvalidArgumentError(absl::StrCat("no area ", area, "; there are ", absl::StrJoin(kAreas, ", ")));
    }
  }
  std::vector<SystemArea> result;
  for (const std::string area : kAreas) {
    const bool is_named = std::find(areas.begin(), areas.end(), area) != areas.end();
    if (!areas.empty() && !is_named) continue;
    if (areas.empty() && !fs.Stat(ManifestPath(dir, area)).ok()) continue;
    absl::StatusOr<SystemArea> loaded = LoadArea(fs, dir, area);
    if (!loaded.ok()) return Annotate(loaded.status(), ManifestPath(dir, area));
    result.push_back(*std::move(loaded));
  }
  return result;
}

}  // namespace aqt::systems
