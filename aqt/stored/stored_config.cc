#include "aqt/stored/stored_config.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json_object-inl.h"
#include "aqt/io/printable.h"

namespace aqt::stored {
namespace {

using io::AsInt64;
using io::At;
using io::Json;

constexpr int64_t kMaxConfigBytes = 64 << 20;

// The first of the keys that has a value.
std::pair<const char*, const Json*> FirstOf(const Json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (const Json& value = At(object, key); !value.is_null()) return {key, &value};
  }
  return {*keys.begin(), &At(object, *keys.begin())};
}

absl::Status Wrong(absl::string_view where, absl::string_view key, const Json& value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": ", key, " is ", io::Printable(value.dump()), "; expected ", expected));
}

// Reads the fields of one object. The first mistake is kept.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  std::string Text(std::initializer_list<const char*> keys) {
    const auto [key, value] = FirstOf(json_, keys);
    if (value->is_null()) return "";
    if (value->is_string()) return value->get<std::string>();
    Fail(key, *value, "a string");
    return "";
  }
  std::optional<int64_t> Int(std::initializer_list<const char*> keys) {
    const auto [key, value] = FirstOf(json_, keys);
    if (value->is_null()) return std::nullopt;
    if (const std::optional<int64_t> n = AsInt64(*value)) return n;
    Fail(key, *value, "an integer");
    return std::nullopt;
  }
  std::optional<bool> Bool(std::initializer_list<const char*> keys) {
    const auto [key, value] = FirstOf(json_, keys);
    if (value->is_null()) return std::nullopt;
    if (value->is_boolean()) return value->get<bool>();
    Fail(key, *value, "true or false");
    return std::nullopt;
  }
  // [rows, columns], or "128x128".
  std::optional<std::array<int64_t, 2>> Block(std::initializer_list<const char*> keys) {
    const auto [key, value] = FirstOf(json_, keys);
    if (value->is_null()) return std::nullopt;
    std::array<int64_t, 2> block = {0, 0};
    if (value->is_array() && value->size() == 2) {
      for (size_t i = 0; i < 2; ++i) block[i] = AsInt64((*value)[i]).value_or(0);
    } else if (value->is_string()) {
      const std::vector<std::string> parts = absl::StrSplit(value->get<std::string>(), 'x');
      if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &block[0]) || !absl::SimpleAtoi(parts[1], &block[1])) {
        block = {0, 0};
      }
    }
    if (block[0] > 0 && block[1] > 0) return block;
    Fail(key, *value, "[rows, columns], both positive");
    return std::nullopt;
  }
  std::vector<std::string> Texts(const char* key) {
    std::vector<std::string> texts;
    const Json& value = At(json_, key);
    for (const Json& text : value) {
      if (text.is_string()) texts.push_back(text.get<std::string>());
    }
    if (!value.is_null() && (!value.is_array() || texts.size() != value.size())) Fail(key, value, "a list of strings");
    return texts;
  }
  void Fail(absl::string_view key, const Json& value, absl::string_view expected) {
    if (status_.ok()) status_ = Wrong(where_, key, value, expected);
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json& json_;
  const std::string where_;
  absl::Status status_;
};

// A preset of compressed-tensors whose name stands for a whole group: "W4A16": ["Linear"].
struct Preset {
  absl::string_view name;
  int bits;
  bool is_float;
  absl::string_view strategy;
  int64_t group_size;
  int64_t block;
  absl::string_view input;  // the kind of numbers, and how their scales are found; empty: not quantized
};
constexpr Preset kPresets[] = {
    {"W8A8", 8, false, "channel", 0, 0, "int token"},
    {"INT8", 8, false, "channel", 0, 0, "int token"},
    {"W8A16", 8, false, "channel", 0, 0, ""},
    {"W4A16", 4, false, "group", 128, 0, ""},
    {"W4A16_ASYM", 4, false, "group", 128, 0, ""},
    {"W4A8", 4, false, "group", 128, 0, "int token"},
    {"W4AFP8", 4, false, "group", 128, 0, "float token"},
    {"INT4", 4, false, "channel", 0, 0, ""},
    {"FP8", 8, true, "tensor", 0, 0, "float static"},
    {"FP8_DYNAMIC", 8, true, "channel", 0, 0, "float token"},
    {"FP8_BLOCK", 8, true, "block", 0, 128, "float group"},
    {"NVFP4", 4, true, "tensor_group", 16, 0, "float local"},
    {"NVFP4A16", 4, true, "tensor_group", 16, 0, ""},
    {"MXFP4", 4, true, "group", 32, 0, "float group"},
    {"MXFP4A16", 4, true, "group", 32, 0, ""},
    {"MXFP6", 6, true, "group", 32, 0, "float group"},
    {"MXFP6A16", 6, true, "group", 32, 0, ""},
    {"MXFP8", 8, true, "group", 32, 0, "float group"},
    {"MXFP8A16", 8, true, "group", 32, 0, ""},
};

