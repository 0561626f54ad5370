#include "serving/plan/plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/safetensors.h"
#include "serving/families/module_name.h"
#include "serving/families/module_roles.h"
#include "serving/formats/quantized_already.h"
#include "serving/plan/fused_groups.h"
#include "serving/plan/global_scales.h"
#include "serving/plan/ignore_list.h"
#include "serving/plan/whole_checkpoint.h"
#include "serving/tools/report_json-inl.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

std::string Std(absl::string_view s) { return std::string(s.data(), s.size()); }

ModuleRoles MakeRoles(const io::TensorSource& source, const ModelConfig& model, const Recipe& recipe) {
  if (!recipe.config.has_value()) return ModuleRoles(source, model.facts);
  return ModuleRoles(source, model.facts, recipe.config->families);
}

absl::StatusOr<RuleSet> MakeRules(const io::TensorSource& source, const ModuleRoles& roles, const Recipe& recipe,
                                  const CheckpointPlanOptions& options) {
  absl::StatusOr<RuleSet> rules =
      recipe.like.has_value()
          ? RuleSet::FromQuantizationConfig(*recipe.like, roles,
                                            [&source](absl::string_view module) { return HasModule(source, module); })
          : RuleSet::FromConfig(*recipe.config, roles);
  if (rules.ok()) rules->SetExperts(options.experts);
  return rules;
}

// RuleSet::RoleOf of the source's tensors, in order.
using TensorRoles = std::vector<std::optional<ModuleRole>>;
TensorRoles RolesOf(const io::TensorSource& source, const ModuleRoles& roles) {
  TensorRoles tensor_roles;
  for (const io::TensorInfo& tensor : source.tensors()) tensor_roles.push_back(RuleSet::RoleOf(tensor, roles));
  return tensor_roles;
}

// Whether input and output embeddings are one tensor, and the head's names in loaders if it is not stored.
struct Tied {
  bool tied = false;
  std::vector<std::string> heads;
};
Tied FindTied(const ModelConfig& model, const ModuleRoles& roles, const TensorRoles& tensor_roles) {
  const bool stored = std::any_of(tensor_roles.begin(), tensor_roles.end(),
                                  [](const auto& role) { return role.has_value() && role->role == Role::kHead; });
  const bool tied = model.tie_word_embeddings.value_or(model.facts.has_output_head && !stored);
  return {tied, stored ? std::vector<std::string>() : roles.HeadsWithoutWeight(tied)};
}

absl::Status CheckWeightRules(const Recipe& recipe, const TensorPlan& tensor) {
  if (recipe.weight_rules != WeightRules::kAqt) return absl::OkStatus();
  const WeightScheme& weights = tensor.decision.scheme->weights;
  const char* what = weights.type != ValueType::kInt              ? "are for integers; use integers"
                     : !weights.symmetric                         ? "are symmetric; use symmetric weights"
                     : weights.strategy == WeightStrategy::kBlock ? "have no blocks of rows and columns; use groups"
                                                                  : nullptr;
  if (what == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(io::Printable(tensor.name()), ", by ", tensor.decision.reason,
                                               ": AQT's weight rules ", what, ", or the compressed_tensors rules"));
}

// Whether the embedding is quantized for the output head, too, which uses its tensor.
bool QuantizesHeads(const Plan& plan, bool tied) {
  return tied && std::any_of(plan.tensors.begin(), plan.tensors.end(), [](const TensorPlan& tensor) {
           return tensor.quantized() && tensor.decision.role == Role::kEmbedding;
         });
}

// Whether the class Linear would not cover the quantized module when the output is read again: with all facts about the
// model, or, as for a single file, without its config.json and the user's families.
bool NeedsTarget(const TensorPlan& tensor) {
  static const auto* const by_name = new ModuleRoles();
  return IsEmbeddingName(tensor.module()) || IsOutsideOfLinear(tensor.decision.role) ||
         IsOutsideOfLinear(by_name->Of(tensor.module(), tensor.input->shape).role);
}

