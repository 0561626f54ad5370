#include "serving/compare/diff_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "serving/convert/carried_files.h"
#include "serving/formats/model_config.h"
#include "serving/plan/plan.h"
#include "serving/plan/whole_checkpoint.h"
#include "serving/tools/report_json-inl.h"

namespace aqt::serving {
namespace {

constexpr int kMaxJsonDepth = 64;

// The object that ReadConfigFile or ReadModelConfig has checked.
absl::StatusOr<ReportJson> Parse(const std::string& text) {
  AQT_ASSIGN_OR_RETURN(const io::JsonObjectText object, io::ScanJsonObject(text, kMaxJsonDepth));
  return ReportJson::parse(object.standard, nullptr, /*allow_exceptions=*/false);
}

std::string ToText(const ReportJson* value) {
  return value == nullptr ? "" : value->dump(-1, ' ', /*ensure_ascii=*/false, ReportJson::error_handler_t::replace);
}

// Null: the member is absent.
void DiffValues(const std::string& key, const ReportJson* a, const ReportJson* b, std::vector<ConfigDiff>& diffs) {
  if (a == nullptr || b == nullptr || !a->is_object() || !b->is_object()) {
    if (a == nullptr || b == nullptr || *a != *b) diffs.push_back({key, ToText(a), ToText(b)});
    return;
  }
  const auto member = [](const ReportJson& object, const std::string& name) {
    const auto it = object.find(name);
    return it == object.end() ? nullptr : &*it;
  };
  const auto path = [&](const std::string& name) { return key.empty() ? name : absl::StrCat(key, ".", name); };
  for (const auto& [name, value] : a->items()) DiffValues(path(name), &value, member(*b, name), diffs);
  for (const auto& [name, value] : b->items()) {
    if (member(*a, name) == nullptr) DiffValues(path(name), nullptr, &value, diffs);
  }
}

// Compares two config.json, or the quantization_config alone.
absl::Status DiffConfigs(const io::FileSystem& fs, const io::Checkpoint& a, const io::Checkpoint& b,
                         std::vector<ConfigDiff>& diffs) {
  if (a.is_folder() && b.is_folder()) {
    AQT_ASSIGN_OR_RETURN(const std::string text_a, ReadConfigFile(fs, ConfigFileOf(a)));
    AQT_ASSIGN_OR_RETURN(const std::string text_b, ReadConfigFile(fs, ConfigFileOf(b)));
    AQT_ASSIGN_OR_RETURN(const ReportJson json_a, Parse(text_a.empty() ? "{}" : text_a));
    AQT_ASSIGN_OR_RETURN(const ReportJson json_b, Parse(text_b.empty() ? "{}" : text_b));
    DiffValues("", &json_a, &json_b, diffs);
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(const ModelConfig model_a, ReadModelConfig(fs, a));
  AQT_ASSIGN_OR_RETURN(const ModelConfig model_b, ReadModelConfig(fs, b));
  const std::string text_a = model_a.quantization_config.value_or(""),
                    text_b = model_b.quantization_config.value_or("");
  if (text_a == text_b) return absl::OkStatus();
  absl::StatusOr<ReportJson> json_a = Parse(text_a), json_b = Parse(text_b);
  if (!json_a.ok() || !json_b.ok()) {
    diffs.push_back({kQuantizationConfigKey, text_a, text_b});
  } else {
    DiffValues(kQuantizationConfigKey, &*json_a, &*json_b, diffs);
  }
  return absl::OkStatus();
}

// Key -> the values that it has in the files of a checkpoint. DiffConfigs compares the quantization_config.
std::map<std::string, std::set<std::string>> MetadataOf(const io::TensorSource& source) {
  std::map<std::string, std::set<std::string>> metadata;
  for (const io::TensorSource::Shard& shard : source.shards()) {
    for (const auto& [key, value] : shard.metadata) {
      if (key != kQuantizationConfigKey) metadata[key].insert(value);
    }
  }
  return metadata;
}

void DiffMetadata(const io::TensorSource& a, const io::TensorSource& b, std::vector<std::string>& notes) {
  const auto of_a = MetadataOf(a), of_b = MetadataOf(b);
  std::set<std::string> keys;
  for (const auto* metadata : {&of_a, &of_b}) {
    for (const auto& [key, values] : *metadata) keys.insert(key);
  }
  const auto text = [](const auto& metadata, const std::string& key) {
    const auto it = metadata.find(key);
    if (it == metadata.end()) return std::string("absent");
    return absl::StrJoin(it->second, " and ", [](std::string* out, const std::string& value) {
      absl::StrAppend(out, "\"", io::Printable(value), "\"");
    });
  };
  for (const std::string& key : keys) {
    const auto value_a = of_a.find(key), value_b = of_b.find(key);
    if (value_a != of_a.end() && value_b != of_b.end() && value_a->second == value_b->second) continue;
    notes.push_back(
        absl::StrCat("metadata ", io::Printable(key), ": ", text(of_a, key), " in A, ", text(of_b, key), " in B"));
  }
}

// Other files are named, and compared byte for byte.
absl::Status DiffOtherFiles(const io::FileSystem& fs, const io::Checkpoint& a, const io::Checkpoint& b,
                            const std::atomic<bool>* cancelled, std::vector<std::string>& notes) {
  if (!a.is_folder() || !b.is_folder()) return absl::OkStatus();
  const auto only = [&](const io::Checkpoint& here, const io::Checkpoint& there, absl::string_view name) {
    for (const std::string& file : here.other_files()) {
      if (file == kConfigFile || absl::c_binary_search(there.other_files(), file)) continue;
      notes.push_back(absl::StrCat("only in ", name, ": ", io::Printable(file)));
    }
  };
  only(a, b, "A");
  only(b, a, "B");
  for (const std::string& file : a.other_files()) {
    if (file == kConfigFile || !absl::c_binary_search(b.other_files(), file)) continue;
    AQT_ASSIGN_OR_RETURN(const bool same,
                         SameBytes(fs, io::JoinPath(a.path(), file), io::JoinPath(b.path(), file), cancelled));
    if (!same) notes.push_back(absl::StrCat(io::Printable(file), " differs"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DiffFiles(const io::FileSystem& fs, const io::Checkpoint& a, const io::Checkpoint& b,
                       bool ignore_quantization, const std::atomic<bool>* cancelled, DiffReport& report) {
  AQT_RETURN_IF_ERROR(DiffConfigs(fs, a, b, report.config));
  if (ignore_quantization) {
    const bool erased = std::erase_if(report.config, [](const ConfigDiff& diff) {
                          return absl::StartsWith(diff.key, kQuantizationConfigKey);
                        }) > 0;
    if (erased) report.notes.push_back("the quantization_config differs");
  }
  DiffMetadata(a, b, report.notes);
  if (a.shard_names() != b.shard_names() && (a.shards().size() > 1 || b.shards().size() > 1)) {
    report.notes.push_back(absl::StrCat("the tensors are in ", a.shards().size(), " and in ", b.shards().size(),
                                        " files, of other names"));
  }
  return DiffOtherFiles(fs, a, b, cancelled, report.notes);
}

}  // namespace aqt::serving
