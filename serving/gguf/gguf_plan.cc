#include "serving/gguf/gguf_plan.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/gguf/tensor_values.h"
#include "aqt/io/printable.h"
#include "re2/re2.h"

namespace aqt::serving {
namespace {

using ggml::Type;
using gguf::GgufTensor;

constexpr char kWeight[] = ".weight";

bool IsBlocks(Type type) { return ggml::InfoOf(type).block_values > 1; }

// A pattern of the user, and whether it has decided anything.
struct Entry {
  std::string label;
  std::unique_ptr<RE2> pattern;
  bool used = false;

  Entry(std::string l, const std::string& p) : label(std::move(l)), pattern(std::make_unique<RE2>(p, RE2::Quiet)) {}
  bool Matches(absl::string_view tensor, absl::string_view module) const {
    const auto full = [&](absl::string_view text) {
      return RE2::FullMatch(re2::StringPiece(text.data(), text.size()), *pattern);
    };
    return full(module) || full(tensor);
  }
};

class Planner {
 public:
  Planner(const ConvertConfig& config, const GgufPlanOptions& options) : config_(config), options_(options) {
    for (size_t i = 0; i < config.rules.size(); ++i) {
      rules_.emplace_back(absl::StrCat("rule ", i + 1, " \"", io::Printable(config.rules[i].name), "\""),
                          config.rules[i].match);
    }
    for (const std::string& pattern : config.ignore) {
      ignores_.emplace_back(absl::StrCat("ignore \"", io::Printable(pattern), "\""), pattern);
    }
  }

  absl::Status CheckRules() const {
    for (size_t i = 0; i < rules_.size(); ++i) {
      if (!config_.rules[i].scheme.has_value()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          rules_[i].label, " quantizes for safetensors, and OUT is a GGUF file: write gguf { type: \"Q4_K\" ",
          "} in the rule or choose a preset gguf_..., or name a folder as OUT"));
    }
    return absl::OkStatus();
  }

  // The type that the rules ask for; that of the tensor if they ask for none.
  absl::StatusOr<GgufTensorPlan> Decide(const GgufTensor& tensor, GgufPlan& plan) {
    GgufTensorPlan result;
    result.type = tensor.type;
    if (!absl::EndsWith(tensor.name, kWeight)) return Stays(result, "not a weight");
    if (tensor.shape.rank() < 2) return Stays(result, absl::StrCat("rank ", tensor.shape.rank()));
    if (!gguf::HasFloats(tensor.type)) return Stays(result, absl::StrCat("type ", ggml::InfoOf(tensor.type).name));
    const absl::string_view module = absl::StripSuffix(tensor.name, kWeight);
    for (size_t i = 0; i < rules_.size(); ++i) {
      const ConfigRule& rule = config_.rules[i];
      if (!rules_[i].Matches(tensor.name, module)) continue;
      if (!rule.gguf.has_value()) {
        rules_[i].used = true;
        return Stays(result, absl::StrCat(rules_[i].label, ": unchanged"));
      }
      if (!rule.override_ignore && IsIgnored(tensor.name, module, result.reason)) continue;
      rules_[i].used = true;
      result.reason = rules_[i].label;
      return Apply(rules_[i], rule, tensor, std::move(result), plan);
    }
    if (result.reason.empty()) result.reason = "no rule matches";
    return result;
  }

  // Reports entries without effect.
  absl::Status CheckUsed(GgufPlan& plan) const {
    for (const std::vector<Entry>* entries : {&rules_, &ignores_}) {
      for (const Entry& entry : *entries) {
        if (entry.used) continue;
        const std::string text = absl::StrCat(entry.label, " has no effect on this file");
        if (options_.strict) return absl::InvalidArgumentError(absl::StrCat(text, "; correct or remove it"));
        plan.warnings.push_back(text);
      }
    }
    return absl::OkStatus();
  }

 private:
  static GgufTensorPlan Stays(GgufTensorPlan plan, std::string reason) {
    plan.reason = std::move(reason);
    return plan;
  }

  bool IsIgnored(absl::string_view tensor, absl::string_view module, std::string& reason) {
    for (Entry& entry : ignores_) {
      if (!entry.Matches(tensor, module)) continue;
      entry.used = true;
      reason = entry.label;
      return true;
    }
    if (!config_.default_ignore || !IsIgnoredInGguf(module)) return false;
    reason = "the built-in ignore list";
    return true;
  }