// The configuration that a loader needs. With one scheme: the class Linear, except the modules that stayed in floating
// point. With several: every module by name.
QuantizationConfig DescribeOutput(const Plan& plan, const Recipe& recipe, const ModuleRoles& roles, const Tied& tied) {
  const bool with_heads = QuantizesHeads(plan, tied.tied);
  const std::vector<std::string> heads = with_heads ? std::vector<std::string>() : tied.heads;
  const bool like = recipe.like.has_value();
  QuantizationConfig config;
  if (like) config = *recipe.like;
  config.notes.clear();
  std::set<std::string> ignored(config.ignore.begin(), config.ignore.end());
  for (std::string& entry :
       IgnoreEntries(roles, plan.tensors, {.only_left_out = like, .embeddings = like, .heads = heads})) {
    if (ignored.insert(entry).second) config.ignore.push_back(std::move(entry));
  }
  if (like) return config;
  std::vector<std::vector<const TensorPlan*>> modules;  // of each group
  for (const TensorPlan& tensor : plan.tensors) {
    if (!tensor.quantized()) continue;
    size_t g = 0;
    while (g < config.groups.size() && config.groups[g].scheme != *tensor.decision.scheme) ++g;
    if (g == config.groups.size()) {
      config.groups.push_back({absl::StrCat("group_", g), {}, *tensor.decision.scheme});
      modules.emplace_back();
    }
    modules[g].push_back(&tensor);
  }
  const bool by_class = config.groups.size() == 1;
  if (by_class) config.groups[0].targets.push_back("Linear");
  for (size_t g = 0; g < config.groups.size(); ++g) {
    for (const TensorPlan* tensor : modules[g]) {
      if (by_class && !NeedsTarget(*tensor)) continue;
      const absl::string_view module = tensor->module();
      config.groups[g].targets.push_back(TargetOf(module));
      if (with_heads && tensor->decision.role == Role::kEmbedding) {
        for (const std::string& head : tied.heads) config.groups[g].targets.push_back(head);
      }
      const absl::string_view asked = ExpertsOf(module).empty() ? "" : roles.AskedName(LastPartOf(module));
      if (!asked.empty()) config.groups[g].targets.push_back(absl::StrCat(ParentOf(module), ".", asked));
    }
  }
  return config;
}

// Files for the tensors as their shards are in the input. Files that would be empty, because they held only parts of
// quantized weights, are left out, and the others numbered anew, as are those of another format than safetensors.
void KeepShards(const io::TensorSource& source, const CheckpointPlanOptions& options, Plan& plan) {
  std::vector<int> number(source.shards().size(), -1);
  for (const TensorPlan& tensor : plan.tensors) number[tensor.input->shard] = 0;
  const auto used = static_cast<int>(std::count(number.begin(), number.end(), 0));
  const bool keep_names = used == static_cast<int>(number.size()) &&
                          absl::c_all_of(source.shards(), [](const io::TensorSource::Shard& shard) {
                            return absl::EndsWith(shard.name, io::kSafetensorsSuffix);
                          });
  plan.has_index = true;
  int next = 0;
  for (size_t shard = 0; shard < number.size(); ++shard) {
    if (number[shard] < 0) continue;
    number[shard] = next++;
    plan.shard_names.push_back(keep_names ? source.shards()[shard].name
                                          : absl::StrFormat("%s-%05d-of-%05d.safetensors", options.stem, next, used));
  }
  for (TensorPlan& tensor : plan.tensors) tensor.output_shard = number[tensor.input->shard];
}

