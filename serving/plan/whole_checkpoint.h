#ifndef AQT_SERVING_PLAN_WHOLE_CHECKPOINT_H_
#define AQT_SERVING_PLAN_WHOLE_CHECKPOINT_H_

// Whether a checkpoint is one whole model, as far as its names, its config.json and the files beside it show.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::serving {

// The path of the config.json that belongs to the checkpoint: in the folder, or beside the file. It may not exist.
std::string ConfigFileOf(const io::Checkpoint& checkpoint);

// The text of a config.json; empty if there is none. NotFound if it is a link to nothing; DataLoss, with what it may be
// instead, if it is not a JSON object.
absl::StatusOr<std::string> ReadConfigFile(const io::FileSystem& fs, const std::string& path);

// Refuses what is not a whole model, and returns warnings about what may not be one. Unimplemented: an adapter; weights
// with a params.json instead of a config.json. InvalidArgument, or NotFound if others are missing: a file that is one
// of several. The errors of ReadConfigFile, if a folder was opened.
absl::StatusOr<std::vector<std::string>> CheckWhole(const io::FileSystem& fs, const io::Checkpoint& checkpoint);

// One warning for each list of layers ("model.layers.N") that has fewer than config.json says; nothing if that cannot
// be told.
std::vector<std::string> FindMissingLayers(const io::TensorSource& source, absl::string_view config_json);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_WHOLE_CHECKPOINT_H_
