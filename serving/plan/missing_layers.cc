// Finds layers that config.json counts and the checkpoint does not have.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "nlohmann/json.hpp"
#include "serving/plan/whole_checkpoint.h"

namespace aqt::serving {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxLayers = 100'000;  // the largest plausible number

// The names of a list of layers: the part of a name before a layer's number.
constexpr absl::string_view kListNames[] = {
    "layers", "layer", "h", "blocks", "block", "resblocks", "transformer_blocks"};
// The keys of their number in a config.json.
constexpr absl::string_view kCountNames[] = {"num_hidden_layers",
                                             "num_layers",
                                             "n_layer",
                                             "n_layers",
                                             "num_transformer_layers",
                                             "depth",
                                             "encoder_layers",
                                             "decoder_layers",
                                             "num_encoder_layers",
                                             "num_decoder_layers"};
// Parts of a model, by words in names and in the keys of nested configurations.
struct Part {
  absl::string_view name;
  absl::string_view word;
};
constexpr Part kParts[] = {{"vision", "vision"}, {"vision", "visual"},      {"vision", "image"}, {"vision", "vit"},
                           {"vision", "vpm"},    {"audio", "audio"},        {"audio", "speech"}, {"audio", "apm"},
                           {"talker", "talker"}, {"code", "code_predictor"}};
constexpr absl::string_view kMain = "";
// Nested configurations of the main part.
constexpr absl::string_view kMainWords[] = {"text", "llm",          "language",      "thinker",
                                            "lm",   "llm_backbone", "language_model"};

// A number of layers in config.json.
struct Count {
  std::string key;   // "text_config.num_hidden_layers"
  std::string part;  // kMain, or a word in the names of the layers
  std::string side;  // "encoder", "decoder", or empty for either
  int64_t layers = 0;
  bool nested = false;
};

std::string PartOf(absl::string_view text) {
  for (const Part& part : kParts) {
    if (absl::StrContains(text, part.word)) return std::string(part.name);
  }
  return std::string(kMain);
}

// The part that a nested configuration describes; `above` is the part of the enclosing one.
std::string PartOfConfig(absl::string_view key, const std::string& above) {
  absl::string_view word = key;
  if (!absl::ConsumeSuffix(&word, "_config")) absl::ConsumeSuffix(&word, "_cfg");
  if (std::string part = PartOf(word); part != kMain) return part;
  return absl::c_linear_search(kMainWords, word) ? above : std::string(word);
}

void FindCounts(const Json& config, const std::string& path, const std::string& part, std::vector<Count>& counts) {
  const auto has = [&](const char* key) { return config.contains(key); };
  const bool two_sided = has("decoder_layers") || has("num_decoder_layers");
  for (const auto& [key, value] : config.items()) {
    if (value.is_object()) {
      FindCounts(value, absl::StrCat(path, key, "."), PartOfConfig(key, part), counts);
      continue;
    }
    if (!value.is_number_integer() || !absl::c_linear_search(kCountNames, key)) continue;
    Count count{.key = path + key, .part = part, .side = "", .layers = value.get<int64_t>(), .nested = !path.empty()};
    if (count.layers < 1 || count.layers > kMaxLayers) continue;
    for (const char* side : {"encoder", "decoder"}) {
      if (absl::StrContains(key, side)) count.side = side;
    }
    if (two_sided && count.side.empty()) {
      if (key != "num_layers") continue;  // a second name of one of the others
      count.side = "encoder";
    }
    counts.push_back(std::move(count));
  }
}

// The numbers of the layers in each list, by the text before the number: "model.layers".
std::map<std::string, std::set<int64_t>> FindLists(const io::TensorSource& source) {
  std::map<std::string, std::set<int64_t>> lists;
  for (const io::TensorInfo& tensor : source.tensors()) {
    const std::vector<absl::string_view> parts = absl::StrSplit(tensor.name, '.');
    for (size_t i = 1; i < parts.size(); ++i) {
      int64_t number = 0;
      if (!absl::c_linear_search(kListNames, parts[i - 1]) || !absl::SimpleAtoi(parts[i], &number) || number < 0) {
        continue;
      }
      lists[absl::StrJoin(parts.begin(), parts.begin() + i, ".")].insert(number);
      break;
    }
  }
  return lists;
}

std::string ListNumbers(const std::vector<int64_t>& numbers) {
  constexpr size_t kMaxShown = 8;
  const size_t shown = std::min(numbers.size(), kMaxShown);
  return absl::StrCat(numbers.size() == 1 ? "layer " : "layers ",
                      absl::StrJoin(numbers.begin(), numbers.begin() + shown, ", "),
                      shown < numbers.size() ? absl::StrCat(" and ", numbers.size() - shown, " more") : "");
}

}  // namespace

std::vector<std::string> FindMissingLayers(const io::TensorSource& source, absl::string_view config_json) {
  const absl::StatusOr<io::JsonObjectText> text = io::ScanJsonObject(config_json, kMaxDepth);
  if (!text.ok()) return {};
  const Json config = Json::parse(text->standard, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return {};
  std::vector<Count> counts;
  FindCounts(config, "", std::string(kMain), counts);
  const std::map<std::string, std::set<int64_t>> lists = FindLists(source);
  const bool main_is_nested =
      absl::c_any_of(counts, [](const Count& count) { return count.nested && count.part == kMain; });
  const auto is_of = [&](const std::string& list, const std::string& part) {
    if (part == kMain || PartOf(part) == part) return PartOf(list) == part;
    return absl::StrContains(list, part);
  };
  const bool has_main = absl::c_any_of(lists, [&](const auto& list) { return PartOf(list.first) == kMain; });

  std::vector<std::string> warnings;
  for (const Count& count : counts) {
    if (!count.nested && main_is_nested) continue;
    const std::pair<const std::string, std::set<int64_t>>* longest = nullptr;
    for (const auto& list : lists) {
      const bool of_part = is_of(list.first, count.part) || (count.part == kMain && !has_main);
      if (!of_part || !absl::StrContains(list.first, count.side)) continue;
      if (longest == nullptr || list.second.size() > longest->second.size()) longest = &list;
    }
    if (longest == nullptr || static_cast<int64_t>(longest->second.size()) >= count.layers) continue;
    std::vector<int64_t> missing;
    for (int64_t n = 0; n < count.layers; ++n) {
      if (!longest->second.contains(n)) missing.push_back(n);
    }
    warnings.push_back(absl::StrCat("config.json says ", count.key, " ", count.layers, ", but ", ListNumbers(missing),
                                    " of ", io::Printable(longest->first), missing.size() == 1 ? " is" : " are",
                                    " missing; is the checkpoint complete?"));
  }
  return warnings;
}

}  // namespace aqt::serving
