#ifndef AQT_KERNELS_GEMM_AMX_TILES_H_
#define AQT_KERNELS_GEMM_AMX_TILES_H_

// The tile configuration of all AMX kernels. Internal to them.

#include <cstdint>

namespace aqt::kernels::internal {

// The operand of ldtilecfg: all eight registers as full tiles, 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_GEMM_AMX_TILES_H_
