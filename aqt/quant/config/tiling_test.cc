#include "aqt/quant/config/tiling.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/shape.h"

namespace aqt {
namespace {

TEST(TilingState, RecordedMap) {
  const std::vector<AxisTiling> tilings{{.axis = 1, .tile_size = 11}, {.axis = -3, .tile_size = 9}};
  const absl::StatusOr<TilingState> state = TilingState::Make({31, 22, 27, 8, 27}, tilings);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->tiled_shape, (Shape{31, 2, 11, 3, 9, 8, 27}));
  EXPECT_EQ(state->tile_map, (std::vector<Axes>{{0}, {1, 2}, {3, 4}, {5}, {6}}));
  const Axes axes{0, 1, 4};
  EXPECT_EQ(state->CalibrationAxes(axes), (Axes{0, 2, 6}));
}

TEST(TilingState, ViewKeepsTheElements) {
  const Array x = Array::Of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {2, 6});
  const std::vector<AxisTiling> tilings{{.axis = 1, .tile_count = 3, .tile_size = 2}};
  const absl::StatusOr<TilingState> state = TilingState::Make(x.shape(), tilings);
  ASSERT_TRUE(state.ok());
  EXPECT_TRUE(BitEqual(Array::CopyOf(state->Tile(x.ref())), *x.Reshaped({2, 3, 2})));
  // Also for a transposed tensor.
  const ArrayRef transposed(x.dtype(), {6, 2}, Strides{1, 6}, x.data());
  const std::vector<AxisTiling> rows{{.axis = 0, .tile_count = 2}};
  const ArrayRef tiled = TilingState::Make(transposed.shape, rows)->Tile(transposed);
  EXPECT_TRUE(BitEqual(Array::CopyOf(tiled), *Array::CopyOf(transposed).Reshaped({2, 3, 2})));
}

TEST(TilingState, Errors) {
  struct Case {
    std::vector<AxisTiling> tilings;
    std::string message;
  };
  const Case cases[] = {
      {{{.axis = 2, .tile_size = 2}}, "tiling: axis 2 is out of range for shape [4,6]"},
      {{{.axis = 1, .tile_size = 2}, {.axis = -1, .tile_size = 3}}, "tiling: axis 1 is tiled twice"},
      {{{.axis = 1}}, "tiling: axis 1 needs a tile_count or a tile_size"},
      {{{.axis = 1, .tile_size = 4}}, "tiling: axis 1 of shape [4,6] cannot be cut into parts of size 4"},
      {{{.axis = 1, .tile_count = 0}}, "tiling: axis 1 of shape [4,6] cannot be cut into 0 equal parts"},
      {{{.axis = 1, .tile_count = 2, .tile_size = 2}}, "tiling: axis 1 of shape [4,6] does not have 2 tiles of size 2"},
  };
  for (const Case& c : cases) {
    const absl::Status status = TilingState::Make({4, 6}, c.tilings).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), c.message);
  }
}

}  // namespace
}  // namespace aqt
