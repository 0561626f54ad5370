#ifndef AQT_NN_TRAIN_STATE_FILE_H_
#define AQT_NN_TRAIN_STATE_FILE_H_

// A model's state in one safetensors file: tensor "<kind>/<path>" for each slot, such as "param/mlp/fc1/kernel". The
// format lacks s2 and s4, so they are packed into U8 [ceil(n / 4)] or [ceil(n / 2)], with the first element in the
// lowest bits, in two's complement; metadata such as "packed:<kind>/<path>" = "s4[64,320]" gives dtype and shape. The
// same state gives the same bytes.

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"

namespace aqt::nn {

// The contents of a state file.
struct StateFile {
  SlotValues state;
  std::map<std::string, std::string> metadata = {};  // keys must not begin with "packed:"
};

// Writes a state file atomically, replacing an existing one. Errors: those of io::SafetensorsWriter.
absl::Status SaveState(const io::FileSystem& fs, absl::string_view path, const StateFile& file);

// Reads a state file. DataLoss, naming the tensor, if a name does not begin with a kind, or packed bytes are missing or
// do not fit their dtype and shape; the errors of io::SafetensorsReader.
absl::StatusOr<StateFile> LoadState(const io::FileSystem& fs, absl::string_view path);

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_STATE_FILE_H_