absl::Status AssignShards(const io::TensorSource& source, const CheckpointPlanOptions& options, Plan& plan) {
  if (options.single_file || (options.max_shard_bytes == 0 && !options.keep_shards)) {
    plan.shard_names = {absl::StrCat(options.stem, io::kSafetensorsSuffix)};
    if (options.max_shard_bytes == 0 || plan.new_bytes <= options.max_shard_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--max-shard-size ", options.max_shard_bytes,
                                                   ": the output is one file of ", plan.new_bytes,
                                                   " bytes; give a folder as the output to allow several files"));
  }
  if (options.max_shard_bytes == 0) {
    KeepShards(source, options, plan);
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
    plan.shard_names = {absl::StrCat(options.stem, io::kSafetensorsSuffix)};
    return absl::OkStatus();
  }
  if (shard >= 99999) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-shard-size ", options.max_shard_bytes, " would make ", shard + 1, " files"));
  }
  for (int i = 0; i <= shard; ++i) {
    plan.shard_names.push_back(absl::StrFormat("%s-%05d-of-%05d.safetensors", options.stem, i + 1, shard + 1));
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

// The reasons why the candidates of the plan stay in floating point, each once, with the number of weights; the most
// frequent one first.
std::string WhyNothing(const Plan& plan) {
  std::vector<std::pair<std::string, int>> reasons;
  const auto count = [&](const std::string& reason) {
    auto it = std::find_if(reasons.begin(), reasons.end(), [&](const auto& r) { return r.first == reason; });
    if (it == reasons.end()) it = reasons.insert(it, {reason, 0});
    ++it->second;
  };
  int no_weights = 0;
  for (const TensorPlan& tensor : plan.tensors) {
    const Decision& decision = tensor.decision;
    if (!decision.candidate && decision.role != Role::kExperts) ++no_weights;
    else count(decision.warning.empty() ? decision.reason : decision.warning);
  }
  std::stable_sort(reasons.begin(), reasons.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (no_weights > 0) reasons.emplace_back("not a weight of rank 2 or more", no_weights);
  constexpr size_t kMaxReasons = 8;
  const size_t more = reasons.size() - std::min(reasons.size(), kMaxReasons);
  reasons.resize(reasons.size() - more);
  return absl::StrCat(absl::StrJoin(reasons, "; ",
                                    [](std::string* out, const auto& reason) {
                                      absl::StrAppend(out, reason.second,
                                                      reason.second == 1 ? " tensor: " : " tensors: ", reason.first);
                                    }),
                      more > 0 ? absl::StrCat("; and ", more, " more reasons") : "");
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
      absl::StrCat("nothing would be quantized: no rule matches a weight that can be quantized (", WhyNothing(plan),
                   "); `aqt explain` shows the rules for one tensor"));
}

// Warnings about the model as a whole.
void AddModelWarnings(const ModuleRoles& roles, Plan& plan) {
  if (!roles.unknown_type().empty()) {
    plan.warnings.push_back(
        absl::StrCat("the model type ", roles.unknown_type(),
                     " is not in the table of model families: the roles of its modules are inferred from "
                     "names and shapes; check them with `aqt plan`, and add a `family` to the configuration if they "
                     "are wrong"));
  }
  std::map<std::string, int> towers;
  for (const TensorPlan& tensor : plan.tensors) {
    if (tensor.decision.left_out && tensor.decision.role == Role::kTower && tensor.input->shape.rank() == 2) {
      ++towers[tensor.decision.tower];
    }
  }
  for (const auto& [tower, count] : towers) {
    plan.warnings.push_back(absl::StrCat(
        io::Printable(tower), ": ", count,
        count == 1 ? " weight of this vision or audio part stays" : " weights of this vision or audio part stay",
        " in floating point, as servers expect; a rule with override_ignore quantizes ", count == 1 ? "it" : "them"));
  }
}

// Decides for each tensor, then makes the decisions of each fused group consistent.
absl::Status DecideAll(const io::TensorSource& source, RuleSet& rules, const ModuleRoles& roles,
                       const TensorRoles& tensor_roles, bool tied, const CheckpointPlanOptions& options, Plan& plan) {
  for (size_t i = 0; i < tensor_roles.size(); ++i) {
    const io::TensorInfo& input = source.tensors()[i];
    TensorPlan tensor;
    tensor.input = &input;
    AQT_ASSIGN_OR_RETURN(tensor.decision, rules.Decide(input, tensor_roles[i], tied));
    if (tensor.quantized() && options.keep_float.contains(input.name)) {
      tensor.decision.scheme.reset();
      tensor.decision.left_out = true;
      tensor.decision.non_finite = true;
      tensor.decision.warning = "holds a NaN or an infinity: left in floating point";
    }
    plan.tensors.push_back(std::move(tensor));
  }
  AQT_ASSIGN_OR_RETURN(std::vector<std::string> split, SettleFusedGroups(roles, plan.tensors));
  std::move(split.begin(), split.end(), std::back_inserter(plan.warnings));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const io::TensorSource& source, const ModelConfig& model, const Recipe& recipe,
                              const CheckpointPlanOptions& options) {
  AQT_RETURN_IF_ERROR(CheckNotQuantized(source, model));
  const ModuleRoles roles = MakeRoles(source, model, recipe);
  AQT_ASSIGN_OR_RETURN(RuleSet rules, MakeRules(source, roles, recipe, options));
  const TensorRoles tensor_roles = RolesOf(source, roles);
  const Tied tied = FindTied(model, roles, tensor_roles);
  Plan plan;
  AQT_RETURN_IF_ERROR(DecideAll(source, rules, roles, tensor_roles, tied.tied, options, plan));
  for (TensorPlan& tensor : plan.tensors) {
    const io::TensorInfo& input = *tensor.input;
    if (tensor.quantized()) {
      AQT_RETURN_IF_ERROR(CheckWeightRules(recipe, tensor));
      tensor.outputs = OutputTensors(*tensor.decision.scheme, tensor.module(), input.dtype, input.shape);
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
  }
  FindScaleSets(roles, plan.tensors);
  AQT_RETURN_IF_ERROR(CheckRules(rules, recipe, plan));
  AddModelWarnings(roles, plan);
  plan.warnings.insert(plan.warnings.end(), source.warnings().begin(), source.warnings().end());
  AQT_RETURN_IF_ERROR(CheckNames(plan));
  AQT_RETURN_IF_ERROR(AssignShards(source, options, plan));
  plan.quantization_config = DescribeOutput(plan, recipe, roles, tied);
  return plan;
}

absl::StatusOr<Plan> MakeCopyPlan(const io::TensorSource& source, const CheckpointPlanOptions& options) {
  Plan plan;
  for (const io::TensorInfo& input : source.tensors()) {
    TensorPlan tensor;
    tensor.input = &input;
    tensor.outputs = {input};
    tensor.old_bytes = tensor.new_bytes = input.num_bytes();
    plan.old_bytes += tensor.old_bytes;
    plan.new_bytes += tensor.new_bytes;
    plan.tensors.push_back(std::move(tensor));
  }
  plan.warnings = source.warnings();
  AQT_RETURN_IF_ERROR(AssignShards(source, options, plan));
  return plan;
}

std::vector<std::string> AllWarnings(const Plan& plan) {
  struct Line {
    const TensorPlan* first;
    int count = 0;
  };
  std::vector<Line> lines;
  absl::flat_hash_map<std::string, size_t> line_of;
  for (const TensorPlan& tensor : plan.tensors) {
    if (tensor.decision.warning.empty()) continue;
    const auto [it, inserted] =
        line_of.try_emplace(absl::StrCat(WithoutNumbers(tensor.name()), "\n", tensor.decision.warning), lines.size());
    if (inserted) lines.push_back({&tensor});
    ++lines[it->second].count;
  }
  std::vector<std::string> warnings;
  for (const auto& [first, count] : lines) {
    warnings.push_back(absl::StrCat(io::Printable(first->name()),
                                    count > 1 ? absl::StrCat(" and ", count - 1, " like it") : "", ": ",
                                    first->decision.warning));
  }
  warnings.insert(warnings.end(), plan.warnings.begin(), plan.warnings.end());
  return warnings;
}

bool HasModule(const io::TensorSource& source, absl::string_view module) {
  return source.Find(absl::StrCat(module, kWeight)) != nullptr;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const io::FileSystem& fs, const io::Checkpoint& checkpoint) {
  ModelConfig config;
  if (const std::string& own = checkpoint.shards()[0].config; !own.empty()) return ParseModelConfig(own);
  const absl::StatusOr<std::string> text = ReadConfigFile(fs, ConfigFileOf(checkpoint));
  if (text.ok() && !text->empty()) {
    AQT_ASSIGN_OR_RETURN(config, ParseModelConfig(*text));
  }
  if (checkpoint.is_folder()) {
    AQT_RETURN_IF_ERROR(text.status());
    config.quantization_file = FindQuantizationFile(checkpoint.other_files());
    return config;
  }
  for (const auto& [key, value] : checkpoint.shards()[0].metadata) {
    if (key == kQuantizationConfigKey) config.quantization_config = value;
  }
  return config;
}

absl::StatusOr<Explanation> Explain(const io::TensorSource& source, const ModelConfig& model, const Recipe& recipe,
                                    absl::string_view name, const CheckpointPlanOptions& options) {
  AQT_RETURN_IF_ERROR(CheckNotQuantized(source, model));
  const ModuleRoles roles = MakeRoles(source, model, recipe);
  AQT_ASSIGN_OR_RETURN(RuleSet rules, MakeRules(source, roles, recipe, options));
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
                                     : absl::StrCat("; names that contain it: ", absl::StrJoin(similar, ", "))));
  }
  Explanation explanation;
  explanation.tensor = *tensor;
  explanation.model = roles.description();
  const bool tied = FindTied(model, roles, RolesOf(source, roles)).tied;
  const absl::StatusOr<Decision> decision = rules.Decide(*tensor, tied, &explanation.rules);
  if (!decision.ok()) {
    explanation.error = std::string(decision.status().message());
  } else if (decision->scheme.has_value()) {
    explanation.scheme = Describe(*decision->scheme);
  }
  return explanation;
}

