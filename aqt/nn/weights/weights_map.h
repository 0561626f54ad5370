#ifndef AQT_NN_WEIGHTS_WEIGHTS_MAP_H_
#define AQT_NN_WEIGHTS_WEIGHTS_MAP_H_

// Loads the weights of another framework's checkpoint as parameters of a program, by rules for names, and writes them
// back.
//
//   AQT_ASSIGN_OR_RETURN(WeightsMap map, WeightsMapFromText(R"(
//       schema: 1
//       rules { tensor: "fc(\\d)\\.weight"  param: "mlp/fc\\1/kernel"  transpose: [1, 0] }
//       rules { tensor: "fc(\\d)\\.bias"  param: "mlp/fc\\1/bias" })"));
//   AQT_ASSIGN_OR_RETURN(io::Checkpoint checkpoint, io::Checkpoint::Open(fs, "model.safetensors"));
//   AQT_ASSIGN_OR_RETURN(SlotValues params, LoadWeights(map, checkpoint, loss));
//
// A checkpoint that is quantized is read through stored::DequantizedSource (aqt/stored/dequantized_source.h), whose
// tensors are floats.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::nn {

// The elements [begin, end) of `axis`, in units of extent / parts, or in elements if parts is 0. For example, {0, 0, 1,
// 3} is the first third of the rows.
struct WeightSlice {
  int64_t axis = 0, begin = 0, end = 0, parts = 0;
  bool operator==(const WeightSlice&) const = default;
};

// Maps the tensors whose full name matches the regular expression (RE2) `tensor`. They are ignored, or
//   param or stat = cast(reshape(transpose(slice(tensor))))
// Several rules may match one tensor, e.g. for its slices: each makes a value.
struct WeightRule {
  std::string tensor = {};
  // The slot's kind, param or stat, and its path, where \1 .. \9 are groups of the regular expression. None: ignored.
  std::optional<Slot> slot = std::nullopt;
  std::optional<WeightSlice> slice = std::nullopt;
  // Axis i of the result is axis transpose[i]. Empty: unchanged.
  Axes transpose = {};
  // Reshapes to the slot's shape, with the same elements in row-major order. If false, the shape must be the slot's.
  bool reshape = false;
  // Casts to the slot's dtype, rounded once. If false, floats may only be widened, which keeps the values.
  bool cast = false;
  bool operator==(const WeightRule&) const = default;
};

// Rules that map the tensors of a checkpoint to parameters.
struct WeightsMap {
  std::vector<WeightRule> rules = {};
  // Regular expressions for full paths of parameters that the checkpoint need not have, such as those of a new head.
  std::vector<std::string> missing = {};
  bool operator==(const WeightsMap&) const = default;
};

// All mismatches between a map, a checkpoint and a program. Each line names both sides.
struct WeightsReport {
  std::vector<std::string> missing;    // parameters of the program without a tensor
  std::vector<std::string> left_over;  // tensors that no rule matches
  std::vector<std::string> wrong;      // a tensor and its slot: another shape or dtype, no such slot, used twice
  std::vector<std::string> unused;     // rules that match no tensor, and `missing` that match no parameter
  bool ok() const { return missing.empty() && left_over.empty() && wrong.empty() && unused.empty(); }
  // The full report, with remedies; "" if ok.
  std::string ToString() const;
};

// Compares names, dtypes and shapes; reads no data. InvalidArgument, naming the rule, for a map that is wrong by
// itself: an invalid regular expression, a path that refers to a missing group, a slot of another kind than param or
// stat.
absl::StatusOr<WeightsReport> CheckWeights(const WeightsMap& map, const io::TensorSource& source,
                                           const Program& program);

// A tensor, or a slice of it, and the slot that it is for.
struct WeightPlace {
  const io::TensorInfo* tensor = nullptr;
  const WeightRule* rule = nullptr;
  Slot slot;
  Aval aval;                   // of the slot
  int64_t begin = 0, end = 0;  // of the slice, in elements of its axis
  Shape sliced, permuted;      // intermediate shapes
};

// The places of a map that fits: those of one tensor are consecutive. They refer to `map` and `source`. Errors:
// CheckWeights'; InvalidArgument with its full report unless it is ok.
absl::StatusOr<std::vector<WeightPlace>> PlaceWeights(const WeightsMap& map, const io::TensorSource& source,
                                                      const Program& program);

// transpose(slice(tensor)) of a rule, in the dtype of `tensor`, which has the shape of the place's.
absl::StatusOr<Array> ArrangeTensor(const WeightPlace& place, const Array& tensor);
// cast(reshape(transpose(slice(tensor)))): the value of the slot.
absl::StatusOr<Array> SlotValue(const WeightPlace& place, const Array& tensor);

// The values of the program's parameters, except missing ones that the map allows, and of the statistics that rules
// name. Errors: CheckWeights'; InvalidArgument with its full report unless it is ok; those of reading.
absl::StatusOr<SlotValues> LoadWeights(const WeightsMap& map, const io::TensorSource& source, const Program& program);

// The inverse of LoadWeights: writes a safetensors file with the names, dtypes, shapes and metadata of `source`. The
// parts that rules use come from `values`, rounded once to the tensor's dtype; everything else is copied. If
// LoadWeights loaded the values without rounding, each tensor gets its original bytes. An existing file is replaced.
// Errors: LoadWeights'; NotFound or InvalidArgument, naming the slot, for a value that is missing or of another dtype
// or shape than the program's; OutOfRange if a finite value is not finite in the tensor's dtype; those of writing.
absl::Status SaveWeights(const WeightsMap& map, const io::TensorSource& source, const Program& program,
                         const SlotValues& values, const io::FileSystem& fs, absl::string_view path);

}  // namespace aqt::nn

#endif  // AQT_NN_WEIGHTS_WEIGHTS_MAP_H_
