#include "serving/formats/quantization_config.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/json_object-inl.h"
#include "aqt/io/printable.h"
#include "nlohmann/json.hpp"
#include "serving/formats/named_schemes.h"
#include "serving/formats/weight_formats.h"

namespace aqt::serving {
namespace {

using io::AsInt64;
using io::At;
using io::Json;
using io::kMaxJsonDepth;
using io::ParseJsonObject;

// A wider indentation is not copied: it would be written some hundred times.
constexpr size_t kMaxIndent = 16;
// The version of the package whose layout and field names are written.
constexpr char kLayoutVersion[] = "0.20.0";

std::string Std(absl::string_view s) { return std::string(s.data(), s.size()); }

// A position in the configuration, for messages: "config_groups.group_0.weights.num_bits".
std::string Path(absl::string_view where, absl::string_view key) { return absl::StrCat(where, ".", key); }

absl::Status Wrong(absl::string_view path, const Json& value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " = ", io::Printable(value.dump()), "; ", expected, " is expected"));
}

absl::Status NotSupported(absl::string_view path, const Json& value, absl::string_view works) {
  return absl::UnimplementedError(absl::StrCat(path, " = ", io::Printable(value.dump()), " is not supported; ", works));
}

absl::Status CheckFields(absl::string_view where, const Json& object, std::initializer_list<absl::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), absl::string_view(key)) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown field ", Path(where, io::Printable(key)),
                                                     "; the known fields are ", absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Int(absl::string_view where, const Json& object, const char* key, int64_t otherwise) {
  const Json& value = At(object, key);
  if (value.is_null()) return otherwise;
  if (const std::optional<int64_t> n = AsInt64(value)) return *n;
  return Wrong(Path(where, key), value, "an integer");
}

absl::StatusOr<bool> Bool(absl::string_view where, const Json& object, const char* key, bool otherwise) {
  const Json& value = At(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) return Wrong(Path(where, key), value, "true or false");
  return value.get<bool>();
}

absl::StatusOr<std::string> Text(absl::string_view where, const Json& object, const char* key) {
  const Json& value = At(object, key);
  if (value.is_null()) return std::string();
  if (!value.is_string()) return Wrong(Path(where, key), value, "a string");
  return value.get<std::string>();
}

