#include "tests/golden_check/manifest.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/quant/config/semantics.h"
#include "nlohmann/json.hpp"
#include "tests/golden_check/parse_config.h"
#include "tests/golden_check/sha256.h"

namespace aqt::golden {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// A logical dtype: its dtype in the file, and in memory.
struct StoredDType {
  absl::string_view name;
  io::FileDType file;
  DType dtype;
};
constexpr StoredDType kDTypes[] = {{"bool", io::FileDType::kBool, DType::kBool},
                                   {"int2", io::FileDType::kI8, DType::kS2},
                                   {"int4", io::FileDType::kI8, DType::kS4},
                                   {"int8", io::FileDType::kI8, DType::kS8},
                                   {"uint8", io::FileDType::kU8, DType::kU8},
                                   {"uint16", io::FileDType::kU16, DType::kU32},
                                   {"int32", io::FileDType::kI32, DType::kS32},
                                   {"uint32", io::FileDType::kU32, DType::kU32},
                                   {"int64", io::FileDType::kI64, DType::kS64},
                                   {"float8_e4m3fn", io::FileDType::kF8E4M3, DType::kE4M3FN},
                                   {"float8_e5m2", io::FileDType::kF8E5M2, DType::kE5M2},
                                   {"float16", io::FileDType::kF16, DType::kF16},
                                   {"bfloat16", io::FileDType::kBF16, DType::kBF16},
                                   {"float32", io::FileDType::kF32, DType::kF32},
                                   {"float64", io::FileDType::kF64, DType::kF64}};

absl::Status Invalid(absl::string_view message) { return absl::InvalidArgumentError(message); }

// The library has no u16: the values become u32.
absl::StatusOr<Array> ReadUint16(const io::SafetensorsReader& reader, const io::TensorInfo& info) {
  std::vector<uint8_t> bytes(info.num_bytes());
  AQT_RETURN_IF_ERROR(reader.Read(info, 0, absl::MakeSpan(bytes)));
  ArrayBuilder builder(DType::kU32, info.shape);
  const absl::Span<uint32_t> values = builder.Mutable<uint32_t>();
  for (size_t i = 0; i < values.size(); ++i) values[i] = bytes[2 * i] | uint32_t{bytes[2 * i + 1]} << 8;
  return std::move(builder).Build();
}

absl::StatusOr<Array> ReadTensor(const io::SafetensorsReader& reader, const Json& entry) {
  const std::string key = entry.at("key"), dtype_name = entry.at("dtype");
  const std::vector<int64_t> extents = entry.at("shape");
  const auto* stored =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const StoredDType& d) { return d.name == dtype_name; });
  if (stored == std::end(kDTypes)) return Invalid(absl::StrCat("tensor ", key, ": unknown dtype ", dtype_name));
  const io::TensorInfo* info = reader.Find(key);
  if (info == nullptr) return Invalid(absl::StrCat("tensor ", key, " is not in ", reader.path()));
  if (info->dtype != stored->file || info->shape != Shape(extents)) {
    return Invalid(absl::StrCat("tensor ", key, " is ", io::ToString(info->dtype), info->shape.ToString(), " in ",
                                reader.path(), ", but ", dtype_name, Shape(extents).ToString(), " in the manifest"));
  }
  if (stored->file == io::FileDType::kU16) return ReadUint16(reader, *info);
  AQT_ASSIGN_OR_RETURN(const Array array, reader.ReadArray(*info));
  if (array.dtype() == stored->dtype) return array;
  // s2 and s4 are one value per byte in memory, too.
  for (const int8_t value : array.View<int8_t>()) {
    if (value < IntegerMin(stored->dtype) || value > IntegerMax(stored->dtype)) {
      return Invalid(absl::StrCat("tensor ", key, ": ", value, " is not ", dtype_name));
    }
  }
  return Array({stored->dtype, array.shape()}, array.buffer());
}

// A number, or "inf".
absl::StatusOr<double> ToNumber(const Json& json) {
  if (json.is_string() && json == "inf") return std::numeric_limits<double>::infinity();
  return json.get<double>();
}

