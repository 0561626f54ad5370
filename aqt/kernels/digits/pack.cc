// Packs stored weights into panels for the digit kernels.
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/core/check.h"
#include "aqt/kernels/digits/internal.h"

namespace aqt::kernels {
namespace {

using internal::kPanelColumns;

constexpr int64_t kBlockWords = kPanelColumns;  // of four k: one word per column

// Interleaves four rows of bytes into words: to[c] = rows[0][c] | rows[1][c] << 8 | ...
void Interleave(const uint8_t* const rows[4], int64_t columns, uint32_t* to) {
  int64_t c = 0;
#ifdef __SSE2__
  for (; c + 16 <= columns; c += 16) {
    const auto load = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + c)); };
    const auto store = [&](int i, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to + c + 4 * i), v); };
    const __m128i a = load(0), b = load(1), d = load(2), e = load(3);
    const __m128i ab_low = _mm_unpacklo_epi8(a, b), ab_high = _mm_unpackhi_epi8(a, b);
    const __m128i de_low = _mm_unpacklo_epi8(d, e), de_high = _mm_unpackhi_epi8(d, e);
    store(0, _mm_unpacklo_epi16(ab_low, de_low));
    store(1, _mm_unpackhi_epi16(ab_low, de_low));
    store(2, _mm_unpacklo_epi16(ab_high, de_high));
    store(3, _mm_unpackhi_epi16(ab_high, de_high));
  }
#endif
  for (; c < columns; ++c) {
    to[c] = rows[0][c] | static_cast<uint32_t>(rows[1][c]) << 8 | static_cast<uint32_t>(rows[2][c]) << 16 |
            static_cast<uint32_t>(rows[3][c]) << 24;
  }
}

// Stores the weights of a group and a panel at words[k / 4][column], one byte each. Padding is zero.
void Stage(const Operand& weights, int64_t b, int64_t n0, int64_t columns, const DigitFormat::Group& group,
           int64_t pitch, uint32_t* words) {
  const auto* from = static_cast<const uint8_t*>(weights.data) + weights.batch.Offset(b);
  const int64_t whole = group.size / 4 * 4;
  const bool has_strides = weights.rows.rank <= 1 && weights.k.rank <= 1;
  const bool by_columns = has_strides && (weights.rows.InnerStride() == 1 || columns == 1);
  const bool by_k = has_strides && !by_columns && weights.k.InnerStride() == 1;
  if (columns < kPanelColumns || whole < pitch || !(by_columns || by_k)) {
    std::memset(words, 0, pitch * kPanelColumns);
  }
  int64_t k = 0;
  if (by_columns) {
    for (; k < whole; k += 4) {
      const uint8_t* rows[4];
      for (int64_t i = 0; i < 4; ++i) rows[i] = from + weights.rows.Offset(n0) + weights.k.Offset(group.begin + k + i);
      Interleave(rows, columns, words + k / 4 * kBlockWords);
    }
  } else if (by_k) {
    for (int64_t c = 0; c < columns; ++c) {
      const uint8_t* column = from + weights.rows.Offset(n0 + c) + weights.k.Offset(group.begin);
      for (k = 0; k < whole; k += 4) std::memcpy(words + k / 4 * kBlockWords + c, column + k, 4);
    }
  }
  // Handles any strides, and the last k.
  for (; k < group.size; ++k) {
    const uint8_t* row = from + weights.k.Offset(group.begin + k);
    for (int64_t c = 0; c < columns; ++c) {
      words[k / 4 * kBlockWords + c] |= static_cast<uint32_t>(row[weights.rows.Offset(n0 + c)]) << (k % 4 * 8);
    }
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
    alignas(64) uint32_t words[kMaxDigitGroup / 4 * kBlockWords];
    for (int64_t g = 0; g < format.NumGroups(); ++g, to += format.GroupBytes()) {
      const DigitFormat::Group group = format.GroupAt(g);
      Stage(weights, b, n0, columns, group, pitch, words);
      // q + 2^(bits - 1) equals q with its sign bit flipped.
      const uint32_t sign = 0x01010101u << (format.bits - 1), mask = 0x01010101u * ((1u << format.bits) - 1);
      for (int64_t k = 0; k < pitch / 4; k += blocks) {
        uint32_t packed[kBlockWords] = {};
        for (int block = 0; block < blocks; ++block) {
          const uint32_t* from = words + (k + block) * kBlockWords;
          for (int64_t c = 0; c < kBlockWords; ++c) packed[c] |= ((from[c] ^ sign) & mask) << (format.bits * block);
        }
        std::memcpy(to + k / blocks * sizeof(packed), packed, sizeof(packed));
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
