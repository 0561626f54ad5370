#ifndef AQT_MODELS_FLOAT_WEIGHTS_H_
#define AQT_MODELS_FLOAT_WEIGHTS_H_

// Parameters in f32 from tensors of floats.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"
#include "aqt/io/mapped_files.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/nn/weights/weights_map.h"

namespace aqt::models {

// nn::PlaceWeights, whose error is for those who have the folder, and not the map.
absl::StatusOr<std::vector<nn::WeightPlace>> PlaceFolderWeights(const nn::WeightsMap& map,
                                                                const io::TensorSource& source, const Program& program);

// The values of places, which are asked for in their order.
class FloatReader {
 public:
  explicit FloatReader(const io::TensorSource& source) : source_(source) {}
  // Tensors of `files`, a checkpoint, stay where they are if they are in f32, large, and the slot's value as they are,
  // as tables of words often are.
  void MapFrom(const io::MappedFiles& files, const io::TensorSource& checkpoint) {
    files_ = &files;
    checkpoint_ = &checkpoint;
  }

  // The value of the slot, in f32. InvalidArgument, naming the tensor, if it has no floats; DataLoss if it has a number
  // that is not finite in f32; those of reading.
  absl::StatusOr<Array> Value(const nn::WeightPlace& place);

 private:
  std::string Describe(const io::TensorInfo& tensor) const;
  absl::Status NotFinite(const io::TensorInfo& tensor) const;
  absl::Status CheckFinite(const io::TensorInfo& tensor) const;
  absl::StatusOr<Array> Mapped(const nn::WeightPlace& place) const;

  const io::TensorSource& source_;
  const io::MappedFiles* files_ = nullptr;
  const io::TensorSource* checkpoint_ = nullptr;
  // The last tensor that was read: places of one tensor are consecutive.
  const io::TensorInfo* read_ = nullptr;
  Array tensor_;
};

// The parameters of `program`. The errors of PlaceFolderWeights and FloatReader::Value.
absl::StatusOr<SlotValues> LoadFloats(const nn::WeightsMap& map, const io::TensorSource& source,
                                      const Program& program);

}  // namespace aqt::models

#endif  // AQT_MODELS_FLOAT_WEIGHTS_H_