// The `input` of a preset.
std::optional<InputArgs> PresetInput(const Preset& preset) {
  if (preset.input.empty()) return std::nullopt;
  InputArgs input;
  input.is_float = absl::StartsWith(preset.input, "float");
  input.num_bits = input.is_float ? preset.bits : 8;
  input.dynamic = "true";
  if (absl::EndsWith(preset.input, "token")) {
    input.strategy = "token";
    input.num_bits = 8;
  } else if (absl::EndsWith(preset.input, "static")) {
    input.strategy = "tensor";
    input.dynamic = "false";
  } else {
    input.strategy = absl::EndsWith(preset.input, "local") ? "tensor_group" : "group";
    input.group_size = std::max(preset.group_size, preset.block);
    if (absl::EndsWith(preset.input, "local")) input.dynamic = "local";
  }
  return input;
}

absl::StatusOr<WeightGroup> PresetGroup(const std::string& name, const Json& targets, const std::string& where) {
  const std::string upper = absl::AsciiStrToUpper(name);
  for (const Preset& preset : kPresets) {
    if (upper != preset.name) continue;
    WeightGroup group;
    group.name = name;
    group.num_bits = preset.bits;
    group.is_float = preset.is_float;
    group.symmetric = !absl::EndsWith(upper, "_ASYM");
    group.strategy = std::string(preset.strategy);
    group.group_size = preset.group_size;
    group.block = {preset.block, preset.block};
    group.input = PresetInput(preset);
    for (const Json& target : targets) {
      if (target.is_string()) group.targets.push_back(target.get<std::string>());
    }
    return group;
  }
  return Wrong(where, absl::StrCat("config_groups.", io::Printable(name)), targets,
               "an object with targets and weights, or the name of a preset with a list of targets");
}

absl::StatusOr<InputArgs> ParseInput(const Json& json, const std::string& path) {
  if (!json.is_object()) return Wrong(path, "its value", json, "an object or null");
  InputArgs input;
  Fields args(json, path);
  input.num_bits = args.Int({"num_bits"}).value_or(8);
  input.is_float = args.Text({"type"}) == "float";
  input.symmetric = args.Bool({"symmetric"}).value_or(true);
  input.strategy = args.Text({"strategy"});
  input.group_size = std::max<int64_t>(args.Int({"group_size"}).value_or(0), 0);
  const Json& dynamic = At(json, "dynamic");
  input.dynamic = dynamic.is_string() ? dynamic.get<std::string>() : "false";
  if (dynamic.is_boolean()) input.dynamic = dynamic.get<bool>() ? "true" : "false";
  if (input.strategy.empty()) input.strategy = input.group_size > 0 ? "group" : "tensor";
  AQT_RETURN_IF_ERROR(args.status());
  return input;
}

