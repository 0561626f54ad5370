#ifndef AQT_MODELS_FAMILIES_ENCODER_H_
#define AQT_MODELS_FAMILIES_ENCODER_H_

// A text encoder's architecture: from token ids to one vector for each token. Each family of models is a file that
// makes an Encoder from the fields of its config.json.

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "aqt/graph/value.h"
#include "aqt/models/families/config_fields.h"
#include "aqt/models/families/head_layers.h"
#include "aqt/nn/weights/weights_map.h"

namespace aqt::models {

// The inputs of a program. Of ids [batch, length] the first lengths[b] of row b count.
struct EncoderInputs {
  Value ids;                   // s32 [batch, length]
  Value lengths;               // s32 [batch]
  std::optional<Value> types;  // s32 [batch, length]: the number of each token's segment; unset: all 0
};

// What all encoders have in common.
struct EncoderFacts {
  int64_t vocabulary = 0;  // ids are in [0, vocabulary)
  int64_t width = 0;       // of the vectors
  int64_t max_length = 0;  // of a row
  int64_t types = 0;       // numbers of segments; 0 if the model does not know any
};

// Immutable.
class Encoder {
 public:
  virtual ~Encoder() = default;
  const EncoderFacts& facts() const { return facts_; }

  // Traces the model: f32 [batch, length, width]. Rows of tokens that do not count have no meaning.
  virtual Value Hidden(const EncoderInputs& inputs) const = 0;
  // From the names of a checkpoint to the parameters of Hidden. Tensors of the modules that head layers name are not
  // mentioned, unless Hidden needs them.
  virtual nn::WeightsMap Weights() const = 0;
  // The layers after Hidden in the family's classes ...ForSequenceClassification and ...ForTokenClassification.
  virtual HeadLayers SequenceHead() const = 0;
  virtual HeadLayers TokenHead() const { return {.reads = HeadLayers::Reads::kEach, .classifier = "classifier"}; }

 protected:
  EncoderFacts facts_;
};

// Each reads the fields of its family.
std::unique_ptr<Encoder> MakeBert(ConfigFields& fields);        // Devlin et al. 2018
std::unique_ptr<Encoder> MakeRoberta(ConfigFields& fields);     // Liu et al. 2019; XLM-R, Conneau et al. 2019
std::unique_ptr<Encoder> MakeDistilBert(ConfigFields& fields);  // Sanh et al. 2019
std::unique_ptr<Encoder> MakeMpnet(ConfigFields& fields);       // Song et al. 2020
std::unique_ptr<Encoder> MakeNomicBert(ConfigFields& fields);   // Nussbaum et al. 2024
std::unique_ptr<Encoder> MakeModernBert(ConfigFields& fields);  // Warner et al. 2024

// By the field model_type, without ConfigFields::Finish. Unimplemented, naming the known ones, for another.
absl::StatusOr<std::unique_ptr<Encoder>> MakeEncoder(ConfigFields& fields);

}  // namespace aqt::models

#endif  // AQT_MODELS_FAMILIES_ENCODER_H_
