#ifndef AQT_MODELS_HEAD_H_
#define AQT_MODELS_HEAD_H_

// The head of a folder: which classes it knows, and how its logits become scores.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"
#include "aqt/models/families/config_fields.h"
#include "aqt/models/families/encoder.h"
#include "aqt/models/families/head_layers.h"

namespace aqt::models {

// From the logits x of a text or a token to its scores.
enum class ScoreFunction : uint8_t {
  kIdentity,
  kSigmoid,  // 1 / (1 + e^-x), for each class
  kSoftmax,  // e^x / sum of e^x over the classes
  kTanh,
};

struct Head {
  HeadLayers layers;
  std::vector<std::string> labels;  // one for each logit
  ScoreFunction scores = ScoreFunction::kIdentity;
  bool cross_encoder = false;  // trained on pairs of texts, by sentence-transformers

  bool OfTokens() const { return layers.reads == HeadLayers::Reads::kEach; }
};

// The head of the class that `architectures` names, by the layers of its family. None for the classes ...Model,
// ...ForMaskedLM and ...ForPreTraining, for a folder that does not name its class, and if `pooled`: the folder says how
// texts are embedded. A folder that sentence-transformers has written for a CrossEncoder has a head in any case.
//
// The labels are those of id2label, else LABEL_0, LABEL_1, ..., for num_labels (2). The scores are those of the
// pipelines of transformers: by problem_type the identity (regression), the sigmoid (multi_label_classification) or the
// softmax (single_label_classification); without it, the sigmoid for one label and the softmax for more. For a
// CrossEncoder they are those of predict(): activation_fn of config_sentence_transformers.json (since version 6),
// activation_fn in sentence_transformers of config.json (4 and 5), sbert_ce_default_activation_function there (before),
// else the sigmoid for one label and the identity for more.
//
// Unimplemented, naming the field, for other classes and other activations; InvalidArgument for labels that are not
// numbered from 0 on.
absl::StatusOr<std::optional<Head>> ReadHead(const io::FileSystem& fs, absl::string_view folder, const Encoder& encoder,
                                             bool pooled, ConfigFields& fields);

// In f32; the exponentials are of differences from the largest logit.
std::vector<float> Scores(absl::Span<const float> logits, ScoreFunction function);

}  // namespace aqt::models

#endif  // AQT_MODELS_HEAD_H_
