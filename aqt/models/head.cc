#include "aqt/models/head.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/core/status_macros.h"

namespace aqt::models {
namespace {

constexpr int64_t kMaxLabels = 1 << 20;

enum class HeadKind : uint8_t { kNone, kSequence, kTokens };

HeadKind KindOf(ConfigFields& fields, bool pooled) {
  const std::vector<std::string> classes = fields.Texts("architectures");
  if (pooled || classes.empty()) return HeadKind::kNone;
  const std::string& name = classes[0];
  if (absl::EndsWith(name, "ForSequenceClassification")) return HeadKind::kSequence;
  if (absl::EndsWith(name, "ForTokenClassification")) return HeadKind::kTokens;
  const bool has_head = absl::StrContains(name, "For") || absl::EndsWith(name, "LMHeadModel");
  if (has_head && !absl::EndsWith(name, "ForMaskedLM") && !absl::EndsWith(name, "ForPreTraining")) {
    fields.Refuse("architectures",
                  "a class ...Model, ...ForMaskedLM, ...ForPreTraining, ...ForSequenceClassification or "
                  "...ForTokenClassification; other heads are not computed");
  }
  return HeadKind::kNone;
}

std::vector<std::string> ReadLabels(ConfigFields& fields) {
  std::vector<std::string> labels = fields.Numbered("id2label");
  const int64_t otherwise = labels.empty() ? 2 : static_cast<int64_t>(labels.size());
  const int64_t count = fields.Count("num_labels", otherwise);
  if (count == static_cast<int64_t>(labels.size())) return labels;
  if (count > kMaxLabels) {
    fields.Refuse("num_labels", absl::StrCat("at most ", kMaxLabels));
    return labels;
  }
  labels.clear();
  for (int64_t i = 0; i < count; ++i) labels.push_back(absl::StrCat("LABEL_", i));
  return labels;
}

ScoreFunction ByProblemType(ConfigFields& fields, size_t labels) {
  const std::string type = fields.Text("problem_type", "");
  if (type == "regression") return ScoreFunction::kIdentity;
  if (type == "multi_label_classification") return ScoreFunction::kSigmoid;
  if (!type.empty() && type != "single_label_classification") {
    fields.Refuse("problem_type", "regression, single_label_classification or multi_label_classification");
  }
  return labels == 1 ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
}

// By the name of a class of torch in the field `name`.
ScoreFunction ReadActivationClass(ConfigFields& fields, const std::string& name) {
  const std::string path = fields.Text(name, "");
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '.');
  if (absl::StartsWith(path, "torch.")) {
    if (parts.back() == "Identity") return ScoreFunction::kIdentity;
    if (parts.back() == "Sigmoid") return ScoreFunction::kSigmoid;
    if (parts.back() == "Softmax") return ScoreFunction::kSoftmax;
    if (parts.back() == "Tanh") return ScoreFunction::kTanh;
  }
  fields.Refuse(name,
                "torch.nn.modules.linear.Identity, torch.nn.modules.activation.Sigmoid, ...Softmax or ...Tanh; other "
                "activations are not computed");
  return ScoreFunction::kIdentity;
}

// What sentence-transformers says about a CrossEncoder.
struct CrossEncoderConfig {
  bool found = false;
  std::optional<ScoreFunction> activation;
};

absl::StatusOr<CrossEncoderConfig> ReadCrossEncoder(const io::FileSystem& fs, absl::string_view folder,
                                                    ConfigFields& fields) {
  CrossEncoderConfig result;
  const auto read = [&](ConfigFields& from, const std::string& name) {
    if (!from.Has(name)) return;
    result.found = true;
    if (!result.activation.has_value()) result.activation = ReadActivationClass(from, name);
  };
  absl::StatusOr<ConfigFields> package =
      ConfigFields::Open(fs, io::JoinPath(folder, "config_sentence_transformers.json"));
  if (package.ok()) {
    result.found = package->Text("model_type", "") == "CrossEncoder";
    if (result.found) read(*package, "activation_fn");
    AQT_RETURN_IF_ERROR(package->status());
  } else if (!absl::IsNotFound(package.status())) {
    return package.status();
  }
  if (fields.Has("sentence_transformers")) {
    ConfigFields block = fields.Object("sentence_transformers");
    read(block, "activation_fn");
    block.NotRead({"version"});
    AQT_RETURN_IF_ERROR(block.Finish());
  }
  read(fields, "sbert_ce_default_activation_function");
  return result;
}

}  // namespace

absl::StatusOr<std::optional<Head>> ReadHead(const io::FileSystem& fs, absl::string_view folder, const Encoder& encoder,
                                             bool pooled, ConfigFields& fields) {
  HeadKind kind = KindOf(fields, pooled);
  AQT_ASSIGN_OR_RETURN(const CrossEncoderConfig cross, ReadCrossEncoder(fs, folder, fields));
  if (cross.found && !pooled) kind = HeadKind::kSequence;
  if (kind == HeadKind::kNone) return std::nullopt;
  Head head;
  head.layers = kind == HeadKind::kTokens ? encoder.TokenHead() : encoder.SequenceHead();
  head.labels = ReadLabels(fields);
  if (kind == HeadKind::kTokens) {
    head.scores = ScoreFunction::kSoftmax;
  } else if (cross.found) {
    head.cross_encoder = true;
    head.scores =
        cross.activation.value_or(head.labels.size() == 1 ? ScoreFunction::kSigmoid : ScoreFunction::kIdentity);
  } else {
    head.scores = ByProblemType(fields, head.labels.size());
  }
  return head;
}

std::vector<float> Scores(absl::Span<const float> logits, ScoreFunction function) {
  std::vector<float> scores(logits.begin(), logits.end());
  switch (function) {
    case ScoreFunction::kIdentity: break;
    case ScoreFunction::kSigmoid:
      for (float& x : scores) x = 1.0f / (1.0f + std::exp(-x));
      break;
    case ScoreFunction::kTanh:
      for (float& x : scores) x = std::tanh(x);
      break;
    case ScoreFunction::kSoftmax: {
      const float largest = scores.empty() ? 0 : *absl::c_max_element(scores);
      float sum = 0;
      for (float& x : scores) sum += x = std::exp(x - largest);
      for (float& x : scores) x /= sum;
    }
  }
  return scores;
}

}  // namespace aqt::models