void PrintExplanation(const Explanation& explanation, std::ostream& out) {
  if (!explanation.split.empty()) {
    out << io::Printable(explanation.tensor.name) << "\n  " << io::PrintableLine(explanation.split) << "\n";
    return;
  }
  out << io::Printable(explanation.tensor.name) << " " << io::ToString(explanation.tensor.dtype)
      << explanation.tensor.shape << "\n  " << explanation.model << "\n";
  for (const std::string& line : explanation.rules) out << "  " << io::PrintableLine(line) << "\n";
  out << "  => ";
  if (!explanation.error.empty()) {
    out << "error: " << io::PrintableLine(explanation.error) << "\n";
  } else {
    out << (explanation.scheme.empty() ? "carried over as it is" : explanation.scheme) << "\n";
  }
}

std::string ExplanationToJson(const Explanation& explanation) {
  const auto text = [](const std::string& value) { return value.empty() ? ReportJson() : ReportJson(value); };
  const Shape& shape = explanation.tensor.shape;
  ReportJson json = NewReport();
  json["tensor"] = explanation.tensor.name;
  json["dtype"] = Std(io::ToString(explanation.tensor.dtype));
  json["shape"] = std::vector<int64_t>(shape.begin(), shape.end());
  json["model"] = explanation.model;
  json["rules"] = explanation.rules;
  json["scheme"] = text(explanation.scheme);
  json["error"] = text(explanation.error);
  json["split"] = text(explanation.split);
  return ReportText(json);
}