absl::StatusOr<WeightGroup> ParseGroup(const std::string& name, const Json& json, const std::string& where) {
  WeightGroup group;
  group.name = name;
  const std::string path = absl::StrCat(where, ", config_groups.", io::Printable(name));
  Fields fields(json, path);
  group.targets = fields.Texts("targets");
  group.format = fields.Text({"format"});
  AQT_RETURN_IF_ERROR(fields.status());
  const Json& weights = At(json, "weights");
  Fields args(weights, path + ".weights");
  group.num_bits = args.Int({"num_bits"}).value_or(8);
  const std::string type = args.Text({"type"});
  group.is_float = type == "float";
  group.symmetric = args.Bool({"symmetric"}).value_or(true);
  group.strategy = args.Text({"strategy"});
  group.group_size = args.Int({"group_size"}).value_or(0);
  if (const auto block = args.Block({"block_structure"})) group.block = *block;
  if (group.num_bits < 1 || group.num_bits > 8) args.Fail("num_bits", At(weights, "num_bits"), "1 to 8");
  if (!type.empty() && type != "float" && type != "int") args.Fail("type", At(weights, "type"), "\"int\" or \"float\"");
  if (group.group_size < -1) args.Fail("group_size", At(weights, "group_size"), "a positive size, -1 or null");
  AQT_RETURN_IF_ERROR(args.status());
  if (group.strategy.empty()) {
    group.strategy = group.group_size == 0 ? "tensor" : group.group_size == -1 ? "channel" : "group";
  }
  group.group_size = std::max<int64_t>(group.group_size, 0);
  if (const Json& input = At(json, "input_activations"); !input.is_null()) {
    AQT_ASSIGN_OR_RETURN(group.input, ParseInput(input, path + ".input_activations"));
  }
  group.quantizes_output = !At(json, "output_activations").is_null();
  return group;
}

// The fields of compressed-tensors that change what weights mean.
std::string Unreadable(const Json& json) {
  const Json& sparsity = At(json, "sparsity_config");
  if (sparsity.is_object() && !sparsity.empty() && At(sparsity, "format") != "dense") {
    return absl::StrCat("sparsity_config = ", io::Printable(sparsity.dump()));
  }
  const Json& transform = At(json, "transform_config");
  if (transform.is_object() && !transform.empty() && !At(transform, "config_groups").empty()) {
    return absl::StrCat("transform_config = ", io::Printable(transform.dump()));
  }
  return "";
}

absl::Status ParseGroups(const Json& json, StoredConfig& config) {
  config.unreadable = Unreadable(json);
  const Json& groups = At(json, "config_groups");
  if (groups.is_null()) return absl::OkStatus();
  if (!groups.is_object()) return Wrong(config.where, "config_groups", groups, "an object");
  const std::string top_format = Fields(json, config.where).Text({"format"});
  for (const auto& [name, value] : groups.items()) {
    if (!value.is_array() && At(value, "weights").is_null()) continue;  // quantizes only activations
    absl::StatusOr<WeightGroup> group =
        value.is_array() ? PresetGroup(name, value, config.where) : ParseGroup(name, value, config.where);
    AQT_RETURN_IF_ERROR(group.status());
    if (group->format.empty() && top_format != "mixed-precision") group->format = top_format;
    config.groups.push_back(*std::move(group));
  }
  return absl::OkStatus();
}

// The method of a file that does not name one.
std::string MethodOfFile(absl::string_view where) {
  if (absl::EndsWith(where, "hf_quant_config.json")) return "modelopt";
  if (absl::EndsWith(where, "quantize_config.json")) return "gptq";
  if (absl::EndsWith(where, "quant_config.json")) return "awq";
  return "";
}

// AutoRound writes the layouts of others: "auto_round:auto_gptq", "auto_round:auto_awq".
void FollowAutoRound(StoredConfig& config) {
  for (const char* method : {"gptq", "awq"}) {
    if (!absl::StrContains(config.layout, method)) continue;
    config.method = method;
    config.layout.clear();
    config.writer = "auto-round";
    return;
  }
}

const Json* FindQuantization(const Json& json) {
  std::vector<const Json*> level = {&json};
  while (!level.empty()) {
    std::vector<const Json*> below;
    for (const Json* const object : level) {
      for (const char* key : {"quantization_config", "compression_config"}) {
        if (const Json& found = At(*object, key); !found.is_null()) return &found;
      }
      for (const Json& member : *object) {
        if (member.is_object()) below.push_back(&member);
      }
    }
    level = std::move(below);
  }
  return nullptr;
}

bool HasFile(const io::Checkpoint& checkpoint, absl::string_view name) {
  const std::vector<std::string>& files = checkpoint.other_files();
  return std::find(files.begin(), files.end(), name) != files.end();
}

