#ifndef AQT_KERNELS_QUANTIZE_SCALE_GRID_H_
#define AQT_KERNELS_QUANTIZE_SCALE_GRID_H_

#include <cstdint>

namespace aqt::kernels {

// Scales (and zero points in the same layout) shared by blocks of row_group x col_group elements: element (r, c) has
// scale[(r / row_group) * row_stride + (c / col_group) * col_stride].
// One per row: {row_stride = 1, col_stride = 0}. One per group of g columns: {col_group = g, row_stride = cols / g,
// col_stride = 1}. One per column: {row_stride = 0, col_stride = 1}. One per tensor: both strides 0.
struct ScaleGrid {
  const float* scale = nullptr;        // values of T held in f32
  const int8_t* zero_point = nullptr;  // if null, all are 0
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t row_group = 1;
  int64_t col_group = 1;
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_QUANTIZE_SCALE_GRID_H_
