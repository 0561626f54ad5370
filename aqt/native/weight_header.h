#ifndef AQT_NATIVE_WEIGHT_HEADER_H_
#define AQT_NATIVE_WEIGHT_HEADER_H_

// What the metadata of a file say about one quantized weight: docs/formats/native.md.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/tiling.h"

namespace aqt::native {

struct WeightHeader {
  DType dtype = DType::kS8;  // of the qvalue
  int bits = 0;              // of a packed qvalue; 0: it is stored in its dtype
  bool half = false;         // the values are ..., -0.5, 0.5, ...
  // The extents of each axis: one, or {tile count, tile size}.
  std::vector<Axes> axes = {};
  Axes contracting = {}, remaining = {};
  int num_scales = 0, num_biases = 0;
  bool has_mask = false;
  DType dequant_dtype = DType::kF32;
  std::string config_digest = {};
  bool operator==(const WeightHeader&) const = default;

  Shape UntiledShape() const;
  // The shape of the qvalue.
  Shape StoredShape() const;
  // Null if no axis is tiled.
  std::optional<TilingState> Tiling() const;
};

// JSON of one line, with a fixed order of fields.
std::string ToText(const WeightHeader& header);
// DataLoss, naming field and expectation, for anything else than a text that ToText could have made. Spaces and the
// order of fields do not matter.
absl::StatusOr<WeightHeader> WeightHeaderFromText(absl::string_view text);

// What is wrong with a header by itself; InvalidArgument.
absl::Status CheckHeader(const WeightHeader& header);

}  // namespace aqt::native

#endif  // AQT_NATIVE_WEIGHT_HEADER_H_
