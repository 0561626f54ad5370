#include "serving/families/model_family.h"

#include <algorithm>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "google/protobuf/text_format.h"
#include "re2/re2.h"
#include "serving/families/model_families_text.h"

namespace aqt::serving {
namespace {

using Strings = google::protobuf::RepeatedPtrField<std::string>;

std::vector<std::string> ToVector(const Strings& strings) { return {strings.begin(), strings.end()}; }

absl::Status CheckPatterns(const config::ModelFamily& message, const char* field, const Strings& patterns,
                           const config::Place& place) {
  for (int i = 0; i < patterns.size(); ++i) {
    const RE2 re(patterns[i], RE2::Quiet);
    if (re.ok()) continue;
    return place.In(message, field, i)
        .Error(absl::StrCat("\"", patterns[i], "\" is not a valid regular expression (RE2): ", re.error()));
  }
  return absl::OkStatus();
}

// "gptneox" for "gpt_neox", "gpt-neox" and "GPTNeoX".
std::string Plain(absl::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (absl::ascii_isalnum(c)) plain += absl::ascii_tolower(c);
  }
  return plain;
}

// "Qwen2" for "Qwen2ForCausalLM": the part that transformers puts before the task.
absl::string_view WithoutTask(absl::string_view architecture) {
  if (const size_t task = architecture.find("For"); task != absl::string_view::npos && task > 0) {
    return architecture.substr(0, task);
  }
  for (const char* suffix : {"WithLMHeadModel", "LMHeadModel", "EncoderModel", "DoubleHeadsModel", "Model"}) {
    if (absl::ConsumeSuffix(&architecture, suffix)) break;
  }
  return architecture;
}

bool HasType(const ModelFamily& family, absl::string_view plain_type) {
  return std::any_of(family.model_types.begin(), family.model_types.end(),
                     [&](const std::string& type) { return Plain(type) == plain_type; });
}

bool HasArchitecture(const ModelFamily& family, const std::string& architecture) {
  return absl::c_linear_search(family.architectures, architecture) || HasType(family, Plain(WithoutTask(architecture)));
}

// Whether the family describes the model as a whole: by its outermost type, or by its class.
bool IsOfModel(const ModelFamily& family, const ModelFacts& facts) {
  if (!facts.model_types.empty() && HasType(family, Plain(facts.model_types.front()))) return true;
  return std::any_of(facts.architectures.begin(), facts.architectures.end(),
                     [&](const std::string& name) { return HasArchitecture(family, name); });
}

bool IsOfPart(const ModelFamily& family, const ModelFacts& facts) {
  return std::any_of(facts.model_types.begin(), facts.model_types.end(),
                     [&](const std::string& type) { return HasType(family, Plain(type)); });
}

// The fields that hold patterns for the names of modules, in the order in which they are tried.
struct PatternField {
  const char* name;
  Role role;
  const Strings& (config::ModelFamily::*get)() const;
};
constexpr PatternField kPatternFields[] = {
    {"linear", Role::kLinear, &config::ModelFamily::linear},
    {"head", Role::kHead, &config::ModelFamily::head},
    {"embedding", Role::kEmbedding, &config::ModelFamily::embedding},
    {"norm", Role::kNorm, &config::ModelFamily::norm},
    {"router", Role::kRouter, &config::ModelFamily::router},
    {"positions", Role::kPositions, &config::ModelFamily::positions},
    {"transposed", Role::kTransposed, &config::ModelFamily::transposed},
    {"classifier", Role::kClassifier, &config::ModelFamily::classifier},
    {"mtp", Role::kMtp, &config::ModelFamily::mtp},
};

absl::Status Check(const config::ModelFamily& message, const config::Place& place) {
  if (message.name().empty()) return place.Error("a family needs a name");
  for (const PatternField& field : kPatternFields) {
    AQT_RETURN_IF_ERROR(CheckPatterns(message, field.name, (message.*field.get)(), place));
  }
  AQT_RETURN_IF_ERROR(CheckPatterns(message, "tower", message.tower(), place));
  for (int i = 0; i < message.fused_size(); ++i) {
    if (message.fused(i).part_size() < 2) {
      return place.In(message, "fused", i).Error("a fused group needs at least two parts");
    }
  }
  for (int i = 0; i < message.expert_name_size(); ++i) {
    if (message.expert_name(i).stored().empty() || message.expert_name(i).asked().empty()) {
      return place.In(message, "expert_name", i).Error("expert_name needs stored and asked");
    }
  }
  for (int i = 0; i < message.fused_experts_size(); ++i) {
    const config::FusedExperts& fused = message.fused_experts(i);
    if (fused.stored().empty() || fused.part().empty()) {
      return place.In(message, "fused_experts", i).Error("fused_experts needs stored and at least one part");
    }
    for (int j = 0; j < i; ++j) {
      if (message.fused_experts(j).stored() != fused.stored()) continue;
      return place.In(message, "fused_experts", i)
          .Error(absl::StrCat("there are two fused_experts for \"", fused.stored(), "\""));
    }
  }
  return absl::OkStatus();
}

ModelFamily ToFamily(const config::ModelFamily& message) {
  ModelFamily family;
  family.name = message.name();
  family.model_types = ToVector(message.model_type());
  family.architectures = ToVector(message.architecture());
  family.tied_heads = ToVector(message.tied_head());
  for (const PatternField& field : kPatternFields) {
    const Strings& patterns = (message.*field.get)();
    if (!patterns.empty()) family.patterns.emplace_back(field.role, ToVector(patterns));
  }
  family.towers = ToVector(message.tower());
  if (message.has_has_towers()) family.has_towers = message.has_towers();
  for (const config::FusedGroup& group : message.fused()) family.fused.push_back(ToVector(group.part()));
  for (const config::ExpertName& name : message.expert_name()) {
    family.expert_names.emplace_back(name.stored(), name.asked());
  }
  for (const config::FusedExperts& fused : message.fused_experts()) {
    family.fused_experts.push_back(
        {fused.stored(), ToVector(fused.part()), fused.in_out(), fused.either_order(), fused.interleaved()});
  }
  return family;
}

}  // namespace

