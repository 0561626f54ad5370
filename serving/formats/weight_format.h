#ifndef AQT_SERVING_FORMATS_WEIGHT_FORMAT_H_
#define AQT_SERVING_FORMATS_WEIGHT_FORMAT_H_

// A stored layout of quantized weights: the tensors that a checkpoint has for a weight, and the arrangement of values,
// scales and zero points in them. This interface hides everything else about a layout from the converter. To add a
// layout, write a file that defines a WeightFormat, its test, a line in the table of weight_formats.cc and a name in
// configs/convert.proto.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "aqt/quant/weights/compressed_tensors.h"

namespace aqt::serving {

// A weight's values: their type, bits and symmetry, and which elements share a scale.
using WeightScheme = compressed_tensors::WeightScheme;
using WeightStrategy = compressed_tensors::Strategy;
using ValueType = compressed_tensors::ValueType;
using ScaleType = compressed_tensors::ScaleType;
// Values, scale and zero point of a weight or of some of its rows, before the layout is applied.
using QuantizedWeight = compressed_tensors::QuantizedWeight;

// The suffixes after the module's name that several layouts use.
inline constexpr char kWeight[] = ".weight";
inline constexpr char kWeightPacked[] = ".weight_packed";
inline constexpr char kWeightScale[] = ".weight_scale";
inline constexpr char kWeightGlobalScale[] = ".weight_global_scale";
inline constexpr char kWeightZeroPoint[] = ".weight_zero_point";

// A part of the stored tensor <module><suffix>: `rows` start at its row `first_row`.
struct StoredRows {
  absl::string_view suffix;
  int64_t first_row = 0;
  Array rows;
};

// All stored tensors of one weight, by suffix.
using StoredTensors = std::map<std::string, Array, std::less<>>;

class WeightFormat {
 public:
  virtual ~WeightFormat() = default;

  // The name in a quantization_config: "pack-quantized".
  virtual absl::string_view name() const = 0;

  // Whether this layout can be the default for such weights; the first such layout in the table is used.
  virtual bool IsDefaultFor(const WeightScheme& weights, bool quantized_activations) const = 0;

  // Unimplemented, naming the alternatives, if this layout cannot hold such weights.
  virtual absl::Status Validate(const WeightScheme& weights) const = 0;

  // The tensors of a weight of that shape, [o, i], and dtype: names are suffixes, scales have `dtype`.
  virtual std::vector<io::TensorSpec> Outputs(const WeightScheme& weights, const Shape& shape,
                                              io::FileDType dtype) const = 0;

  // Rows from one multiple of this number to another can be encoded separately, with the result of encoding the whole
  // weight. 0 if all rows share a scale: the weight must be encoded as a whole.
  virtual int64_t RowUnit(const WeightScheme& weights) const;

  // Whether Encode also accepts packed values (compressed_tensors::Options::packed), which are faster to make.
  virtual bool TakesPacked() const { return false; }

  // Encodes the rows starting at `first_row` (a multiple of RowUnit) of a weight of that shape. Tensors that are not
  // made of rows come with row 0.
  virtual absl::StatusOr<std::vector<StoredRows>> Encode(QuantizedWeight rows, int64_t first_row,
                                                         const WeightScheme& weights, const Shape& shape) const = 0;

  // The inverse for a whole weight. `stored` has the tensors of Outputs, with their shapes and dtypes; only the dtype
  // of scales is open. DataLoss, beginning with a suffix, for contents that no encoding produces.
  virtual absl::StatusOr<QuantizedWeight> Decode(const StoredTensors& stored, const WeightScheme& weights,
                                                 const Shape& shape) const = 0;
};

// The units of a weight of that shape, [o, i], which suits `weights`.
compressed_tensors::Units UnitsOf(const WeightScheme& weights, const Shape& shape);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_WEIGHT_FORMAT_H_