void PrintPlan(const Plan& plan, std::ostream& out) {
  Table table({"tensor", "dtype", "shape", "scheme", "before", "after", "decided by"});
  for (const TensorPlan& t : plan.tensors) {
    table.Add({t.name(), Std(io::ToString(t.input->dtype)), t.input->shape.ToString(),
               t.quantized() ? Describe(*t.decision.scheme) : "-", HumanBytes(t.old_bytes), HumanBytes(t.new_bytes),
               t.decision.reason});
  }
  table.Print(out);
  for (const std::string& warning : AllWarnings(plan)) out << "warning: " << io::PrintableLine(warning) << "\n";
  if (!plan.experts.empty()) out << "experts: " << io::PrintableLine(plan.experts) << "\n";
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

std::string PlanToJson(const Plan& plan, absl::Span<const CopiedFile> copied) {
  ReportJson tensors = ReportJson::array();
  for (const TensorPlan& t : plan.tensors) {
    ReportJson outputs = ReportJson::array();
    for (const io::TensorSpec& output : t.outputs) {
      outputs.push_back({{"name", output.name},
                         {"dtype", Std(io::ToString(output.dtype))},
                         {"shape", std::vector<int64_t>(output.shape.begin(), output.shape.end())}});
    }
    ReportJson json = {{"name", t.name()},
                       {"dtype", Std(io::ToString(t.input->dtype))},
                       {"shape", std::vector<int64_t>(t.input->shape.begin(), t.input->shape.end())},
                       {"scheme", t.quantized() ? ReportJson(Describe(*t.decision.scheme)) : ReportJson()},
                       {"decided_by", t.decision.reason},
                       {"warning", t.decision.warning.empty() ? ReportJson() : ReportJson(t.decision.warning)},
                       {"old_bytes", t.old_bytes},
                       {"new_bytes", t.new_bytes},
                       {"file", plan.shard_names[t.output_shard]},
                       {"outputs", std::move(outputs)}};
    if (!t.scale_set.empty()) json["global_scale_of"] = t.scale_set;
    tensors.push_back(std::move(json));
  }
  ReportJson files = ReportJson::array();
  for (const CopiedFile& file : copied) files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  ReportJson json = NewReport();
  json["tensors"] = std::move(tensors);
  json["num_quantized"] = plan.num_quantized;
  json["old_bytes"] = plan.old_bytes;
  json["new_bytes"] = plan.new_bytes;
  json["files"] = plan.shard_names;
  json["copied"] = std::move(files);
  json["experts"] = plan.experts.empty() ? ReportJson() : ReportJson(plan.experts);
  json["warnings"] = plan.warnings;
  json["quantization_config"] = ReportJson::parse(QuantizationConfigToJson(plan.quantization_config));
  return ReportText(json);
}

}  // namespace aqt::serving
