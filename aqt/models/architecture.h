#ifndef AQT_MODELS_ARCHITECTURE_H_
#define AQT_MODELS_ARCHITECTURE_H_

// What the small files of a model's folder say, without its weights.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/models/families/encoder.h"
#include "aqt/models/families/pooling.h"
#include "aqt/models/head.h"
#include "aqt/nn/weights/weights_map.h"

namespace aqt::models {

struct Architecture {
  std::shared_ptr<const Encoder> encoder;
  Pooling pooling;
  std::optional<Head> head;

  // From the names of a checkpoint to the parameters of the encoder and the head.
  nn::WeightsMap Weights() const;
};

// Reads config.json, and the files of sentence-transformers if there are any. NotFound without config.json;
// InvalidArgument or Unimplemented, naming the field, if config.json has a value or a field that is not computed; the
// errors of MakeEncoder, ReadPooling and ReadHead.
absl::StatusOr<Architecture> ReadArchitecture(const io::FileSystem& fs, absl::string_view folder);

}  // namespace aqt::models

#endif  // AQT_MODELS_ARCHITECTURE_H_
