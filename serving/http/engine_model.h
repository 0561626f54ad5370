#ifndef AQT_SERVING_HTTP_ENGINE_MODEL_H_
#define AQT_SERVING_HTTP_ENGINE_MODEL_H_

// Engines of model folders and programs, as the protocols see them.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/models/folder_weights.h"
#include "aqt/transforms/quantize/inject.h"
#include "serving/engine/engine.h"
#include "serving/http/models/served_model.h"

namespace aqt::serving {

// How a folder is quantized: arguments of TextEngine::Open.
struct FolderQuantization {
  InjectConfig config = {};
  const models::GivenWeights* given = nullptr;
  std::shared_ptr<const void> owner = nullptr;  // of `given`
};

struct OpenModelOptions {
  // Asked when a folder is loaded; null: as the folder stores its weights.
  std::function<absl::StatusOr<FolderQuantization>(const std::string& folder)> quantize = nullptr;
  EngineOptions engine = {};
};

// A folder of a text encoder, with its head: embeddings, labels, or scores of pairs. Or a file with a saved program
// (SaveProgram), whose data inputs and outputs become tensors with the names of their slots. The errors of
// TextEngine::Open, LoadProgram and MakeRowModel; Unimplemented for a head of tokens, and, naming the slot, for a
// program with a dtype that the Open Inference Protocol does not have.
absl::StatusOr<std::shared_ptr<const ServedModel>> OpenModel(const io::FileSystem& fs, absl::string_view path,
                                                             const OpenModelOptions& options = {});

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_ENGINE_MODEL_H_