absl::StatusOr<Tolerance> ToTolerance(const Json& json) {
  Tolerance tolerance;
  const std::string kind = json.at("kind");
  if (kind == "exact") {
    tolerance.kind = Tolerance::Kind::kExact;
  } else if (kind == "rtol") {
    tolerance.kind = Tolerance::Kind::kRtol;
    AQT_ASSIGN_OR_RETURN(tolerance.value, ToNumber(json.at("value")));
    AQT_ASSIGN_OR_RETURN(tolerance.atol, ToNumber(json.at("atol")));
  } else if (kind == "units") {
    tolerance.kind = Tolerance::Kind::kUnits;
    tolerance.value = json.at("value").get<double>();
  } else if (kind == "info") {
    tolerance.kind = Tolerance::Kind::kInfo;
  } else {
    return Invalid(absl::StrCat("unknown tolerance kind ", kind));
  }
  for (const auto& [key, value] : json.items()) {
    if (key == "given") {
      tolerance.given = value.get<std::vector<std::string>>();
    } else if (key == "po2") {
      tolerance.po2 = value.get<bool>();
    } else if (key != "kind" && key != "value" && key != "atol" && key != "near_tie" && key != "statistical") {
      // near_tie and statistical give the reason for a wide tolerance.
      return Invalid(absl::StrCat("unknown tolerance field ", key));
    }
  }
  return tolerance;
}

// For a contraction's operand the manifest has the scale dtype that was bound to its calibration. AQT 0.9.0 overwrites
// it with the quantizer's own, which the manifest lacks. If the dtype of the recorded scale differs, the binding had no
// effect.
void DropIneffectiveScaleDTypes(DotGeneralConfig& config, const std::vector<ExpectedTensor>& expected) {
  const std::pair<absl::string_view, TensorConfig*> operands[] = {
      {"fwd.lhs.scale", &config.fwd.lhs},   {"fwd.rhs.scale", &config.fwd.rhs},   {"dlhs.lhs.scale", &config.dlhs.lhs},
      {"dlhs.rhs.scale", &config.dlhs.rhs}, {"drhs.lhs.scale", &config.drhs.lhs}, {"drhs.rhs.scale", &config.drhs.rhs}};
  for (const auto& [name, operand] : operands) {
    std::optional<DType>& dtype = operand->quantizer.scale_dtype;
    for (const ExpectedTensor& tensor : expected) {
      if (tensor.name == name && dtype != tensor.value.dtype()) dtype = std::nullopt;
    }
  }
}

absl::StatusOr<GoldenCase> ToCase(const io::SafetensorsReader& reader, const Json& json) {
  GoldenCase result{.name = json.at(json.contains("name") ? "name" : "case"),
                    .family = json.at("family"),
                    .feature = json.at("feature"),
                    .config = absl::UnimplementedError(""),
                    .inputs = {},
                    .expected = {}};
  const auto annotate = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat("case ", result.name));
  };
  for (const auto& [name, entry] : json.at("inputs").items()) {
    absl::StatusOr<Array> value = ReadTensor(reader, entry);
    if (!value.ok()) return annotate(value.status());
    result.inputs.emplace(name, *std::move(value));
  }
  const Json expected = json.value("expected", Json::object());
  for (const auto& [name, entry] : expected.items()) {
    absl::StatusOr<Array> value = ReadTensor(reader, entry);
    if (!value.ok()) return annotate(value.status());
    absl::StatusOr<Tolerance> tolerance = ToTolerance(entry.at("tol"));
    if (!tolerance.ok()) return annotate(tolerance.status());
    result.expected.push_back({name, *std::move(value), *std::move(tolerance)});
  }
  result.config = ParseConfig(result.feature, json.at("config"), result.inputs);
  if (!result.config.ok() && !absl::IsUnimplemented(result.config.status())) return annotate(result.config.status());
  if (result.config.ok()) {
    if (auto* dot_general = std::get_if<DotConfig>(&*result.config); dot_general != nullptr) {
      DropIneffectiveScaleDTypes(dot_general->config, result.expected);
    }
  }
  return result;
}