absl::StatusOr<std::vector<std::string>> AsTexts(absl::string_view path, const Json& value) {
  std::vector<std::string> texts;
  if (value.is_null()) return texts;
  if (!value.is_array()) return Wrong(path, value, "a list of strings");
  for (const Json& element : value) {
    if (!element.is_string()) return Wrong(path, value, "a list of strings");
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

absl::StatusOr<std::vector<std::string>> Texts(absl::string_view where, const Json& object, const char* key) {
  return AsTexts(Path(where, key), At(object, key));
}

// Fields shared by weights and activations.
struct Args {
  ValueType type = ValueType::kInt;
  int num_bits = 8;
  bool symmetric = true;
  bool dynamic = false;
  bool local = false;  // only the scales of groups are dynamic
  ScaleType scale_type = ScaleType::kWeight;
  std::string strategy;
  int64_t group_size = 0;
  std::array<int64_t, 2> block{0, 0};
};

// Groups under a global scale: NVFP4.
constexpr char kTensorGroup[] = "tensor_group";
// The values of scale_dtype.
constexpr char kE8M0Scales[] = "torch.uint8";
constexpr char kE4M3Scales[] = "torch.float8_e4m3fn";

// The strategy; if it is not given, the one that the package infers. A `group_size` of -1 means one group per row.
absl::StatusOr<std::string> ParseStrategy(absl::string_view where, const Json& args, int64_t group_size) {
  AQT_ASSIGN_OR_RETURN(std::string strategy, Text(where, args, "strategy"));
  if (strategy.empty()) return std::string(group_size == 0 ? "tensor" : group_size == -1 ? "channel" : "group");
  for (const char* known : {"tensor", "channel", "group", kTensorGroup, "block", "token"}) {
    if (strategy == known) return strategy;
  }
  if (strategy == "attn_head") {
    return NotSupported(Path(where, "strategy"), strategy,
                        "\"tensor\", \"channel\", \"group\", \"tensor_group\", \"block\" and \"token\" are");
  }
  return Wrong(Path(where, "strategy"), strategy,
               "\"tensor\", \"channel\", \"group\", \"tensor_group\", \"block\" or \"token\"");
}

// Rows and columns: [128, 128], or as older versions of the package wrote them "128x128".
absl::StatusOr<std::array<int64_t, 2>> ParseBlock(absl::string_view where, const Json& args,
                                                  absl::string_view strategy) {
  std::array<int64_t, 2> block{0, 0};
  const Json& value = At(args, "block_structure");
  const std::string path = Path(where, "block_structure");
  if (strategy != "block") {
    if (value.is_null()) return block;
    return Wrong(path, value, absl::StrCat("null with strategy \"", strategy, "\""));
  }
  bool good = false;
  if (value.is_string()) {
    const std::vector<std::string> parts = absl::StrSplit(value.get<std::string>(), 'x');
    good = parts.size() == 2 && absl::SimpleAtoi(parts[0], &block[0]) && absl::SimpleAtoi(parts[1], &block[1]);
  } else if (value.is_array() && value.size() == 2) {
    good = true;
    for (size_t i = 0; i < 2; ++i) block[i] = AsInt64(value[i]).value_or(0);
  }
  if (good && block[0] > 0 && block[1] > 0) return block;
  return Wrong(path, value, "[rows, columns], both positive, with strategy \"block\"");
}

bool HasGroups(absl::string_view strategy) { return strategy == "group" || strategy == kTensorGroup; }

// Older versions of the package did not write scale_dtype: the bits, the strategy and the layout imply it.
absl::StatusOr<ScaleType> ParseScaleType(absl::string_view where, const Json& json, const Args& args,
                                         absl::string_view format) {
  const Json& given = At(json, "scale_dtype");
  const std::string path = Path(where, "scale_dtype");
  if (args.strategy == kTensorGroup) {
    if (given.is_null() || given == kE4M3Scales) return ScaleType::kE4M3;
    return NotSupported(path, given, absl::StrCat("\"", kE4M3Scales, "\" is with strategy \"", kTensorGroup, "\""));
  }
  if (given == kE8M0Scales) return ScaleType::kE8M0;
  if (!given.is_null()) {
    return NotSupported(path, given,
                        absl::StrCat("null (the dtype of the weight), \"", kE8M0Scales, "\" (MX) and, with strategy \"",
                                     kTensorGroup, "\", \"", kE4M3Scales, "\" (NVFP4) are"));
  }
  const bool is_mx = args.type == ValueType::kFloat && args.strategy == "group" && args.group_size == 32 &&
                     (args.num_bits < 8 || absl::StartsWith(format, "mxfp8"));
  return is_mx ? ScaleType::kE8M0 : ScaleType::kWeight;
}

// `dynamic`: false, true, or "local" for groups under a static global scale.
absl::Status ParseDynamic(absl::string_view where, const Json& json, Args& args) {
  const Json& dynamic = At(json, "dynamic");
  if (dynamic == "local") {
    if (args.strategy != kTensorGroup) {
      return Wrong(Path(where, "dynamic"), dynamic,
                   absl::StrCat("true or false with strategy \"", args.strategy, "\""));
    }
    args.local = true;
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(args.dynamic, Bool(where, json, "dynamic", false));
  return absl::OkStatus();
}

absl::StatusOr<Args> ParseArgs(absl::string_view where, const Json& json, absl::string_view format,
                               std::vector<std::string>& notes) {
  if (!json.is_object()) return Wrong(where, json, "an object");
  AQT_RETURN_IF_ERROR(CheckFields(where, json,
                                  {"num_bits", "type", "symmetric", "group_size", "strategy", "block_structure",
                                   "dynamic", "actorder", "scale_dtype", "zp_dtype", "observer", "observer_kwargs"}));
  Args args;
  AQT_ASSIGN_OR_RETURN(const int64_t num_bits, Int(where, json, "num_bits", 8));
  if (num_bits < 1 || num_bits > 64) return Wrong(Path(where, "num_bits"), num_bits, "a number of bits");
  args.num_bits = static_cast<int>(num_bits);
  AQT_ASSIGN_OR_RETURN(const std::string type, Text(where, json, "type"));
  if (!type.empty() && type != "int" && type != "float") {
    return Wrong(Path(where, "type"), type, "\"int\" or \"float\"");
  }
  if (type == "float") args.type = ValueType::kFloat;
  if (args.type == ValueType::kFloat && num_bits != 8 && num_bits != 6 && num_bits != 4) {
    return absl::UnimplementedError(
        absl::StrCat(where, ": ", num_bits, "-bit floats (type \"float\", format \"", format,
                     "\") are not supported; floats of 4, 6 and 8 bits and type \"int\" with 2 to 8 bits are"));
  }

  AQT_ASSIGN_OR_RETURN(args.symmetric, Bool(where, json, "symmetric", true));
  AQT_ASSIGN_OR_RETURN(int64_t group_size, Int(where, json, "group_size", 0));
  if (group_size < -1 || (group_size == 0 && !At(json, "group_size").is_null())) {
    return Wrong(Path(where, "group_size"), group_size, "a positive size, -1 or null");
  }
  AQT_ASSIGN_OR_RETURN(args.strategy, ParseStrategy(where, json, group_size));
  if (group_size > 0 && !HasGroups(args.strategy)) {
    return Wrong(Path(where, "group_size"), group_size, absl::StrCat("null with strategy \"", args.strategy, "\""));
  }
  if (group_size <= 0 && HasGroups(args.strategy)) {
    return Wrong(Path(where, "group_size"), At(json, "group_size"),
                 absl::StrCat("a positive size with strategy \"", args.strategy, "\""));
  }
  args.group_size = std::max<int64_t>(group_size, 0);

  AQT_RETURN_IF_ERROR(ParseDynamic(where, json, args));
  AQT_ASSIGN_OR_RETURN(args.block, ParseBlock(where, json, args.strategy));
  AQT_ASSIGN_OR_RETURN(args.scale_type, ParseScaleType(where, json, args, format));
  const Json& zp_dtype = At(json, "zp_dtype");
  const char* const own_dtype = args.type == ValueType::kFloat ? kE4M3Scales : "torch.int8";
  const bool is_mx = args.scale_type == ScaleType::kE8M0 && zp_dtype == kE8M0Scales;
  if (!zp_dtype.is_null() && zp_dtype != own_dtype && !is_mx) {
    return NotSupported(Path(where, "zp_dtype"), zp_dtype, absl::StrCat("null and \"", own_dtype, "\" are"));
  }
  const Json& actorder = At(json, "actorder");
  if (actorder == "static" || actorder == "weight") {
    notes.push_back(absl::StrCat(Path(where, "actorder"), " = ", io::Printable(actorder.dump()),
                                 " has no effect: weights are rounded to nearest"));
  } else if (!actorder.is_null() && actorder != false) {
    return NotSupported(Path(where, "actorder"), actorder, "null, \"static\" and \"weight\" are");
  }
  const Json& observer = At(json, "observer");
  if (!observer.is_null() && observer != "minmax" && observer != "memoryless_minmax" && observer != "static_minmax") {
    notes.push_back(absl::StrCat(Path(where, "observer"), " = ", io::Printable(observer.dump()),
                                 " has no effect: ranges are min and max"));
  }
  return args;
}

absl::StatusOr<WeightScheme> ParseWeights(absl::string_view where, const Json& json, absl::string_view format,
                                          std::vector<std::string>& notes) {
  AQT_ASSIGN_OR_RETURN(const Args args, ParseArgs(where, json, format, notes));
  if (args.dynamic || args.local) {
    return Wrong(Path(where, "dynamic"), At(json, "dynamic"), "false (weights are stored quantized)");
  }
  WeightScheme scheme;
  scheme.type = args.type;
  scheme.num_bits = args.num_bits;
  scheme.symmetric = args.symmetric;
  scheme.group_size = args.group_size;
  scheme.block = args.block;
  scheme.scale_type = args.scale_type;
  if (args.strategy == kTensorGroup) {
    scheme.strategy = WeightStrategy::kGroup;
    return scheme;
  }
  for (WeightStrategy s :
       {WeightStrategy::kTensor, WeightStrategy::kChannel, WeightStrategy::kGroup, WeightStrategy::kBlock}) {
    if (absl::string_view(args.strategy) == ToString(s)) {
      scheme.strategy = s;
      return scheme;
    }
  }
  return Wrong(Path(where, "strategy"), args.strategy,
               "\"tensor\", \"channel\", \"group\", \"tensor_group\" or \"block\"");
}

absl::StatusOr<InputScheme> ParseInput(absl::string_view where, const Json& json, absl::string_view format,
                                       std::vector<std::string>& notes) {
  AQT_ASSIGN_OR_RETURN(const Args args, ParseArgs(where, json, format, notes));
  InputScheme scheme{args.num_bits,   args.symmetric, args.dynamic,   InputStrategy::kToken,
                     args.group_size, args.type,      args.scale_type};
  if (args.strategy == kTensorGroup) {
    if (!args.local) {
      return NotSupported(Path(where, "dynamic"), At(json, "dynamic"),
                          absl::StrCat("\"local\" is with strategy \"", kTensorGroup, "\""));
    }
    scheme.strategy = InputStrategy::kGroup;
    scheme.dynamic = true;
    return scheme;
  }
  for (InputStrategy s : {InputStrategy::kToken, InputStrategy::kTensor, InputStrategy::kGroup}) {
    if (absl::string_view(args.strategy) == ToString(s)) {
      scheme.strategy = s;
      return scheme;
    }
  }
  return NotSupported(Path(where, "strategy"), args.strategy,
                      "\"token\", \"tensor\", \"group\" and \"tensor_group\" are");
}

// Null for an empty name.
absl::StatusOr<const WeightFormat*> ParseFormat(absl::string_view path, const std::string& name) {
  const WeightFormat* const format = FindWeightFormat(name);
  if (format == nullptr && !name.empty()) return NotSupported(path, name, absl::StrCat(WeightFormatNames(), " are"));
  return format;
}

// A list of targets under the name of a preset: "W8A8": ["Linear"].
absl::StatusOr<ConfigGroup> ParsePresetGroup(const std::string& where, const std::string& name, const Json& json,
                                             const std::string& top_format) {
  ConfigGroup group;
  group.name = name;
  AQT_ASSIGN_OR_RETURN(group.targets, AsTexts(where, json));
  if (group.targets.empty()) return Wrong(where, json, "at least one target");
  absl::StatusOr<Scheme> scheme = PresetScheme(name);
  if (!scheme.ok()) return Annotate(scheme.status(), where);
  group.scheme = *std::move(scheme);
  if (!top_format.empty() && top_format != "mixed-precision") {
    AQT_ASSIGN_OR_RETURN(group.scheme.format, ParseFormat("format", top_format));
  }
  AQT_RETURN_IF_ERROR(Annotate(Validate(group.scheme), where));
  return group;
}

absl::StatusOr<ConfigGroup> ParseGroup(const std::string& name, const Json& json, const std::string& top_format,
                                       std::vector<std::string>& notes) {
  const std::string where = absl::StrCat("config_groups.", io::Printable(name));
  if (json.is_array()) return ParsePresetGroup(where, name, json, top_format);
  if (!json.is_object()) {
    return Wrong(where, json, "an object with targets and weights, or a list of targets under the name of a preset");
  }
  AQT_RETURN_IF_ERROR(
      CheckFields(where, json, {"targets", "weights", "input_activations", "output_activations", "format"}));
  ConfigGroup group;
  group.name = name;
  AQT_ASSIGN_OR_RETURN(group.targets, Texts(where, json, "targets"));
  if (group.targets.empty()) return absl::InvalidArgumentError(absl::StrCat(where, ".targets is missing or empty"));

  AQT_ASSIGN_OR_RETURN(std::string format, Text(where, json, "format"));
  std::string format_path = Path(where, "format");
  if (format.empty() && top_format != "mixed-precision") {
    format = top_format;
    format_path = "format";
  }
  // Parsed first: errors about the other fields of an unknown layout would only confuse.
  AQT_ASSIGN_OR_RETURN(group.scheme.format, ParseFormat(format_path, format));
  const Json& weights = At(json, "weights");
  if (weights.is_null()) return NotSupported(Path(where, "weights"), weights, "a group must quantize weights");
  if (!At(json, "output_activations").is_null()) {
    return NotSupported(Path(where, "output_activations"), At(json, "output_activations"), "null is");
  }
  AQT_ASSIGN_OR_RETURN(group.scheme.weights, ParseWeights(Path(where, "weights"), weights, format, notes));
  if (const Json& input = At(json, "input_activations"); !input.is_null()) {
    AQT_ASSIGN_OR_RETURN(group.scheme.input, ParseInput(Path(where, "input_activations"), input, format, notes));
  }
  if (group.scheme.format == nullptr) {
    group.scheme.format = DefaultFormat(group.scheme.weights, group.scheme.input.has_value());
  }
  AQT_RETURN_IF_ERROR(Annotate(Validate(group.scheme), where));
  return group;
}

// A regular expression that matches only `name`, for RE2 and Python.
std::string Quoted(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (absl::ascii_ispunct(c) && c != '_') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

// An entry of the `modules_to_not_convert` or `ignored_layers` of "fp8", which also excludes the modules below it. An
// entry within a layer ("model.layers.3.mlp.gate") is read as a module's full name, and any other ("visual",
// "mlp.gate") as a part of it.
std::string IgnoreEntryOf(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  const auto is_number = [](const std::string& part) {
    return !part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit);
  };
  if (absl::StartsWith(name, "re:") || parts.back() == "lm_head") return name;
  const bool in_layer = std::any_of(parts.begin(), parts.end(), is_number);
  if (in_layer && !is_number(parts.back())) return name;
  return absl::StrCat("re:", in_layer ? "" : "(.*\\.)?", Quoted(name), "(\\.|$)");
}

// The `quant_method` "fp8" of DeepSeek, Qwen and others: every linear layer, except those listed.
absl::StatusOr<QuantizationConfig> ParseFp8(const Json& json) {
  AQT_ASSIGN_OR_RETURN(const std::string activations, Text("quantization_config", json, "activation_scheme"));
  if (!activations.empty() && activations != "dynamic" && activations != "static") {
    return Wrong("activation_scheme", activations, "\"dynamic\" or \"static\"");
  }
  const bool dynamic = activations != "static";
  AQT_ASSIGN_OR_RETURN(const std::string type, Text("quantization_config", json, "fmt"));
  if (!type.empty() && type != "e4m3" && type != "e4m3fn" && type != "float8_e4m3fn") {
    return NotSupported("fmt", type, "\"e4m3\" is");
  }
  std::optional<std::array<int64_t, 2>> block;
  if (const Json& size = At(json, "weight_block_size"); !size.is_null()) {
    block.emplace();
    if (!size.is_array() || size.size() != 2) return Wrong("weight_block_size", size, "[rows, columns] or null");
    for (size_t i = 0; i < 2; ++i) {
      (*block)[i] = AsInt64(size[i]).value_or(0);
      if ((*block)[i] < 1) return Wrong("weight_block_size", size, "[rows, columns], both positive");
    }
    if (!dynamic) return Wrong("activation_scheme", activations, "\"dynamic\" with weight_block_size");
  }
  QuantizationConfig config;
  config.groups.push_back({"group_0", {"Linear"}, Fp8Scheme(block, dynamic)});
  AQT_RETURN_IF_ERROR(Validate(config.groups[0].scheme));
  if (const Json& scale = At(json, "scale_fmt"); !scale.is_null() && scale != "float" && scale != "float32") {
    config.notes.push_back(absl::StrCat("scale_fmt = ", io::Printable(scale.dump()),
                                        " has no effect: scales are not rounded to powers of two"));
  }
  std::set<std::string> seen;
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, Texts("quantization_config", json, key));
    for (const std::string& name : names) {
      if (name.empty()) return Wrong(key, At(json, key), "a list of module names");
      if (seen.insert(name).second) config.ignore.push_back(IgnoreEntryOf(name));
    }
  }
  return config;
}

// Refuses parts of the configuration that would change stored or computed values.
absl::Status CheckRest(const Json& json) {
  const Json& method = At(json, "quant_method");
  if (!method.is_null() && method != "compressed-tensors" && method != "fp8") {
    return NotSupported("quant_method", method, "\"compressed-tensors\" and \"fp8\" are; or choose a --preset");
  }
  if (const Json& cache = At(json, "kv_cache_scheme"); !cache.is_null()) {
    return NotSupported(
        "kv_cache_scheme", cache,
        "set it to null to continue: the weights do not depend on it, and a server can be told to quantize "
        "its cache");
  }
  if (const Json& moe = At(json, "moe_sparsity_config"); !moe.is_null()) {
    return NotSupported("moe_sparsity_config", moe, "null is");
  }
  const Json& sparsity = At(json, "sparsity_config");
  if (!sparsity.is_null() && !sparsity.empty() && !(sparsity.is_object() && At(sparsity, "format") == "dense")) {
    return NotSupported("sparsity_config", sparsity, "none, or the format \"dense\", is");
  }
  const Json& transform = At(json, "transform_config");
  if (!transform.is_null() && !transform.empty() &&
      !(transform.is_object() && At(transform, "config_groups").empty())) {
    return NotSupported("transform_config", transform, "none is");
  }
  return absl::OkStatus();
}

Json ArgsToJson(ValueType type, int num_bits, bool symmetric, bool dynamic, absl::string_view strategy,
                int64_t group_size, ScaleType scale_type, const std::array<int64_t, 2>& block = {0, 0}) {
  const bool global = scale_type == ScaleType::kE4M3;
  Json json;
  if (block[0] > 0) json["block_structure"] = block;
  json["dynamic"] = global && dynamic ? Json("local") : Json(dynamic);
  json["group_size"] = group_size > 0 ? Json(group_size) : Json();
  json["num_bits"] = num_bits;
  if (scale_type != ScaleType::kWeight) json["scale_dtype"] = global ? kE4M3Scales : kE8M0Scales;
  json["strategy"] = global ? kTensorGroup : Std(strategy);
  json["symmetric"] = symmetric;
  json["type"] = Std(ToString(type));
  return json;
}

Json ToJson(const QuantizationConfig& config) {
  Json groups = Json::object();
  std::set<std::string> formats;
  for (const ConfigGroup& group : config.groups) {
    const WeightScheme& w = group.scheme.weights;
    Json json;
    json["format"] = Std(group.scheme.format->name());
    formats.insert(json["format"].get<std::string>());
    json["input_activations"] = nullptr;
    if (const std::optional<InputScheme>& a = group.scheme.input; a.has_value()) {
      json["input_activations"] = ArgsToJson(a->type, a->num_bits, a->symmetric, a->dynamic, ToString(a->strategy),
                                             a->group_size, a->scale_type);
    }
    json["output_activations"] = nullptr;
    json["targets"] = group.targets;
    json["weights"] = ArgsToJson(w.type, w.num_bits, w.symmetric, /*dynamic=*/false, ToString(w.strategy), w.group_size,
                                 w.scale_type, w.block);
    groups[group.name] = std::move(json);
  }
  Json json;
  json["config_groups"] = std::move(groups);
  json["format"] = formats.empty() ? "dense" : formats.size() == 1 ? *formats.begin() : "mixed-precision";
  json["global_compression_ratio"] = nullptr;
  json["ignore"] = config.ignore;
  json["kv_cache_scheme"] = nullptr;
  json["moe_sparsity_config"] = nullptr;
  json["quant_method"] = "compressed-tensors";
  json["quantization_status"] = "compressed";
  json["sparsity_config"] = Json::object();
  json["transform_config"] = Json::object();
  json["version"] = kLayoutVersion;
  return json;
}

}  // namespace

absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(absl::string_view text) {
  const absl::StatusOr<Json> parsed = ParseJsonObject(text);
  if (!parsed.ok()) return absl::InvalidArgumentError(parsed.status().message());
  const Json& json = *parsed;
  AQT_RETURN_IF_ERROR(CheckRest(json));
  const Json& groups = At(json, "config_groups");
  if (At(json, "quant_method") == "fp8" && groups.is_null()) return ParseFp8(json);
  QuantizationConfig config;
  if (!groups.is_object() || groups.empty()) return Wrong("config_groups", groups, "an object with at least one group");
  AQT_ASSIGN_OR_RETURN(const std::string format, Text("quantization_config", json, "format"));
  for (const auto& [name, group] : groups.items()) {
    AQT_ASSIGN_OR_RETURN(ConfigGroup parsed, ParseGroup(name, group, format, config.notes));
    config.groups.push_back(std::move(parsed));
  }
  std::sort(config.groups.begin(), config.groups.end(),
            [](const ConfigGroup& a, const ConfigGroup& b) { return a.name < b.name; });
  AQT_ASSIGN_OR_RETURN(config.ignore, Texts("quantization_config", json, "ignore"));
  return config;
}

std::string QuantizationConfigToJson(const QuantizationConfig& config) {
  return ToJson(config).dump(2, ' ', /*ensure_ascii=*/true);
}