// The text of a file beside the checkpoint; empty if it does not exist.
absl::StatusOr<std::string> ReadBeside(const io::FileSystem& fs, const io::Checkpoint& checkpoint,
                                       const std::string& name) {
  const absl::string_view folder =
      checkpoint.is_folder() ? absl::string_view(checkpoint.path()) : io::FolderOf(checkpoint.path());
  const std::string path = io::JoinPath(folder, name);
  absl::StatusOr<std::string> text = io::ReadFile(fs, path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

}  // namespace

bool WeightGroup::SameScheme(const WeightGroup& other) const {
  return format == other.format && num_bits == other.num_bits && is_float == other.is_float &&
         symmetric == other.symmetric && strategy == other.strategy && group_size == other.group_size &&
         block == other.block;
}

absl::StatusOr<StoredConfig> ParseStoredConfig(absl::string_view text, absl::string_view where) {
  const absl::StatusOr<Json> parsed = io::ParseJsonObject(text);
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat(where, ": ", parsed.status().message()));
  // ModelOpt's own file has everything in `quantization`.
  const Json& json = At(*parsed, "quantization").is_object() ? At(*parsed, "quantization") : *parsed;
  StoredConfig config;
  config.where = std::string(where);
  Fields fields(json, config.where);
  config.method = absl::AsciiStrToLower(fields.Text({"quant_method"}));
  if (config.method.empty()) config.method = MethodOfFile(where);
  if (config.method.empty() && At(json, "config_groups").is_object()) config.method = "compressed-tensors";
  config.bits = fields.Int({"bits", "w_bit"});
  config.group_size = fields.Int({"group_size", "q_group_size"});
  config.symmetric = fields.Bool({"sym"});
  config.act_order = fields.Bool({"desc_act"}).value_or(false);
  config.layout =
      config.method == "awq" ? fields.Text({"version"}) : fields.Text({"packing_format", "checkpoint_format"});
  config.block = fields.Block({"weight_block_size"});
  config.algorithm = fields.Text({"quant_algo"});
  if (config.method == "compressed-tensors") config.version = fields.Text({"version"});
  AQT_RETURN_IF_ERROR(fields.status());
  if (const Json& writers = At(At(json, "meta"), "quantizer"); writers.is_string()) {
    config.writer = writers.get<std::string>();
  } else if (writers.is_array() && !writers.empty() && writers[0].is_string()) {
    config.writer = writers[0].get<std::string>();
  }
  if (absl::StrContains(config.method, "auto-round")) FollowAutoRound(config);
  if (config.method == "compressed-tensors") AQT_RETURN_IF_ERROR(ParseGroups(json, config));
  return config;
}

absl::StatusOr<std::string> FindQuantizationConfig(absl::string_view text) {
  AQT_ASSIGN_OR_RETURN(const Json json, io::ParseJsonObject(text));
  const Json* const found = FindQuantization(json);
  return found == nullptr ? std::string() : found->dump();
}

namespace {

// Its messages do not name the checkpoint.
absl::StatusOr<StoredConfig> ReadConfigOf(const io::FileSystem& fs, const io::Checkpoint& checkpoint) {
  for (const auto& [key, value] : checkpoint.shards()[0].metadata) {
    if (key != "quantization_config" || checkpoint.is_folder()) continue;
    return ParseStoredConfig(value, "the file's metadata, quantization_config");
  }
  AQT_ASSIGN_OR_RETURN(const std::string model, ReadBeside(fs, checkpoint, "config.json"));
  if (!model.empty()) {
    const absl::StatusOr<std::string> quantization = FindQuantizationConfig(model);
    if (!quantization.ok()) return Annotate(quantization.status(), "config.json");
    if (!quantization->empty()) return ParseStoredConfig(*quantization, "config.json, quantization_config");
  }
  for (const char* name : {"quantize_config.json", "quant_config.json", "hf_quant_config.json"}) {
    if (!HasFile(checkpoint, name)) continue;
    AQT_ASSIGN_OR_RETURN(const std::string text, ReadBeside(fs, checkpoint, name));
    return ParseStoredConfig(text, name);
  }
  return StoredConfig();
}

}  // namespace

absl::StatusOr<StoredConfig> ReadStoredConfig(const io::FileSystem& fs, const io::Checkpoint& checkpoint) {
  absl::StatusOr<StoredConfig> config = ReadConfigOf(fs, checkpoint);
  if (config.ok()) return config;
  return Annotate(config.status(), absl::StrCat("'", io::PrintableLine(checkpoint.path()), "'"));
}

}  // namespace aqt::stored