absl::StatusOr<GoldenFamily> LoadFamily(const io::FileSystem& fs, const std::string& dir, const std::string& name,
                                        const Json& manifest) {
  const Json& facts = manifest.at("families").at(name);
  const std::string path = io::JoinPath(dir, facts.at("file").get<std::string>());
  {
    AQT_ASSIGN_OR_RETURN(const std::string bytes, io::ReadFile(fs, path, kMaxFileBytes));
    const std::string hash = Sha256Hex(bytes), want = facts.at("sha256");
    if (hash != want) return Invalid(absl::StrCat(path, ": its SHA-256 is ", hash, ", but ", want, " in the manifest"));
  }
  AQT_ASSIGN_OR_RETURN(const io::SafetensorsReader reader, io::SafetensorsReader::Open(fs, path));
  GoldenFamily family{name, {}, {}};
  for (const Json& entry : manifest.at("cases")) {
    if (entry.at("family") != name) continue;
    AQT_ASSIGN_OR_RETURN(GoldenCase golden_case, ToCase(reader, entry));
    if (golden_case.expected.empty()) {
      return Invalid(absl::StrCat("case ", golden_case.name, ": nothing is expected of it"));
    }
    family.cases.push_back(std::move(golden_case));
  }
  for (const Json& entry : manifest.value("unsupported", Json::array())) {
    if (entry.value("family", "") != name) continue;  // some recordings have only the names of such cases
    AQT_ASSIGN_OR_RETURN(GoldenCase golden_case, ToCase(reader, entry));
    family.refused.push_back({std::move(golden_case), entry.at("error")});
  }
  if (family.cases.size() != facts.at("cases") || reader.tensors().size() != facts.at("tensors")) {
    return Invalid(absl::StrCat("family ", name, " has ", family.cases.size(), " cases and ", reader.tensors().size(),
                                " tensors, but ", facts.at("cases").dump(), " and ", facts.at("tensors").dump(),
                                " by the manifest"));
  }
  return family;
}

absl::StatusOr<Semantics> ToSemantics(const Json& manifest) {
  if (manifest.at("format_version") != 1) {
    return Invalid(absl::StrCat("format_version is ", manifest["format_version"].dump(), ", expected 1"));
  }
  Semantics semantics{.compat = Compat::Original()};
  const std::string arithmetic = manifest.at("arithmetic");
  if (arithmetic == "ieee") {
    semantics.arithmetic = Arithmetic::kIeee;
  } else if (arithmetic != "xla") {
    return Invalid(absl::StrCat("arithmetic is ", arithmetic, ", expected xla or ieee"));
  }
  if (!manifest.at("jax_threefry_partitionable").get<bool>()) semantics.prng_layout = PrngLayout::kOriginal;
  return semantics;
}

absl::StatusOr<GoldenSet> Load(const io::FileSystem& fs, const std::string& dir, const Json& manifest,
                               absl::Span<const std::string> families) {
  GoldenSet set;
  AQT_ASSIGN_OR_RETURN(set.semantics, ToSemantics(manifest));
  const Json& known = manifest.at("families");
  for (const std::string& name : families) {
    if (known.contains(name)) continue;
    std::vector<std::string> names;
    for (const auto& [key, value] : known.items()) names.push_back(key);
    return Invalid(absl::StrCat("there is no family ", name, "; there are ", Json(names).dump()));
  }
  for (const auto& [name, facts] : known.items()) {
    if (!families.empty() && std::find(families.begin(), families.end(), name) == families.end()) continue;
    AQT_ASSIGN_OR_RETURN(GoldenFamily family, LoadFamily(fs, dir, name, manifest));
    set.families.push_back(std::move(family));
  }
  if (set.families.empty()) return Invalid("there are no families");
  return set;
}

}  // namespace

absl::StatusOr<GoldenSet> LoadGolden(const io::FileSystem& fs, const std::string& dir,
                                     absl::Span<const std::string> families) {
  const std::string path = io::JoinPath(dir, "manifest.json");
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxFileBytes));
  try {
    absl::StatusOr<GoldenSet> set = Load(fs, dir, Json::parse(text), families);
    return set.ok() ? std::move(set) : Annotate(set.status(), path);
  } catch (const nlohmann::json::exception& error) {
    return Invalid(absl::StrCat(path, ": ", error.what()));
  }
}

}  // namespace aqt::golden