absl::StatusOr<ModelFamily> ReadModelFamily(const config::ModelFamily& message, const config::Place& place) {
  AQT_RETURN_IF_ERROR(Check(message, place));
  return ToFamily(message);
}

const std::vector<ModelFamily>& BuiltInFamilies() {
  // Not validated here: a test does so, and compiling each pattern would take milliseconds at every start.
  static const auto* const families = new std::vector<ModelFamily>([] {
    config::ModelFamilies message;
    AQT_CHECK(google::protobuf::TextFormat::ParseFromString(ModelFamiliesText()[0].text, &message));
    std::vector<ModelFamily> result;
    for (const config::ModelFamily& family : message.family()) result.push_back(ToFamily(family));
    return result;
  }());
  return *families;
}

std::vector<const ModelFamily*> FamiliesOf(const ModelFacts& facts, absl::Span<const ModelFamily> own) {
  std::vector<const ModelFamily*> result;
  for (const absl::Span<const ModelFamily> table : {own, absl::Span<const ModelFamily>(BuiltInFamilies())}) {
    std::vector<const ModelFamily*> of_parts, of_all;
    for (const ModelFamily& family : table) {
      if (family.for_every_model()) of_all.push_back(&family);
      else if (IsOfModel(family, facts)) result.push_back(&family);
      else if (IsOfPart(family, facts)) of_parts.push_back(&family);
    }
    result.insert(result.end(), of_parts.begin(), of_parts.end());
    result.insert(result.end(), of_all.begin(), of_all.end());
  }
  return result;
}

bool IsKnown(const ModelFacts& facts, absl::Span<const ModelFamily* const> families) {
  return std::any_of(families.begin(), families.end(), [&](const ModelFamily* family) {
    return !family->for_every_model() && IsOfModel(*family, facts);
  });
}

std::string TypeName(const ModelFacts& facts) {
  return !facts.model_types.empty()     ? facts.model_types.front()
         : !facts.architectures.empty() ? facts.architectures.front()
                                        : "";
}

}  // namespace aqt::serving