absl::StatusOr<std::string> SetQuantizationConfig(absl::string_view config_json, const QuantizationConfig& config) {
  const absl::string_view text = config_json.empty() ? "{\n}" : config_json;
  AQT_ASSIGN_OR_RETURN(const io::JsonObjectText object, io::ScanJsonObject(text, kMaxJsonDepth));
  // Indents the new key like the others.
  absl::string_view indent = "  ";
  if (!object.members.empty()) {
    const size_t open = text.find('{') + 1;
    const absl::string_view before = text.substr(open, object.members[0].key_begin - open);
    const size_t newline = before.rfind('\n');
    if (newline != absl::string_view::npos && before.size() - newline <= kMaxIndent) {
      indent = before.substr(newline + 1);
    }
  }
  const int width = std::max<int>(static_cast<int>(indent.size()), 1);
  const std::string value = absl::StrReplaceAll(
      ToJson(config).dump(width, absl::StartsWith(indent, "\t") ? '\t' : ' ', /*ensure_ascii=*/true),
      {{"\n", absl::StrCat("\n", indent)}});

  for (const io::JsonObjectText::Member& member : object.members) {
    if (member.key != kQuantizationConfigKey) continue;
    return absl::StrCat(text.substr(0, member.begin), value, text.substr(member.end));
  }
  const size_t end = object.members.empty() ? text.find('{') + 1 : object.members.back().end;
  absl::string_view rest = text.substr(end);  // white space and the closing brace
  std::string out = absl::StrCat(text.substr(0, end), object.members.empty() ? "\n" : ",\n", indent, "\"",
                                 kQuantizationConfigKey, "\": ", value, rest[0] == '}' ? "\n" : "", rest);
  if (out.back() != '\n') out += '\n';
  return out;
}

}  // namespace aqt::serving
