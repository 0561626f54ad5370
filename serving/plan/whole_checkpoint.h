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

// The text of a config.json; empty if there is none. NotFound for a dangling link; DataLoss, with a likely explanation,
// if it is not a JSON object.
absl::StatusOr<std::string> ReadConfigFile(const io::FileSystem& fs, const std::string& path);

// Refuses checkpoints that are not a whole model, and returns warnings about those that may not be. Unimplemented: an
// adapter; weights with a params.json instead of a config.json. InvalidArgument, or NotFound if others are missing: a
// file that is one of several. The errors of ReadConfigFile, if a folder was opened.
absl::StatusOr<std::vector<std::string>> CheckWhole(const io::FileSystem& fs, const io::Checkpoint& checkpoint);

// One warning for each list of layers ("model.layers.N") with fewer layers than config.json says; none if that cannot
// be determined.
std::vector<std::string> FindMissingLayers(const io::TensorSource& source, absl::string_view config_json);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_WHOLE_CHECKPOINT_H_
