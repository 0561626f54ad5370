// Stored weights as panels for the digit kernels.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/core/check.h"
#include "aqt/kernels/digits_internal.h"

namespace aqt::kernels {
namespace {

using internal::kPanelColumns;

// The weights of a group and a panel plus the offset, at [k][column]. Padding is zero.
void Stage(const Operand& weights, int64_t b, int64_t n0, int64_t columns, const DigitFormat::Group& group,
           int64_t pitch, uint8_t offset, uint8_t* stage) {
  const auto* from = static_cast<const uint8_t*>(weights.data) + weights.batch.Offset(b);
  if (columns < kPanelColumns || group.size < pitch) std::memset(stage, 0, pitch * kPanelColumns);
  if (weights.rows.rank > 1 || weights.k.rank > 1) {
    int64_t column_offsets[kPanelColumns];
    for (int64_t c = 0; c < columns; ++c) column_offsets[c] = weights.rows.Offset(n0 + c);
    for (int64_t k = 0; k < group.size; ++k) {
      const uint8_t* row = from + weights.k.Offset(group.begin + k);
      for (int64_t c = 0; c < columns; ++c) stage[k * kPanelColumns + c] = row[column_offsets[c]] + offset;
    }
    return;
  }
  from += weights.rows.Offset(n0) + weights.k.Offset(group.begin);
  const int64_t column_stride = weights.rows.InnerStride(), k_stride = weights.k.InnerStride();
  if (column_stride == 1) {
    for (int64_t k = 0; k < group.size; ++k, from += k_stride) {
      for (int64_t c = 0; c < columns; ++c) stage[k * kPanelColumns + c] = from[c] + offset;
    }
    return;
  }
  for (int64_t c = 0; c < columns; ++c, from += column_stride) {
    for (int64_t k = 0; k < group.size; ++k) stage[k * kPanelColumns + c] = from[k * k_stride] + offset;
  }
}

// Four k side by side; `shift` moves them to their place among the blocks that share bytes.
void AddBlock(const uint8_t* stage, int shift, uint8_t* block) {
  for (int64_t c = 0; c < kPanelColumns; ++c) {
    uint32_t word = stage[c] | static_cast<uint32_t>(stage[c + kPanelColumns]) << 8 |
                    static_cast<uint32_t>(stage[c + 2 * kPanelColumns]) << 16 |
                    static_cast<uint32_t>(stage[c + 3 * kPanelColumns]) << 24;
    word <<= shift;
    uint32_t old;
    std::memcpy(&old, block + 4 * c, 4);
    if (shift != 0) word |= old;
    std::memcpy(block + 4 * c, &word, 4);
  }
}

}  // namespace

void PackDigitWeights(const DigitFormat& format, const Operand& weights, const DigitScales& scales, void* panels,
                      Executor* executor) {
  AQT_DCHECK(weights.rows.Count() == format.n && weights.k.Count() == format.k);
  const int64_t pitch = format.GroupPitch(), num_panels = format.NumPanels(), batch = weights.batch.Count();
  const int blocks = 8 / format.bits;
  const auto task = [&](int64_t i) {
    const int64_t b = i / num_panels, n0 = i % num_panels * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, format.n - n0);
    uint8_t* to = static_cast<uint8_t*>(panels) + b * format.PackedBytes() + i % num_panels * format.PanelBytes();
    alignas(64) uint8_t stage[kMaxDigitGroup * kPanelColumns];
    for (int64_t g = 0; g < format.NumGroups(); ++g, to += format.GroupBytes()) {
      const DigitFormat::Group group = format.GroupAt(g);
      Stage(weights, b, n0, columns, group, pitch, static_cast<uint8_t>(1 << (format.bits - 1)), stage);
      for (int64_t k = 0; k < pitch; k += 4) {
        const int64_t block = k / 4 % blocks;
        AddBlock(stage + k * kPanelColumns, static_cast<int>(format.bits * block),
                 to + k / 4 / blocks * 4 * kPanelColumns);
      }
      if (!format.has_scales()) continue;
      float values[kPanelColumns] = {};
      const float* from = scales.data + b * scales.batch_stride + group.scale * scales.group_stride;
      for (int64_t c = 0; c < columns; ++c) values[c] = from[(n0 + c) * scales.column_stride];
      std::memcpy(to + format.GroupWeightBytes(), values, sizeof(values));
    }
  };
  const int64_t tasks = batch * num_panels;
  constexpr int64_t kMinParallelElements = 64 << 10;
  if (executor == nullptr || tasks <= 1 || batch * format.n * format.k < kMinParallelElements) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  } else {
    executor->ParallelFor(tasks, task);
  }
}

}  // namespace aqt::kernels
