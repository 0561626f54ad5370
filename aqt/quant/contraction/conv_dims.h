#ifndef AQT_QUANT_CONTRACTION_CONV_DIMS_H_
#define AQT_QUANT_CONTRACTION_CONV_DIMS_H_

// Shapes of a convolution with channels last:
//   lhs [B, in..., Ci] * rhs [kernel..., Ci / groups, Co] -> out [B, o..., Co], with 1 to 3 spatial axes.
//
// Along each spatial axis the input is dilated (lhs_dilation - 1 zeros between elements) and padded with zeros; the
// kernel is dilated likewise; it is not mirrored. out[o] = sum over k of padded[o * stride + k * rhs_dilation] *
// rhs[k]. Output channel c reads the input channels of group c / (Co / groups).

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"

namespace aqt {

// How the input is padded along its spatial axes.
enum class ConvPadding {
  kValid,     // none
  kSame,      // gives ceil(in / stride) outputs; an odd element goes to the end
  kExplicit,  // ConvDims::explicit_padding
};
absl::string_view ToString(ConvPadding padding);  // "VALID", "SAME", "EXPLICIT"
std::ostream& operator<<(std::ostream& os, ConvPadding padding);

// The parameters of a convolution.
struct ConvDims {
  // One per spatial axis; empty: 1 everywhere.
  Axes window_strides = {};
  ConvPadding padding = ConvPadding::kValid;
  // kExplicit only: before and after, per spatial axis. Negative values crop.
  std::vector<std::pair<int64_t, int64_t>> explicit_padding = {};
  Axes lhs_dilation = {}, rhs_dilation = {};  // empty: 1. A dilated lhs needs kExplicit padding.
  int64_t feature_group_count = 1;
  bool operator==(const ConvDims&) const = default;
};

// One spatial axis, resolved.
struct ConvAxis {
  int64_t in = 0, kernel = 0, out = 0;
  int64_t stride = 1, low = 0, high = 0, lhs_dilation = 1, rhs_dilation = 1;
  // The extent of the dilated and padded input, at least 0.
  int64_t padded() const;
  bool operator==(const ConvAxis&) const = default;
};

// A convolution with resolved extents.
struct ConvGeometry {
  int64_t batch = 0, in_channels = 0, out_channels = 0, groups = 1;
  std::vector<ConvAxis> axes = {};

  Shape LhsShape() const;
  Shape RhsShape() const;
  Shape OutShape() const;
  // The number of products in one sum.
  int64_t SumLength() const;
  bool operator==(const ConvGeometry&) const = default;
};

// InvalidArgument, naming the field, the values and the expectation, when dims and shapes do not fit.
absl::StatusOr<ConvGeometry> MakeConvGeometry(const ConvDims& dims, const Shape& lhs, const Shape& rhs);

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_CONV_DIMS_H_
