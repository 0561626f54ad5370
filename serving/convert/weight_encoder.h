#ifndef AQT_SERVING_CONVERT_WEIGHT_ENCODER_H_
#define AQT_SERVING_CONVERT_WEIGHT_ENCODER_H_

// What a conversion stores for the weights of its plan.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/tensors/tensor_source.h"
#include "serving/convert/convert.h"
#include "serving/formats/weight_codec.h"
#include "serving/plan/calibration.h"
#include "serving/plan/plan.h"
#include "serving/plan/recipe.h"

namespace aqt::serving {

// Thread-safe.
class WeightEncoder {
 public:
  // All but `input` must outlive the result. Reads the weights that have a global scale (NVFP4): DataLoss, naming the
  // tensor and the position, for one with a NaN or an infinity.
  static absl::StatusOr<WeightEncoder> Make(const io::TensorSource& input, const Plan& plan, const Recipe& recipe,
                                            const Calibration& calibration, const ConvertOptions& options);

  // The global scale of a weight; 1 if it has none.
  float GlobalScaleOf(const TensorPlan& tensor) const;
  // Some rows of a weight, from `first_row` on: see EncodeRows. DataLoss, naming the tensor and the position, for a NaN
  // or an infinity.
  absl::StatusOr<std::vector<StoredRows>> Encode(const TensorPlan& tensor, int64_t first_row,
                                                 const ArrayRef& rows) const;
  // What is stored of the weight's input: nothing, unless it is static.
  absl::StatusOr<std::vector<StoredRows>> EncodeInput(const TensorPlan& tensor) const;

 private:
  // Weights with one global scale.
  struct Set {
    DType dtype;  // of the first weight of the plan
    float absmax;
  };
  WeightEncoder(const Recipe& recipe, const Calibration& calibration) : recipe_(&recipe), calibration_(&calibration) {}
  absl::Status FindGlobalScales(const io::TensorSource& input, const Plan& plan, const ConvertOptions& options);

  const Recipe* recipe_;
  const Calibration* calibration_;
  std::map<std::string, Set> sets_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_WEIGHT_ENCODER_H_
