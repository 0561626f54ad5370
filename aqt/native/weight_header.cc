#include "aqt/native/weight_header.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "nlohmann/json.hpp"

namespace aqt::native {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 4;
constexpr int kMaxParts = 64;  // scales, biases

absl::Status Wrong(absl::string_view field, absl::string_view expected) {
  return absl::DataLossError(absl::StrCat("field \"", field, "\": expected ", expected));
}

absl::StatusOr<Axes> ReadIntegers(const Json& json, absl::string_view field) {
  if (!json.is_array()) return Wrong(field, "a list of integers");
  Axes integers;
  for (const Json& value : json) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) return Wrong(field, "a list of integers");
    integers.push_back(value.get<int64_t>());
  }
  return integers;
}

absl::StatusOr<int> ReadCount(const Json& json, absl::string_view field, int max) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() > static_cast<uint64_t>(max)) {
    return Wrong(field, absl::StrCat("an integer of at most ", max));
  }
  return json.get<int>();
}

absl::StatusOr<DType> ReadDType(const Json& json, absl::string_view field) {
  const std::optional<DType> dtype =
      json.is_string() ? DTypeFromString(json.get_ref<const std::string&>()) : std::optional<DType>();
  if (!dtype.has_value()) return Wrong(field, "a dtype, such as \"s8\"");
  return *dtype;
}

absl::StatusOr<bool> ReadBool(const Json& json, absl::string_view field) {
  if (!json.is_boolean()) return Wrong(field, "true or false");
  return json.get<bool>();
}

std::vector<int64_t> ToVector(const Axes& axes) { return std::vector<int64_t>(axes.begin(), axes.end()); }

bool HoldsPacked(DType dtype) {
  switch (dtype) {
    case DType::kS2:
    case DType::kS4:
    case DType::kS8:
    case DType::kU8:
    case DType::kS32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32: return true;
    default: return false;
  }
}

}  // namespace

Shape WeightHeader::UntiledShape() const {
  Shape shape;
  for (const Axes& extents : axes) shape.push_back(extents.size() == 2 ? extents[0] * extents[1] : extents[0]);
  return shape;
}

Shape WeightHeader::StoredShape() const {
  Shape shape;
  for (const Axes& extents : axes) {
    for (const int64_t extent : extents) shape.push_back(extent);
  }
  return shape;
}

std::optional<TilingState> WeightHeader::Tiling() const {
  TilingState state{.untiled_shape = UntiledShape(), .tiled_shape = StoredShape()};
  int64_t next = 0;
  for (const Axes& extents : axes) {
    Axes& places = state.tile_map.emplace_back();
    for (size_t i = 0; i < extents.size(); ++i) places.push_back(next++);
  }
  if (next == static_cast<int64_t>(axes.size())) return std::nullopt;
  return state;
}

absl::Status CheckHeader(const WeightHeader& header) {
  for (const Axes& extents : header.axes) {
    if (extents.size() != 1 && extents.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("an axis has ", extents.size(), " extents, expected one, or a tile count and a tile size"));
    }
  }
  AQT_RETURN_IF_ERROR(CheckShape(header.StoredShape()));
  std::set<int64_t> seen;
  const int64_t rank = static_cast<int64_t>(header.axes.size());
  for (const Axes* axes : {&header.contracting, &header.remaining}) {
    for (const int64_t axis : *axes) {
      if (axis < 0 || axis >= rank || !seen.insert(axis).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the axis ", axis, " of contracting [", absl::StrJoin(header.contracting, ","), "] and remaining [",
            absl::StrJoin(header.remaining, ","), "] is named twice or is not one of the ", rank, " axes"));
      }
    }
  }
  if (header.bits < 0 || header.bits > 8) {
    return absl::InvalidArgumentError(absl::StrCat("bits is ", header.bits, ", expected 1 to 8, or 0: not packed"));
  }
  if (header.bits > 0 && !HoldsPacked(header.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("bits is ", header.bits, " and the qvalue is ",
                                                   ToString(header.dtype), ", expected bits = 0 for this dtype"));
  }
  if (IsInteger(header.dtype) && header.bits > BitWidth(header.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("bits is ", header.bits, " and the qvalue is ", ToString(header.dtype), ", which has fewer"));
  }
  if (header.half && (header.bits == 0 || !IsFloat(header.dtype))) {
    return absl::InvalidArgumentError("half belongs to packed qvalues with a float dtype");
  }
  if (header.bits == 0 && (header.dtype == DType::kS2 || header.dtype == DType::kS4)) {
    return absl::InvalidArgumentError(absl::StrCat("a qvalue of ", ToString(header.dtype), " must be packed"));
  }
  if (std::max(header.num_scales, header.num_biases) > kMaxParts) {
    return absl::InvalidArgumentError(absl::StrCat("there are more than ", kMaxParts, " scales or biases"));
  }
  const std::string& digest = header.config_digest;
  if (!digest.empty() && (digest.size() != 16 || digest.find_first_not_of("0123456789abcdef") != std::string::npos)) {
    return absl::InvalidArgumentError("the digest of the configuration must have 16 hexadecimal digits in lower case");
  }
  return absl::OkStatus();
}

