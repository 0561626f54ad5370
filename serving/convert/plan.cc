#include "serving/convert/plan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "nlohmann/json.hpp"
#include "serving/formats/quantized_already.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

std::string Std(absl::string_view s) { return std::string(s.data(), s.size()); }

absl::StatusOr<RuleSet> MakeRules(const io::TensorSource& source, const Recipe& recipe) {
  if (!recipe.like.has_value()) return RuleSet::FromConfig(*recipe.config);
  return RuleSet::FromQuantizationConfig(*recipe.like,
                                         [&source](absl::string_view module) { return HasModule(source, module); });
}

bool HasStoredHead(const io::TensorSource& source) {
  for (const io::TensorInfo& tensor : source.tensors()) {
    const std::optional<absl::string_view> module = ModuleOf(tensor.name);
    if (module.has_value() && IsHeadName(*module)) return true;
  }
  return false;
}

absl::Status CheckWeightRules(const Recipe& recipe, const TensorPlan& tensor) {
  if (recipe.weight_rules != WeightRules::kAqt) return absl::OkStatus();
  const WeightScheme& weights = tensor.decision.scheme->weights;
  const char* what = weights.type != ValueType::kInt ? "are for integers; use integers"
                     : !weights.symmetric            ? "are symmetric; use symmetric weights"
                                                     : nullptr;
  if (what == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(io::Printable(tensor.name()), ", by ", tensor.decision.reason,
                                               ": AQT's weight rules ", what, ", or the compressed_tensors rules"));
}

bool IsTied(const io::TensorSource& source, const ModelConfig& model) {
  if (model.tie_word_embeddings.has_value()) return *model.tie_word_embeddings;
  return model.has_output_head && !HasStoredHead(source);
}

// The module that a loader would take for a quantized one if `ignore` did not name it, or null: a weight of the class
// Linear, as far as name and rank tell, or experts in one tensor.
std::optional<std::string> ModuleToIgnore(const TensorPlan& tensor, bool only_left_out) {
  const io::TensorInfo& info = *tensor.input;
  if (info.shape.rank() == 3) return info.name.substr(0, info.name.find_last_of('.'));
  const bool linear = tensor.decision.candidate && info.shape.rank() == 2 && !IsEmbeddingName(*ModuleOf(info.name));
  if (!linear || (only_left_out && !tensor.decision.left_out)) return std::nullopt;
  return std::string(*ModuleOf(info.name));
}

// What a loader needs to know. With one scheme: the class Linear, except the modules that stayed in floating point, by
// name. With several: every module by name.
QuantizationConfig DescribeOutput(const io::TensorSource& source, const ModelConfig& model, const Plan& plan,
                                  const Recipe& recipe) {
  const bool like = recipe.like.has_value();
  QuantizationConfig config;
  if (like) config = *recipe.like;
  config.notes.clear();
  std::set<std::string> ignored(config.ignore.begin(), config.ignore.end());
  const auto ignore = [&](const std::string& module) {
    if (std::string entry = TargetOf(module); ignored.insert(entry).second) config.ignore.push_back(std::move(entry));
  };
  std::vector<std::vector<std::string>> modules;  // of each group
  for (const TensorPlan& tensor : plan.tensors) {
    if (!tensor.quantized()) {
      if (const std::optional<std::string> module = ModuleToIgnore(tensor, like)) ignore(*module);
      continue;
    }
    if (like) continue;
    size_t g = 0;
    while (g < config.groups.size() && config.groups[g].scheme != *tensor.decision.scheme) ++g;
    if (g == config.groups.size()) {
      config.groups.push_back({absl::StrCat("group_", g), {}, *tensor.decision.scheme});
      modules.emplace_back();
    }
    modules[g].emplace_back(*ModuleOf(tensor.name()));
  }
  // A head that shares the embedding's tensor is a module of its own when the model is built.
  if (IsTied(source, model) && !HasStoredHead(source)) ignore("lm_head");
  if (like) return config;
  if (config.groups.size() != 1) {
    for (size_t g = 0; g < config.groups.size(); ++g) {
      for (const std::string& module : modules[g]) config.groups[g].targets.push_back(TargetOf(module));
    }
    return config;
  }
  config.groups[0].targets.push_back("Linear");
  for (const std::string& module : modules[0]) {  // those that "Linear" would not cover when this is read again
    if (RuleSet::IsBuiltInIgnored(module)) config.groups[0].targets.push_back(TargetOf(module));
  }
  return config;
}

