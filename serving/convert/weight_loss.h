#ifndef AQT_SERVING_CONVERT_WEIGHT_LOSS_H_
#define AQT_SERVING_CONVERT_WEIGHT_LOSS_H_

// The losses of a weight beyond rounding when it is quantized, detected during the conversion.
//
// A unit is the set of elements that share a scale: a row, a group, a block, or the whole weight. Ordinary units are
// accepted by their scale and some of their values; only the others are examined value by value.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/formats/scheme.h"
#include "serving/formats/weight_rules.h"

namespace aqt::serving {

enum class Loss : uint8_t {
  kZeroed,          // the unit has nonzero values, and all become 0: its scale underflows
  kOutliers,        // all but one, or one of 256, become 0: the others are too small beside it
  kSubnormalScale,  // its scale is subnormal in the weight's dtype, or, for NVFP4, in e4m3fn
  kOverflow,        // a stored value times the scale is not finite in the weight's dtype
};
inline constexpr int kNumLosses = 4;

// The losses of some rows of a weight.
struct WeightLoss {
  struct Example {
    int64_t unit = 0;  // in row-major order
    int64_t row = 0;   // kOutliers, kOverflow: the position of the value
    int64_t column = 0;
    double value = 0;  // kOutliers: the largest value; kOverflow: the stored one
    double scale = 0;
    int64_t kept = 0;  // kOutliers: the number of values that do not become 0
  };
  struct Units {
    int64_t count = 0;
    std::vector<Example> first;  // a few
  };
  std::array<Units, kNumLosses> units;  // by Loss

  bool empty() const;
  // `later` holds the losses of subsequent rows.
  void Append(const WeightLoss& later);
};

// The losses of a weight's rows starting at `first_row`; arguments as in EncodeRows, whose result is `stored`.
absl::StatusOr<WeightLoss> FindLoss(const ArrayRef& rows, int64_t first_row, const Scheme& scheme, WeightRules rules,
                                    const std::vector<StoredRows>& stored, float global_scale = 1);

// One line for each kind of loss, without the weight's name, with the number of units and the first of them.
std::vector<std::string> DescribeLoss(const WeightLoss& loss, const Scheme& scheme, io::FileDType dtype,
                                      const Shape& shape);

// The position of a unit in a weight of that shape: "row 3", "[3,32:64]", "[0:128,128:256]".
std::string UnitName(const WeightScheme& weights, const Shape& shape, int64_t unit);
// "rows", "groups".
absl::string_view UnitsName(WeightStrategy strategy);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_WEIGHT_LOSS_H_
