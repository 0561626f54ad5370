#ifndef AQT_MODELS_FOLDER_WEIGHTS_H_
#define AQT_MODELS_FOLDER_WEIGHTS_H_

// The weights of a model's folder, tensor by tensor: in floating point, or as they are stored.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/models/coded_table.h"
#include "aqt/nn/weights/weights_map.h"
#include "aqt/stored/stored_config.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::models {

// Weights from elsewhere than the files of the folder, such as those that a conversion would write
// (serving/convert/quantized_source.h).
struct GivenWeights {
  const io::TensorSource* tensors = nullptr;  // must outlive the call
  stored::StoredConfig config;                // how they are quantized
};

struct FolderWeights {
  // The parameters of `program` in f32, except those that run as they are stored: their qvalues and scales are there as
  // frozen values instead.
  SlotValues values;
  std::vector<InjectRule> rules;   // that quantize the products of the latter
  CodedTables tables;              // among the latter
  std::vector<std::string> notes;  // for the user
};

// Reads the tensors that `map` names. Rules of `map` that ignore tensors may match nothing. Quantized weights that the
// program cannot compute as they are stored are multiplied out, and listed in `notes`. Memory: the values, and one
// tensor in floating point. Errors: those of io::Checkpoint::Open, stored::DequantizedSource::Open and
// nn::PlaceWeights, and those of reading.
absl::StatusOr<FolderWeights> LoadFolderWeights(const io::FileSystem& fs, absl::string_view folder, nn::WeightsMap map,
                                                const Program& program, const GivenWeights* given = nullptr);

}  // namespace aqt::models

#endif  // AQT_MODELS_FOLDER_WEIGHTS_H_
