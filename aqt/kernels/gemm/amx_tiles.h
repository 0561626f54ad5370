#ifndef AQT_KERNELS_GEMM_AMX_TILES_H_
#define AQT_KERNELS_GEMM_AMX_TILES_H_

// The configuration that all AMX kernels use. Internal to them.

#include <cstdint>

namespace aqt::kernels::internal {

// What ldtilecfg reads: all eight registers as full tiles, 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_GEMM_AMX_TILES_H_
