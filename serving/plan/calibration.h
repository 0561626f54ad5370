#ifndef AQT_SERVING_PLAN_CALIBRATION_H_
#define AQT_SERVING_PLAN_CALIBRATION_H_

// Ranges of activations, for static schemes: a safetensors file with `<module>.input_min` and `<module>.input_max`,
// F32, one element each.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"
#include "serving/plan/plan.h"

namespace aqt::serving {

struct InputRange {
  float min = 0;
  float max = 0;
};

// Keyed by module.
using Calibration = std::map<std::string, InputRange>;

// DataLoss if the file is damaged; InvalidArgument, naming the tensor, if one has another dtype or size, lacks its
// counterpart, is not finite, or if min > max.
absl::StatusOr<Calibration> ReadCalibration(const io::FileSystem& fs, absl::string_view path);

// InvalidArgument, naming the modules, if static inputs of the plan have no range, or if `strict` and there are ranges
// of modules that the checkpoint does not have. Otherwise these, and ranges without effect, are added to `warnings`.
absl::Status CheckCalibration(const io::TensorSource& source, const Plan& plan, const Calibration& calibration,
                              bool strict, std::vector<std::string>& warnings);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_CALIBRATION_H_
