#include "aqt/quant/contraction/conv_dims.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "aqt/core/shape.h"

namespace aqt {
namespace {

// As jax.lax.padtype_to_pads: (outputs - 1) * stride + window - in elements, with an odd one at the end.
TEST(ConvGeometry, Same) {
  const auto axis = [](int64_t in, int64_t kernel, int64_t stride, int64_t dilation) {
    const ConvDims dims{.window_strides = {stride}, .padding = ConvPadding::kSame, .rhs_dilation = {dilation}};
    return MakeConvGeometry(dims, {1, in, 2}, {kernel, 2, 3})->axes[0];
  };
  const ConvAxis three = axis(9, 3, 1, 1), four = axis(9, 4, 1, 1), strided = axis(9, 3, 2, 1), wide = axis(9, 3, 1, 2),
                 skipping = axis(9, 1, 3, 1), empty = axis(0, 3, 1, 1);
  EXPECT_EQ(std::tuple(three.low, three.high, three.out), std::tuple(1, 1, 9));
  EXPECT_EQ(std::tuple(four.low, four.high, four.out), std::tuple(1, 2, 9));
  EXPECT_EQ(std::tuple(strided.low, strided.high, strided.out), std::tuple(1, 1, 5));
  EXPECT_EQ(std::tuple(wide.low, wide.high, wide.out), std::tuple(2, 2, 9));
  EXPECT_EQ(std::tuple(skipping.low, skipping.high, skipping.out), std::tuple(0, 0, 3));
  EXPECT_EQ(empty.out, 0);
}

TEST(ConvGeometry, ExplicitAndValid) {
  ConvDims dims{.window_strides = {2, 1}, .padding = ConvPadding::kExplicit, .explicit_padding = {{1, 0}, {0, 2}}};
  EXPECT_EQ(MakeConvGeometry(dims, {1, 7, 7, 2}, {3, 2, 2, 5})->OutShape(), (Shape{1, 3, 8, 5}));
  dims = {.padding = ConvPadding::kExplicit, .explicit_padding = {{2, 2}, {-1, -1}}, .lhs_dilation = {2, 1}};
  EXPECT_EQ(MakeConvGeometry(dims, {1, 4, 6, 2}, {3, 3, 2, 3})->OutShape(), (Shape{1, 9, 2, 3}));
  EXPECT_EQ(MakeConvGeometry({}, {2, 3, 4}, {5, 4, 1})->OutShape(), (Shape{2, 0, 1}));
  EXPECT_EQ(MakeConvGeometry({}, {2, 3, 4, 5, 6}, {1, 2, 3, 6, 1})->OutShape(), (Shape{2, 3, 3, 3, 1}));
}

TEST(ConvGeometry, ErrorsNameTheField) {
  const auto error = [](const ConvDims& dims, const Shape& lhs, const Shape& rhs) {
    const absl::Status status = MakeConvGeometry(dims, lhs, rhs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  const Shape lhs{1, 8, 4}, rhs{3, 4, 6};
  EXPECT_EQ(
      error({}, {8, 4}, {4, 6}),
      "conv_general: lhs is [8,4], rhs [4,6]; expected lhs [batch, spatial..., in], rhs [spatial..., in / groups, out] "
      "with 1 to 3 spatial axes");
  EXPECT_EQ(error({}, lhs, {3, 3, 4, 6}).substr(0, 45), "conv_general: lhs is [1,8,4], rhs [3,3,4,6]; ");
  EXPECT_EQ(error({.window_strides = {1, 1}}, lhs, rhs),
            "conv_general: window_strides has 2 values, expected one for each of the 1 spatial axes, or none");
  EXPECT_EQ(error({.window_strides = {0}}, lhs, rhs), "conv_general: window_strides = 0, expected 1 .. 2^40");
  EXPECT_EQ(error({.rhs_dilation = {-1}}, lhs, rhs), "conv_general: rhs_dilation = -1, expected 1 .. 2^40");
  EXPECT_EQ(error({.padding = ConvPadding::kSame, .lhs_dilation = {2}}, lhs, rhs),
            "conv_general: padding SAME is not defined with lhs_dilation; give explicit pairs");
  EXPECT_EQ(error({.padding = ConvPadding::kExplicit}, lhs, rhs),
            "conv_general: padding is EXPLICIT with 0 explicit pairs, expected 1");
  EXPECT_EQ(error({.explicit_padding = {{1, 1}}}, lhs, rhs),
            "conv_general: padding is VALID with 1 explicit pairs, expected 0");
  const int64_t huge = int64_t{1} << 50;
  EXPECT_EQ(error({.padding = ConvPadding::kExplicit, .explicit_padding = {{huge, 0}}}, lhs, rhs),
            "conv_general: padding (1125899906842624,0) of axis 0, expected -2^40 .. 2^40");
  const int64_t least = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(error({.padding = ConvPadding::kExplicit, .explicit_padding = {{0, least}}}, lhs, rhs),
            "conv_general: padding (0,-9223372036854775808) of axis 0, expected -2^40 .. 2^40");
  EXPECT_EQ(error({.rhs_dilation = {int64_t{1} << 40}}, lhs, rhs),
            "conv_general: a dilated extent of axis 0 is above 2^40");
  const int64_t wide = int64_t{1} << 40;  // for an array without elements
  EXPECT_EQ(error({}, {1, 8, 8, 4}, {wide, wide, 4, 0}),
            "conv_general: rhs: shape [1099511627776,1099511627776,4,0] has more elements than fit into memory");
  EXPECT_EQ(
      error({.feature_group_count = 4}, lhs, rhs),
      "conv_general: feature_group_count = 4 with 4 input channels, a kernel for 4 of them and 6 output channels; "
      "expected groups that divide both channels, and a kernel for input channels / groups");
  EXPECT_EQ(error({.feature_group_count = 0}, lhs, rhs).substr(0, 37), "conv_general: feature_group_count = 0");
}

}  // namespace
}  // namespace aqt