std::string ToText(const WeightHeader& header) {
  Json axes = Json::array();
  for (const Axes& extents : header.axes) axes.push_back(ToVector(extents));
  Json json = {{"dtype", std::string(ToString(header.dtype))}};
  if (header.bits > 0) json["bits"] = header.bits;
  if (header.half) json["half"] = true;
  json["axes"] = std::move(axes);
  json["contracting"] = ToVector(header.contracting);
  json["remaining"] = ToVector(header.remaining);
  json["scales"] = header.num_scales;
  if (header.num_biases > 0) json["biases"] = header.num_biases;
  if (header.has_mask) json["mask"] = true;
  json["dequant_dtype"] = std::string(ToString(header.dequant_dtype));
  if (!header.config_digest.empty()) json["config"] = header.config_digest;
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

absl::StatusOr<WeightHeader> WeightHeaderFromText(absl::string_view text) {
  AQT_ASSIGN_OR_RETURN(const io::JsonObjectText scanned, io::ScanJsonObject(text, kMaxDepth));
  const Json json = Json::parse(scanned.standard, nullptr, /*allow_exceptions=*/false);
  WeightHeader header;
  std::set<std::string> missing = {"dtype", "axes", "contracting", "remaining", "scales", "dequant_dtype"};
  for (const auto& [field, value] : json.items()) {
    missing.erase(field);
    if (field == "dtype") {
      AQT_ASSIGN_OR_RETURN(header.dtype, ReadDType(value, field));
    } else if (field == "bits") {
      AQT_ASSIGN_OR_RETURN(header.bits, ReadCount(value, field, 8));
    } else if (field == "half") {
      AQT_ASSIGN_OR_RETURN(header.half, ReadBool(value, field));
    } else if (field == "axes") {
      if (!value.is_array()) return Wrong(field, "a list of lists of integers");
      for (const Json& extents : value) {
        AQT_ASSIGN_OR_RETURN(header.axes.emplace_back(), ReadIntegers(extents, field));
      }
    } else if (field == "contracting") {
      AQT_ASSIGN_OR_RETURN(header.contracting, ReadIntegers(value, field));
    } else if (field == "remaining") {
      AQT_ASSIGN_OR_RETURN(header.remaining, ReadIntegers(value, field));
    } else if (field == "scales") {
      AQT_ASSIGN_OR_RETURN(header.num_scales, ReadCount(value, field, kMaxParts));
    } else if (field == "biases") {
      AQT_ASSIGN_OR_RETURN(header.num_biases, ReadCount(value, field, kMaxParts));
    } else if (field == "mask") {
      AQT_ASSIGN_OR_RETURN(header.has_mask, ReadBool(value, field));
    } else if (field == "dequant_dtype") {
      AQT_ASSIGN_OR_RETURN(header.dequant_dtype, ReadDType(value, field));
    } else if (field == "config") {
      if (!value.is_string()) return Wrong(field, "16 hexadecimal digits");
      header.config_digest = value.get<std::string>();
    } else {
      return absl::DataLossError(absl::StrCat("the field ", io::QuoteForMessage(field), " is not known"));
    }
  }
  if (!missing.empty()) return absl::DataLossError(absl::StrCat("the field \"", *missing.begin(), "\" is missing"));
  const absl::Status status = CheckHeader(header);
  if (!status.ok()) return absl::DataLossError(status.message());
  return header;
}

}  // namespace aqt::native