  absl::StatusOr<GgufTensorPlan> Apply(const Entry& entry, const ConfigRule& rule, const GgufTensor& tensor,
                                       GgufTensorPlan result, GgufPlan& plan) const {
    const int64_t cols = tensor.cols();
    result.type = *rule.gguf;
    if (cols % ggml::InfoOf(*rule.gguf).block_values != 0) {
      const std::string misfit =
          absl::StrCat("rows of ", cols, " values do not fill blocks of ", ggml::InfoOf(*rule.gguf).name,
                       ", which have ", ggml::InfoOf(*rule.gguf).block_values);
      if (!rule.keep_unsuitable) {
        return absl::InvalidArgumentError(
            absl::StrCat(entry.label, ", tensor ", io::Printable(tensor.name), ": ", misfit,
                         "; leave the tensor out, or set on_unsuitable: ON_UNSUITABLE_KEEP_FLOAT"));
      }
      const bool fits = cols % ggml::InfoOf(Type::kQ8_0).block_values == 0;
      result.type = fits ? Type::kQ8_0 : tensor.type;
      plan.warnings.push_back(
          absl::StrCat(io::Printable(tensor.name), fits ? " becomes Q8_0: " : " stays as it is: ", misfit));
    }
    result.changed = result.type != tensor.type;
    return result;
  }

  const ConvertConfig& config_;
  const GgufPlanOptions options_;
  std::vector<Entry> rules_, ignores_;
};

absl::Status CheckRequantized(const gguf::GgufModel& model, const GgufPlanOptions& options, GgufPlan& plan) {
  const GgufTensor* first = nullptr;
  for (const GgufTensorPlan& tensor : plan.tensors) {
    const GgufTensor& from = model.files()[tensor.file].tensors()[tensor.tensor];
    if (!tensor.changed || !IsBlocks(from.type) || !IsBlocks(tensor.type)) continue;
    if (first == nullptr) first = &from;
    ++plan.num_requantized;
  }
  if (first == nullptr) return absl::OkStatus();
  const std::string what = absl::StrCat(plan.num_requantized, " of the weights are quantized already (",
                                        io::Printable(first->name), ": ", ggml::InfoOf(first->type).name, ")");
  if (!options.allow_requantize) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "; --allow-requantize decodes and rounds them again, which adds to their error: start from ",
                     "an F16, BF16 or F32 file if you can"));
  }
  plan.warnings.push_back(absl::StrCat(what,
                                       ": they are decoded and rounded again, so that the errors of both roundings ",
                                       "are in the output; start from an F16, BF16 or F32 file if you can"));
  return absl::OkStatus();
}

}  // namespace

bool IsIgnoredInGguf(absl::string_view module) {
  const size_t dot = module.rfind('.');
  const absl::string_view last = dot == absl::string_view::npos ? module : module.substr(dot + 1);
  return last == "output" || last == "token_types" || last == "cls" || absl::StrContains(last, "embd") ||
         absl::StrContains(last, "norm") || absl::StartsWith(last, "ffn_gate_inp") || absl::StartsWith(last, "rope_") ||
         absl::StartsWith(last, "attn_rel_b") || absl::StrContains(last, "conv");
}

absl::StatusOr<GgufPlan> MakeGgufPlan(const gguf::GgufModel& model, const ConvertConfig& config,
                                      const GgufPlanOptions& options) {
  Planner planner(config, options);
  AQT_RETURN_IF_ERROR(planner.CheckRules());
  GgufPlan plan;
  for (size_t file = 0; file < model.files().size(); ++file) {
    const std::vector<GgufTensor>& tensors = model.files()[file].tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      AQT_ASSIGN_OR_RETURN(GgufTensorPlan tensor, planner.Decide(tensors[i], plan));
      tensor.file = static_cast<int>(file);
      tensor.tensor = static_cast<int>(i);
      AQT_ASSIGN_OR_RETURN(const int64_t bytes, gguf::TensorBytes(tensor.type, tensors[i].shape));
      plan.num_changed += tensor.changed ? 1 : 0;
      plan.old_bytes += tensors[i].num_bytes();
      plan.new_bytes += bytes;
      plan.tensors.push_back(std::move(tensor));
    }
  }
  if (plan.num_changed == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no tensor of '", io::PrintableLine(model.path()),
        "' would change: each has the type already, is on an ignore ",
        "list (embeddings, output head, norms, routers: default_ignore: false includes them), or matches no rule"));
  }
  AQT_RETURN_IF_ERROR(planner.CheckUsed(plan));
  AQT_RETURN_IF_ERROR(CheckRequantized(model, options, plan));
  return plan;
}

}  // namespace aqt::serving