absl::Status AssignShards(const io::TensorSource& source, const PlanOptions& options, Plan& plan) {
  if (options.single_file || (options.max_shard_bytes == 0 && !options.keep_shards)) {
    plan.shard_names = {io::kModelFile};
    if (options.max_shard_bytes == 0 || plan.new_bytes <= options.max_shard_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--max-shard-size ", options.max_shard_bytes,
                                                   ": the output is one file, of ", plan.new_bytes,
                                                   " bytes; give a folder as output, which may hold several"));
  }
  if (options.max_shard_bytes == 0) {
    plan.shard_names = source.shard_names();
    plan.has_index = true;
    for (TensorPlan& tensor : plan.tensors) tensor.output_shard = tensor.input->shard;
    return absl::OkStatus();
  }
  int shard = 0;
  int64_t bytes = 0;
  for (TensorPlan& tensor : plan.tensors) {
    if (tensor.new_bytes > options.max_shard_bytes) {
      plan.warnings.push_back(absl::StrCat(io::Printable(tensor.name()), ": its ", tensor.new_bytes,
                                           " bytes stay in one file, which exceeds --max-shard-size ",
                                           options.max_shard_bytes));
    }
    if (bytes > 0 && bytes + tensor.new_bytes > options.max_shard_bytes) {
      ++shard;
      bytes = 0;
    }
    tensor.output_shard = shard;
    bytes += tensor.new_bytes;
  }
  plan.has_index = shard > 0;
  if (!plan.has_index) {
    plan.shard_names = {io::kModelFile};
    return absl::OkStatus();
  }
  if (shard >= 99999) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-shard-size ", options.max_shard_bytes, " would make ", shard + 1, " files"));
  }
  for (int i = 0; i <= shard; ++i) {
    plan.shard_names.push_back(absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shard + 1));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const Plan& plan) {
  absl::flat_hash_map<std::string, const TensorPlan*> seen;
  for (const TensorPlan& tensor : plan.tensors) {
    for (const io::TensorSpec& output : tensor.outputs) {
      const auto [it, inserted] = seen.try_emplace(output.name, &tensor);
      if (!inserted) {
        return absl::InvalidArgumentError(absl::StrCat("both ", io::Printable(it->second->name()), " and ",
                                                       io::Printable(tensor.name()), " of the input would become ",
                                                       io::Printable(output.name),
                                                       "; keep the weight in floating point, or remove the other"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRules(const RuleSet& rules, const Recipe& recipe, Plan& plan) {
  for (const std::string& label : rules.Unused()) {
    const std::string message = absl::StrCat(label, " has no effect on this checkpoint");
    if (recipe.strict) return absl::InvalidArgumentError(absl::StrCat(message, " (--strict)"));
    plan.warnings.push_back(message);
  }
  if (recipe.like.has_value()) {
    plan.warnings.insert(plan.warnings.end(), recipe.like->notes.begin(), recipe.like->notes.end());
  }
  if (plan.num_quantized > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "nothing would be quantized: no rule matches a weight that can be quantized; `aqt explain` shows why");
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const io::TensorSource& source, const ModelConfig& model, const Recipe& recipe,
                              const PlanOptions& options) {
  AQT_RETURN_IF_ERROR(CheckNotQuantized(source, model));
  AQT_ASSIGN_OR_RETURN(RuleSet rules, MakeRules(source, recipe));
  const bool tied = IsTied(source, model);
  Plan plan;
  for (const io::TensorInfo& input : source.tensors()) {
    TensorPlan tensor;
    tensor.input = &input;
    AQT_ASSIGN_OR_RETURN(tensor.decision, rules.Decide(input, tied));
    if (tensor.quantized() && options.keep_float.contains(input.name)) {
      tensor.decision.scheme.reset();
      tensor.decision.left_out = true;
      tensor.decision.warning = "holds a NaN or an infinity: left in floating point";
    }
    if (tensor.quantized()) {
      AQT_RETURN_IF_ERROR(CheckWeightRules(recipe, tensor));
      tensor.outputs = OutputTensors(*tensor.decision.scheme, *ModuleOf(tensor.name()), input.dtype, input.shape);
      ++plan.num_quantized;
    } else {
      tensor.outputs = {input};
    }
    tensor.old_bytes = input.num_bytes();
    for (const io::TensorSpec& output : tensor.outputs) {
      AQT_ASSIGN_OR_RETURN(const int64_t bytes, io::TensorBytes(output.dtype, output.shape));
      tensor.new_bytes += bytes;
    }
    plan.old_bytes += tensor.old_bytes;
    plan.new_bytes += tensor.new_bytes;
    plan.tensors.push_back(std::move(tensor));
  }
  AQT_RETURN_IF_ERROR(CheckRules(rules, recipe, plan));
  plan.warnings.insert(plan.warnings.end(), source.warnings().begin(), source.warnings().end());
  AQT_RETURN_IF_ERROR(CheckNames(plan));
  AQT_RETURN_IF_ERROR(AssignShards(source, options, plan));
  plan.quantization_config = DescribeOutput(source, model, plan, recipe);
  return plan;
}

bool HasModule(const io::TensorSource& source, absl::string_view module) {
  return source.Find(absl::StrCat(module, kWeight)) != nullptr;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const io::FileSystem& fs, const io::Checkpoint& checkpoint) {
  ModelConfig config;
  if (!checkpoint.is_folder()) {
    for (const auto& [key, value] : checkpoint.shards()[0].metadata) {
      if (key == kQuantizationConfigKey) config.quantization_config = value;
    }
    return config;
  }
  const std::string path = io::JoinPath(checkpoint.path(), kConfigFile);
  AQT_ASSIGN_OR_RETURN(const bool exists, io::Exists(fs, path));
  if (exists) {
    AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxConfigBytes));
    absl::StatusOr<ModelConfig> parsed = ParseModelConfig(text);
    if (!parsed.ok()) return Annotate(parsed.status(), path);
    config = *std::move(parsed);
  }
  config.quantization_file = FindQuantizationFile(checkpoint.other_files());
  return config;
}

absl::StatusOr<std::string> Explain(const io::TensorSource& source, const ModelConfig& model, const Recipe& recipe,
                                    absl::string_view name) {
  AQT_RETURN_IF_ERROR(CheckNotQuantized(source, model));
  AQT_ASSIGN_OR_RETURN(RuleSet rules, MakeRules(source, recipe));
  const io::TensorInfo* tensor = source.Find(name);
  if (tensor == nullptr) tensor = source.Find(absl::StrCat(name, kWeight));
  if (tensor == nullptr) {
    std::vector<std::string> similar;
    for (const io::TensorInfo& t : source.tensors()) {
      if (similar.size() < 3 && absl::StrContains(t.name, name)) similar.push_back(io::Printable(t.name));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(source.path(), " has no tensor ", io::Printable(name),
                     similar.empty() ? "; `aqt inspect` lists them"
                                     : absl::StrCat("; names with this in them: ", absl::StrJoin(similar, ", "))));
  }
  std::vector<std::string> trace;
  absl::StatusOr<Decision> decision = rules.Decide(*tensor, IsTied(source, model), &trace);
  std::string text =
      absl::StrCat(io::Printable(tensor->name), " ", io::ToString(tensor->dtype), tensor->shape.ToString(), "\n");
  for (const std::string& line : trace) absl::StrAppend(&text, "  ", io::PrintableLine(line), "\n");
  if (!decision.ok()) {
    absl::StrAppend(&text, "  => error: ", io::PrintableLine(decision.status().message()), "\n");
  } else {
    absl::StrAppend(&text, "  => ",
                    decision->scheme.has_value() ? Describe(*decision->scheme) : "carried over as it is", "\n");
  }
  return text;
}

void PrintPlan(const Plan& plan, std::ostream& out) {
  Table table({"tensor", "dtype", "shape", "scheme", "before", "after", "decided by"});
  for (const TensorPlan& t : plan.tensors) {
    table.Add({t.name(), Std(io::ToString(t.input->dtype)), t.input->shape.ToString(),
               t.quantized() ? Describe(*t.decision.scheme) : "-", HumanBytes(t.old_bytes), HumanBytes(t.new_bytes),
               t.decision.reason});
  }
  table.Print(out);
  for (const TensorPlan& t : plan.tensors) {
    if (!t.decision.warning.empty())
      out << "warning: " << io::Printable(t.name()) << ": " << io::PrintableLine(t.decision.warning) << "\n";
  }
  for (const std::string& warning : plan.warnings) out << "warning: " << io::PrintableLine(warning) << "\n";
  out << plan.tensors.size() << " tensors, " << plan.num_quantized << " to be quantized; " << HumanBytes(plan.old_bytes)
      << " -> " << HumanBytes(plan.new_bytes) << " in " << plan.shard_names.size()
      << (plan.shard_names.size() == 1 ? " file" : " files") << "\n";
  const int64_t num_static = std::count_if(plan.tensors.begin(), plan.tensors.end(), [](const TensorPlan& t) {
    return t.quantized() && t.decision.scheme->HasStaticInput();
  });
  if (num_static > 0) {
    out << "static activations of " << num_static << (num_static == 1 ? " weight" : " weights")
        << ": convert reads their ranges from --calibration FILE\n";
  }
}

std::string PlanToJson(const Plan& plan) {
  using Json = nlohmann::ordered_json;
  Json tensors = Json::array();
  for (const TensorPlan& t : plan.tensors) {
    Json outputs = Json::array();
    for (const io::TensorSpec& output : t.outputs) {
      outputs.push_back({{"name", output.name},
                         {"dtype", Std(io::ToString(output.dtype))},
                         {"shape", std::vector<int64_t>(output.shape.begin(), output.shape.end())}});
    }
    Json json = {{"name", t.name()},
                 {"dtype", Std(io::ToString(t.input->dtype))},
                 {"shape", std::vector<int64_t>(t.input->shape.begin(), t.input->shape.end())},
                 {"scheme", t.quantized() ? Json(Describe(*t.decision.scheme)) : Json()},
                 {"decided_by", t.decision.reason},
                 {"warning", t.decision.warning.empty() ? Json() : Json(t.decision.warning)},
                 {"old_bytes", t.old_bytes},
                 {"new_bytes", t.new_bytes},
                 {"file", plan.shard_names[t.output_shard]},
                 {"outputs", std::move(outputs)}};
    tensors.push_back(std::move(json));
  }
  const Json json = {{"tensors", std::move(tensors)},
                     {"num_quantized", plan.num_quantized},
                     {"old_bytes", plan.old_bytes},
                     {"new_bytes", plan.new_bytes},
                     {"files", plan.shard_names},
                     {"warnings", plan.warnings},
                     {"quantization_config", Json::parse(QuantizationConfigToJson(plan.quantization_config))}};
  return json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

}  // namespace aqt::serving
