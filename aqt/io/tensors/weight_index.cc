#include "aqt/io/tensors/weight_index.h"

#include <algorithm>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

constexpr char kMetadataKey[] = "metadata";
constexpr char kTotalSizeKey[] = "total_size";
constexpr char kWeightMapKey[] = "weight_map";
// Only values that are kept as text can nest deeper.
constexpr int kMaxDepth = 64;

absl::Status CheckShardName(absl::string_view name, absl::string_view suffix) {
  if (!absl::EndsWith(name, suffix) || name.find_first_of(absl::string_view("/\\\0", 3)) != absl::string_view::npos) {
    return absl::DataLossError(absl::StrCat("weight_map names the file ", QuoteForMessage(name),
                                            "; a name in the same folder that ends in ", suffix, " is expected"));
  }
  return absl::OkStatus();
}

// Extracts `weight_map` from the events of an index's text, an object without duplicate keys; skips everything else.
class IndexHandler final : public JsonHandler {
 public:
  explicit IndexHandler(absl::string_view suffix) : suffix_(suffix) {}

  WeightMap weight_map;

  absl::Status StartObject() override {
    if (InMap()) return NotAName();
    ++depth_;
    return absl::OkStatus();
  }
  absl::Status EndObject() override {
    --depth_;
    return absl::OkStatus();
  }
  absl::Status StartArray() override {
    if (root_key_ == kWeightMapKey) return NotAName();
    ++depth_;
    return absl::OkStatus();
  }
  absl::Status EndArray() override { return EndObject(); }

  absl::Status Key(std::string& key) override {
    if (depth_ == 1) root_key_ = std::move(key);
    if (InMap()) tensor_ = std::move(key);
    return absl::OkStatus();
  }

  absl::Status Scalar(const JsonScalar& value) override {
    if (root_key_ != kWeightMapKey) return absl::OkStatus();
    if (!InMap() || value.kind != JsonScalar::kString) return NotAName();
    AQT_RETURN_IF_ERROR(CheckShardName(*value.string, suffix_));
    weight_map.emplace_back(std::move(tensor_), std::move(*value.string));
    return absl::OkStatus();
  }

 private:
  bool InMap() const { return depth_ == 2 && root_key_ == kWeightMapKey; }
  absl::Status NotAName() const {
    return absl::DataLossError("weight_map is not an object of tensor names and file names");
  }

  const absl::string_view suffix_;
  int depth_ = 0;  // number of open objects and arrays
  std::string root_key_;
  std::string tensor_;
};

// The members of the object `text`, except those with these keys.
IndexExtras::Members MembersWithout(const JsonObjectText& object, absl::string_view text,
                                    std::initializer_list<absl::string_view> keys) {
  IndexExtras::Members result;
  for (const JsonObjectText::Member& member : object.members) {
    if (std::find(keys.begin(), keys.end(), member.key) != keys.end()) continue;
    result.emplace_back(member.key, text.substr(member.begin, member.end - member.begin));
  }
  return result;
}

// The members, each preceded by a comma; the values keep their line breaks.
absl::Status AppendMembers(const IndexExtras::Members& members, absl::string_view indent, std::string* json) {
  for (const auto& [key, value] : members) {
    AQT_ASSIGN_OR_RETURN(const std::string quoted, JsonQuote(key));
    absl::StrAppend(json, ",\n", indent, quoted, ": ", value);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightMap> ParseIndex(absl::string_view json, IndexExtras* extras, absl::string_view suffix) {
  AQT_ASSIGN_OR_RETURN(const JsonObjectText object, ScanJsonObject(json, kMaxDepth));
  IndexHandler handler(suffix);
  AQT_RETURN_IF_ERROR(ParseJson(object.standard, kMaxDepth, handler));
  if (handler.weight_map.empty()) return absl::DataLossError("weight_map is missing or empty");
  if (extras != nullptr) {
    extras->members = MembersWithout(object, json, {kMetadataKey, kWeightMapKey});
    for (const JsonObjectText::Member& member : object.members) {
      if (member.key != kMetadataKey) continue;
      const absl::string_view text = json.substr(member.begin, member.end - member.begin);
      const absl::StatusOr<JsonObjectText> metadata = ScanJsonObject(text, kMaxDepth);
      if (metadata.ok()) extras->metadata = MembersWithout(*metadata, text, {kTotalSizeKey});
    }
  }
  return std::move(handler.weight_map);
}

absl::StatusOr<std::string> MakeIndex(WeightMap weight_map, int64_t total_size, const IndexExtras& extras) {
  std::sort(weight_map.begin(), weight_map.end());
  std::string json = absl::StrCat("{\n  \"", kMetadataKey, "\": {\n    \"", kTotalSizeKey, "\": ", total_size);
  AQT_RETURN_IF_ERROR(AppendMembers(extras.metadata, "    ", &json));
  json += "\n  }";
  AQT_RETURN_IF_ERROR(AppendMembers(extras.members, "  ", &json));
  absl::StrAppend(&json, ",\n  \"", kWeightMapKey, "\": {");
  const std::string* previous = nullptr;
  for (const auto& [tensor, file] : weight_map) {
    if (previous != nullptr && *previous == tensor) {
      return absl::InvalidArgumentError(absl::StrCat("index: tensor ", QuoteForMessage(tensor), " is given twice"));
    }
    AQT_ASSIGN_OR_RETURN(const std::string quoted_tensor, JsonQuote(tensor));
    AQT_ASSIGN_OR_RETURN(const std::string quoted_file, JsonQuote(file));
    absl::StrAppend(&json, previous == nullptr ? "\n    " : ",\n    ", quoted_tensor, ": ", quoted_file);
    previous = &tensor;
  }
  json += previous == nullptr ? "}\n}\n" : "\n  }\n}\n";
  return json;
}

}  // namespace aqt::io
