#include "aqt/quant/contraction/conv_dims.h"

#include <algorithm>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"

namespace aqt {
namespace {

// Extents and paddings below 2^40 keep all sums and products of a few of them far from overflow.
constexpr int64_t kLargest = int64_t{1} << 40;

int64_t Dilated(int64_t extent, int64_t dilation) { return extent == 0 ? 0 : (extent - 1) * dilation + 1; }

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("conv_general: ", parts...));
}

// InvalidArgument unless `values` has one legal value per spatial axis, or none.
absl::Status Check(const char* field, const Axes& values, int64_t spatial) {
  if (!values.empty() && static_cast<int64_t>(values.size()) != spatial) {
    return Invalid(field, " has ", values.size(), " values, expected one for each of the ", spatial,
                   " spatial axes, or none");
  }
  for (const int64_t value : values) {
    if (value < 1 || value > kLargest) return Invalid(field, " = ", value, ", expected 1 .. 2^40");
  }
  return absl::OkStatus();
}
int64_t ValueOr1(const Axes& values, int64_t axis) { return values.empty() ? 1 : values[axis]; }

}  // namespace

absl::string_view ToString(ConvPadding padding) {
  switch (padding) {
    case ConvPadding::kValid: return "VALID";
    case ConvPadding::kSame: return "SAME";
    case ConvPadding::kExplicit: return "EXPLICIT";
  }
  return "?";
}
std::ostream& operator<<(std::ostream& os, ConvPadding padding) { return os << ToString(padding); }

int64_t ConvAxis::padded() const { return std::max<int64_t>(0, Dilated(in, lhs_dilation) + low + high); }

Shape ConvGeometry::LhsShape() const {
  Shape shape{batch};
  for (const ConvAxis& axis : axes) shape.push_back(axis.in);
  shape.push_back(in_channels);
  return shape;
}

Shape ConvGeometry::RhsShape() const {
  Shape shape;
  for (const ConvAxis& axis : axes) shape.push_back(axis.kernel);
  shape.push_back(in_channels / groups);
  shape.push_back(out_channels);
  return shape;
}

Shape ConvGeometry::OutShape() const {
  Shape shape{batch};
  for (const ConvAxis& axis : axes) shape.push_back(axis.out);
  shape.push_back(out_channels);
  return shape;
}

int64_t ConvGeometry::SumLength() const {
  int64_t length = in_channels / groups;
  for (const ConvAxis& axis : axes) length *= axis.kernel;
  return length;
}

absl::StatusOr<ConvGeometry> MakeConvGeometry(const ConvDims& dims, const Shape& lhs, const Shape& rhs) {
  const int64_t rank = lhs.rank(), spatial = rank - 2;
  if (spatial < 1 || spatial > 3 || rhs.rank() != rank) {
    return Invalid(
        "lhs is ", lhs.ToString(), ", rhs ", rhs.ToString(),
        "; expected lhs [batch, spatial..., in], rhs [spatial..., in / groups, out] with 1 to 3 spatial axes");
  }
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(lhs), "conv_general: lhs"));
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(rhs), "conv_general: rhs"));
  AQT_RETURN_IF_ERROR(Check("window_strides", dims.window_strides, spatial));
  AQT_RETURN_IF_ERROR(Check("lhs_dilation", dims.lhs_dilation, spatial));
  AQT_RETURN_IF_ERROR(Check("rhs_dilation", dims.rhs_dilation, spatial));
  const bool is_explicit = dims.padding == ConvPadding::kExplicit;
  if (static_cast<int64_t>(dims.explicit_padding.size()) != (is_explicit ? spatial : 0)) {
    return Invalid("padding is ", ToString(dims.padding), " with ", dims.explicit_padding.size(),
                   " explicit pairs, expected ", is_explicit ? spatial : 0);
  }
  const bool dilates =
      std::any_of(dims.lhs_dilation.begin(), dims.lhs_dilation.end(), [](int64_t d) { return d != 1; });
  if (dilates && !is_explicit) {
    return Invalid("padding ", ToString(dims.padding), " is not defined with lhs_dilation; give explicit pairs");
  }

  ConvGeometry geometry{.batch = lhs[0], .in_channels = lhs[rank - 1], .out_channels = rhs[rank - 1]};
  geometry.groups = dims.feature_group_count;
  if (geometry.groups < 1 || geometry.out_channels % geometry.groups != 0 ||
      geometry.in_channels % geometry.groups != 0 || geometry.in_channels / geometry.groups != rhs[rank - 2]) {
    return Invalid(
        "feature_group_count = ", geometry.groups, " with ", geometry.in_channels, " input channels, a kernel for ",
        rhs[rank - 2], " of them and ", geometry.out_channels,
        " output channels; expected groups that divide both channels, and a kernel for input channels / groups");
  }
  for (int64_t i = 0; i < spatial; ++i) {
    ConvAxis axis{.in = lhs[1 + i],
                  .kernel = rhs[i],
                  .stride = ValueOr1(dims.window_strides, i),
                  .lhs_dilation = ValueOr1(dims.lhs_dilation, i),
                  .rhs_dilation = ValueOr1(dims.rhs_dilation, i)};
    if (axis.in > kLargest / axis.lhs_dilation || axis.kernel > kLargest / axis.rhs_dilation) {
      return Invalid("a dilated extent of axis ", i, " is above 2^40");
    }
    const int64_t window = Dilated(axis.kernel, axis.rhs_dilation);
    if (dims.padding == ConvPadding::kSame) {
      const int64_t outputs = CeilDiv(axis.in, axis.stride);
      const int64_t pad = outputs == 0 ? 0 : std::max<int64_t>(0, (outputs - 1) * axis.stride + window - axis.in);
      axis.low = pad / 2;
      axis.high = pad - axis.low;
    } else if (is_explicit) {
      std::tie(axis.low, axis.high) = dims.explicit_padding[i];
      if (std::min(axis.low, axis.high) < -kLargest || std::max(axis.low, axis.high) > kLargest) {
        return Invalid("padding (", axis.low, ",", axis.high, ") of axis ", i, ", expected -2^40 .. 2^40");
      }
    }
    const int64_t room = Dilated(axis.in, axis.lhs_dilation) + axis.low + axis.high - window;
    axis.out = room < 0 ? 0 : room / axis.stride + 1;
    geometry.axes.push_back(axis);
  }
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(geometry.OutShape()), "conv_general: result"));
  Shape window{geometry.in_channels / geometry.groups};
  for (const ConvAxis& axis : geometry.axes) window.push_back(axis.kernel);
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(window), "conv_general: window"));
  Shape padded{geometry.batch};
  for (const ConvAxis& axis : geometry.axes) padded.push_back(axis.padded());
  padded.push_back(geometry.in_channels);
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(padded), "conv_general: padded lhs"));
  return geometry;
}

}  // namespace aqt
