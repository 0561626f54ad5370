#ifndef AQT_SERVING_HTTP_ENGINE_MODEL_H_
#define AQT_SERVING_HTTP_ENGINE_MODEL_H_

// Models of files behind engines, for the protocols.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/transforms/quantize/inject.h"
#include "serving/engine/engine.h"
#include "serving/http/served_model.h"

namespace aqt::serving {

struct OpenModelOptions {
  InjectConfig config = {};  // of folders: how they are quantized; empty: floating point
  EngineOptions engine = {};
};

// A folder of a text encoder (models::TextEmbedder), or a file with a saved program (SaveProgram), whose data inputs
// and outputs become tensors with the names of their slots. The errors of TextEngine::Open, LoadProgram and
// MakeRowModel; Unimplemented, naming the slot, for a program with a dtype that the Open Inference Protocol does not
// have.
absl::StatusOr<std::shared_ptr<const ServedModel>> OpenModel(const io::FileSystem& fs, absl::string_view path,
                                                             const OpenModelOptions& options = {});

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_ENGINE_MODEL_H_
