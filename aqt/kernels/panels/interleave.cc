#include "aqt/kernels/panels/interleave.h"

#include <cstring>
#include <type_traits>

#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/panels/interleave.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef AQT_KERNELS_INTERLEAVE_ONCE_
#define AQT_KERNELS_INTERLEAVE_ONCE_
namespace aqt::kernels::internal {
namespace {
constexpr int64_t kMaxS4Bytes = 24 << 10;  // of a block before it is packed to 4 bits
}  // namespace
}  // namespace aqt::kernels::internal
#endif  // AQT_KERNELS_INTERLEAVE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// Transposes one block of TransposeUnits.
template <class Unit>
void TransposeBlock(const char* src, int64_t src_bytes, char* dst, int64_t dst_bytes) {
  constexpr int64_t kUnits = 16 / sizeof(Unit);
  for (int64_t r = 0; r < kUnits; ++r) {
    for (int64_t c = 0; c < kUnits; ++c) {
      std::memcpy(dst + c * dst_bytes + r * sizeof(Unit), src + r * src_bytes + c * sizeof(Unit), sizeof(Unit));
    }
  }
}

// Transposes 16 x 16 units of 4 bytes: unit r of line c, xor `flip`, goes to to[r] + 4 * c.
void TransposeDwords(const char* lines, int64_t line_bytes, uint32_t flip, char* const* to) {
  for (int64_t c = 0; c < 16; ++c, lines += line_bytes) {
    for (int64_t r = 0; r < 16; ++r) {
      uint32_t unit;
      std::memcpy(&unit, lines + 4 * r, 4);
      unit ^= flip;
      std::memcpy(to[r] + 4 * c, &unit, 4);
    }
  }
}

// Interleaves kGroup lines of 16 rows: an element of each line for each row in turn.
template <int kGroup, class T>
void Zip(const T* lines, int64_t stride, T* out) {
  for (int r = 0; r < 16; ++r) {
    for (int i = 0; i < kGroup; ++i) *out++ = lines[i * stride + r];
  }
}

// The same for two lines of s8, widened to s16.
void ZipWidened(const int8_t* lines, int64_t stride, int16_t* out) {
  for (int r = 0; r < 16; ++r) {
    *out++ = lines[r];
    *out++ = lines[stride + r];
  }
}

// correction[r] -= 128 * (sum of the row's four elements in each group), modulo 2^32.
void Correct(const int8_t* groups_of_rows, int64_t groups, int64_t width, int32_t* correction) {
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < width; ++r, groups_of_rows += 4) {
      const int32_t sum = groups_of_rows[0] + groups_of_rows[1] + groups_of_rows[2] + groups_of_rows[3];
      correction[r] = static_cast<int32_t>(static_cast<uint32_t>(correction[r]) - static_cast<uint32_t>(128 * sum));
    }
  }
}

#else  // HWY_TARGET

namespace hn = hwy::HWY_NAMESPACE;

template <class Unit>
void TransposeBlock(const char* src, int64_t src_bytes, char* dst, int64_t dst_bytes) {
  constexpr int kUnits = 16 / sizeof(Unit);
  const hn::FixedTag<Unit, kUnits> d;
  hn::Vec<decltype(d)> a[kUnits], b[kUnits];
#pragma GCC unroll 16
  for (int i = 0; i < kUnits; ++i) a[i] = hn::LoadU(d, reinterpret_cast<const Unit*>(src + i * src_bytes));
    // Each pass interleaves line i with line i + kUnits / 2, which rotates the bits of (line, unit). Together the
    // passes swap line and unit.
#pragma GCC unroll 4
  for (int pass = 1; pass < kUnits; pass *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kUnits / 2; ++i) {
      b[2 * i] = hn::InterleaveLower(d, a[i], a[i + kUnits / 2]);
      b[2 * i + 1] = hn::InterleaveUpper(d, a[i], a[i + kUnits / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kUnits; ++i) a[i] = b[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kUnits; ++i) hn::StoreU(a[i], d, reinterpret_cast<Unit*>(dst + i * dst_bytes));
}

// Transposes the 4 x 4 units of 4 bytes within each block of 16 bytes.
template <class D, class V>
HWY_INLINE void TransposeInBlocks(D d, V (&v)[4]) {
  const hn::Repartition<uint64_t, D> d64;
  const auto a = hn::BitCast(d64, hn::InterleaveLower(d, v[0], v[1]));
  const auto b = hn::BitCast(d64, hn::InterleaveUpper(d, v[0], v[1]));
  const auto e = hn::BitCast(d64, hn::InterleaveLower(d, v[2], v[3]));
  const auto f = hn::BitCast(d64, hn::InterleaveUpper(d, v[2], v[3]));
  v[0] = hn::BitCast(d, hn::InterleaveLower(d64, a, e));
  v[1] = hn::BitCast(d, hn::InterleaveUpper(d64, a, e));
  v[2] = hn::BitCast(d, hn::InterleaveLower(d64, b, f));
  v[3] = hn::BitCast(d, hn::InterleaveUpper(d64, b, f));
}

#if HWY_TARGET == HWY_AVX3

// Gathers blocks of 16 bytes from four lines while loading, so only two rounds of shuffles remain.
void TransposeDwords(const char* lines, int64_t line_bytes, uint32_t flip, char* const* to) {
  const hn::ScalableTag<uint32_t> d;
  const auto flips = hn::Set(d, flip);
#pragma GCC unroll 4
  for (int64_t q = 0; q < 4; ++q) {
    hn::Vec<decltype(d)> v[4];
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) {
      const auto block = [&](int64_t c) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(lines + (4 * c + i) * line_bytes + 16 * q));
      };
      __m512i raw = _mm512_castsi128_si512(block(0));
      raw = _mm512_inserti32x4(raw, block(1), 1);
      raw = _mm512_inserti32x4(raw, block(2), 2);
      v[i].raw = _mm512_inserti32x4(raw, block(3), 3);
    }
    TransposeInBlocks(d, v);
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) hn::StoreU(hn::Xor(v[i], flips), d, reinterpret_cast<uint32_t*>(to[4 * q + i]));
  }
}

#else

void TransposeDwords(const char* lines, int64_t line_bytes, uint32_t flip, char* const* to) {
  const hn::FixedTag<uint32_t, 4> d;
  const auto flips = hn::Set(d, flip);
  for (int64_t q = 0; q < 4; ++q) {
#pragma GCC unroll 4
    for (int64_t c = 0; c < 4; ++c) {
      hn::Vec<decltype(d)> v[4];
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        v[i] = hn::LoadU(d, reinterpret_cast<const uint32_t*>(lines + (4 * c + i) * line_bytes + 16 * q));
      }
      TransposeInBlocks(d, v);
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        hn::StoreU(hn::Xor(v[i], flips), d, reinterpret_cast<uint32_t*>(to[4 * q + i] + 16 * c));
      }
    }
  }
}

#endif

template <int kGroup, class T>
void Zip(const T* lines, int64_t stride, T* out) {
  if constexpr (kGroup == 2) {
    constexpr int64_t kLanes = 16 / sizeof(T);
    const hn::FixedTag<T, kLanes> d;
    for (int64_t r = 0; r < 16; r += kLanes, out += 2 * kLanes) {
      const auto a = hn::LoadU(d, lines + r), b = hn::LoadU(d, lines + stride + r);
      hn::StoreU(hn::InterleaveLower(d, a, b), d, out);
      hn::StoreU(hn::InterleaveUpper(d, a, b), d, out + kLanes);
    }
  } else {
    static_assert(sizeof(T) == 1);
    const hn::FixedTag<T, 16> d8;
    const hn::FixedTag<int16_t, 8> d16;
    const auto line = [&](int i) { return hn::LoadU(d8, lines + i * stride); };
    const auto store = [&](auto lower, auto upper, T* to) {
      const auto a = hn::BitCast(d16, lower), b = hn::BitCast(d16, upper);
      hn::StoreU(hn::BitCast(d8, hn::InterleaveLower(d16, a, b)), d8, to);
      hn::StoreU(hn::BitCast(d8, hn::InterleaveUpper(d16, a, b)), d8, to + 16);
    };
    store(hn::InterleaveLower(d8, line(0), line(1)), hn::InterleaveLower(d8, line(2), line(3)), out);
    store(hn::InterleaveUpper(d8, line(0), line(1)), hn::InterleaveUpper(d8, line(2), line(3)), out + 32);
  }
}

void ZipWidened(const int8_t* lines, int64_t stride, int16_t* out) {
  const hn::FixedTag<int16_t, 8> d;
  const hn::FixedTag<int8_t, 8> d8;
  for (int64_t r = 0; r < 16; r += 8, out += 16) {
    const auto a = hn::PromoteTo(d, hn::LoadU(d8, lines + r)), b = hn::PromoteTo(d, hn::LoadU(d8, lines + stride + r));
    hn::StoreU(hn::InterleaveLower(d, a, b), d, out);
    hn::StoreU(hn::InterleaveUpper(d, a, b), d, out + 8);
  }
}

void Correct(const int8_t* groups_of_rows, int64_t groups, int64_t width, int32_t* correction) {
  const hn::ScalableTag<int32_t> d32;
  const hn::Repartition<int16_t, decltype(d32)> d16;
  const hn::Repartition<int8_t, decltype(d32)> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d32));
  for (int64_t r = 0; r < width; r += lanes) {
    auto sum = hn::Zero(d32);
    for (int64_t g = 0; g < groups; ++g) {
      const auto x = hn::BitCast(d16, hn::LoadU(d8, groups_of_rows + (g * width + r) * 4));
      const auto pairs = hn::BitCast(d32, hn::Add(hn::ShiftRight<8>(hn::ShiftLeft<8>(x)), hn::ShiftRight<8>(x)));
      sum = hn::Add(sum, hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(pairs)), hn::ShiftRight<16>(pairs)));
    }
    hn::StoreU(hn::Sub(hn::LoadU(d32, correction + r), hn::ShiftLeft<7>(sum)), d32, correction + r);
  }
}

#endif  // HWY_TARGET

// dst[c, r] = src[r, c] for units of 1, 2 or 4 bytes. Distances are in bytes. rows and cols are multiples of 16.
template <class Unit>
void TransposeUnits(const char* src, int64_t src_bytes, int64_t rows, int64_t cols, char* dst, int64_t dst_bytes) {
  constexpr int64_t kUnits = sizeof(Unit) == 4 ? 16 : 16 / sizeof(Unit);
  // One line of the result at a time.
  for (int64_t c = 0; c < cols; c += kUnits) {
    for (int64_t r = 0; r < rows; r += kUnits) {
      const char* from = src + r * src_bytes + c * static_cast<int64_t>(sizeof(Unit));
      char* to = dst + c * dst_bytes + r * static_cast<int64_t>(sizeof(Unit));
      if constexpr (sizeof(Unit) == 4) {
        char* lines[16];
        for (int64_t i = 0; i < 16; ++i) lines[i] = to + i * dst_bytes;
        TransposeDwords(from, src_bytes, 0, lines);
      } else {
        TransposeBlock<Unit>(from, src_bytes, to, dst_bytes);
      }
    }
  }
}

// Copies the 64 bytes of a row in a step; `flush` turns subnormal floats into zeros. bf16 is passed as its bits.
void CopyLine(const float* from, bool flush, char* to) {
  namespace hn = hwy::HWY_NAMESPACE;
  if (!flush) {
    std::memcpy(to, from, 64);
    return;
  }
  const hn::ScalableTag<float> d;
  for (int64_t i = 0; i < 16; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto x = hn::LoadU(d, from + i);
    const auto subnormal = hn::Lt(hn::Abs(x), hn::Set(d, 0x1p-126f));
    hn::StoreU(hn::IfThenElse(subnormal, hn::And(x, hn::Set(d, -0.0f)), x), d, reinterpret_cast<float*>(to) + i);
  }
}
void CopyLine(const uint16_t* from, bool flush, char* to) {
  namespace hn = hwy::HWY_NAMESPACE;
  if (!flush) {
    std::memcpy(to, from, 64);
    return;
  }
  const hn::ScalableTag<uint16_t> d;
  for (int64_t i = 0; i < 32; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto bits = hn::LoadU(d, from + i);
    const auto subnormal = hn::Eq(hn::And(bits, hn::Set(d, uint16_t{0x7f80})), hn::Zero(d));
    hn::StoreU(hn::IfThenElse(subnormal, hn::And(bits, hn::Set(d, uint16_t{0x8000})), bits), d,
               reinterpret_cast<uint16_t*>(to) + i);
  }
}
void CopyLine(const int8_t* from, bool, char* to) { std::memcpy(to, from, 64); }

// The layout kRowSteps, from a block that is contiguous along k: steps of 64 bytes per row.
template <class Out, class T>
void RowStepsAlongK(const T* block, int64_t row_stride, int64_t steps, int64_t width, bool flush, char* out) {
  constexpr int64_t kStepK = 64 / sizeof(Out);
  for (int64_t s = 0; s < steps; ++s, block += kStepK) {
    for (int64_t r = 0; r < width; ++r, out += 64) {
      const T* from = block + r * row_stride;
      if constexpr (std::is_same_v<Out, T>) {
        CopyLine(from, flush, out);
        continue;
      }
      Out line[kStepK];
      for (int64_t i = 0; i < kStepK; ++i) {
        if constexpr (std::is_same_v<Out, uint8_t>) line[i] = static_cast<uint8_t>(from[i] ^ 0x80);  // + 128
        else line[i] = from[i];
      }
      std::memcpy(out, line, 64);
    }
  }
}

// The same from a block that is contiguous along rows: first the groups, then their transpose.
template <class Out, class T>
void RowStepsAlongRows(const T* block, int64_t k_stride, int64_t steps, const Panels& panels, int64_t width,
                       char* out) {
  constexpr int kGroup = 4 / sizeof(Out);
  constexpr int64_t kGroups = PanelFormat::kStepGroups;
  constexpr uint32_t kFlip = std::is_same_v<Out, uint8_t> ? 0x80808080 : 0;  // + 128
  const int64_t rows = panels.count * width;
  char* line = out;      // for row r
  int64_t left = width;  // rows of its panel starting at r
  for (int64_t r0 = 0; r0 < rows; r0 += 16) {
    char beyond[64];  // destination of rows beyond the last panel
    char* to[16];
    for (int64_t i = 0; i < 16; ++i) {
      to[i] = r0 + i < rows ? line : beyond;
      line += 64;
      if (--left == 0) {
        left = width;
        line += panels.bytes - width * 64;
      }
    }
    const T* from = block + r0;
    for (int64_t s = 0; s < steps; ++s) {
      if constexpr (kGroup == 1) {
        TransposeDwords(reinterpret_cast<const char*>(from), k_stride * 4, kFlip, to);
        from += kGroups * k_stride;
      } else {
        alignas(64) Out groups[kGroups * 16 * kGroup];
        for (int64_t g = 0; g < kGroups; ++g, from += kGroup * k_stride) {
          Out* const group = groups + g * 16 * kGroup;
          if constexpr (sizeof(Out) == sizeof(T)) Zip<kGroup>(from, k_stride, reinterpret_cast<T*>(group));
          else ZipWidened(from, k_stride, group);
        }
        TransposeDwords(reinterpret_cast<const char*>(groups), 64, kFlip, to);
      }
      for (int64_t i = 0; i < 16 && r0 + i < rows; ++i) to[i] += width * 64;
    }
  }
}

template <class Out, class T>
void RowSteps(const PanelFormat& format, const T* block, int64_t row_stride, int64_t k_stride, int64_t k0, int64_t k1,
              const Panels& panels, bool flush = false) {
  const int64_t steps = CeilDiv(CeilDiv(k1 - k0, format.k_group), PanelFormat::kStepGroups);
  char* const out = panels.first + k0 / format.k_group * 4 * format.width;
  if (k_stride != 1) return RowStepsAlongRows<Out>(block, k_stride, steps, panels, format.width, out);
  for (int64_t p = 0; p < panels.count; ++p) {
    RowStepsAlongK<Out>(block + p * format.width * row_stride, row_stride, steps, format.width, flush,
                        out + p * panels.bytes);
  }
}

// The layout kInterleaved: groups of kGroup elements, row after row.
template <int kGroup, class T>
void Groups(const T* block, int64_t row_stride, int64_t k_stride, int64_t groups, int64_t width, T* out) {
  const int64_t group_size = width * kGroup;
  if (k_stride != 1) {
    for (int64_t g = 0; g < groups; ++g, block += kGroup * k_stride, out += group_size) {
      if constexpr (kGroup == 1) {
        std::memcpy(out, block, width * sizeof(T));
      } else {
        for (int64_t r = 0; r < width; r += 16) Zip<kGroup>(block + r, k_stride, out + r * kGroup);
      }
    }
    return;
  }
  using Unit = std::conditional_t<kGroup * sizeof(T) == 4, uint32_t,
                                  std::conditional_t<kGroup * sizeof(T) == 2, uint16_t, uint8_t>>;
  const auto transpose = [&](const T* from, int64_t count, T* to) {
    TransposeUnits<Unit>(reinterpret_cast<const char*>(from), row_stride * sizeof(T), width, count,
                         reinterpret_cast<char*>(to), group_size * sizeof(T));
  };
  // Processes whole steps, except for the last groups, for which the panel may have no room.
  constexpr int64_t kMaxWidth = 64, kStep = PanelFormat::kStepGroups;
  AQT_DCHECK(width <= kMaxWidth);
  const int64_t whole = groups / kStep * kStep;
  transpose(block, whole, out);
  if (whole < groups) {
    T step[kMaxWidth * kGroup * kStep];
    transpose(block + whole * kGroup, kStep, step);
    std::memcpy(out + whole * group_size, step, (groups - whole) * group_size * sizeof(T));
  }
}

// Calls f(block of the panel, panel) for all panels.
template <class T, class F>
void ForEachPanel(const PanelFormat& format, const T* block, int64_t row_stride, const Panels& panels, const F& f) {
  for (int64_t p = 0; p < panels.count; ++p) f(block + p * format.width * row_stride, panels.first + p * panels.bytes);
}

// Stores pairs of groups of `size` bytes, whose values fit 4 bits.
void StoreS4(const int8_t* bytes, int64_t groups, int64_t size, uint8_t* to) {
  for (int64_t g = 0; g < groups; g += 2, bytes += 2 * size, to += size) {
    for (int64_t i = 0; i < size; ++i) {
      to[i] = static_cast<uint8_t>((bytes[i] & 15) | (g + 1 < groups ? bytes[size + i] << 4 : 0));
    }
  }
}

void InterleaveS8(const PanelFormat& format, const int8_t* block, int64_t row_stride, int64_t k_stride, int64_t k0,
                  int64_t k1, const Panels& panels) {
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    if (format.element == PanelFormat::Element::kS16) {
      return RowSteps<int16_t>(format, block, row_stride, k_stride, k0, k1, panels);
    }
    if (format.element == PanelFormat::Element::kS8) {
      return RowSteps<int8_t>(format, block, row_stride, k_stride, k0, k1, panels);
    }
    return RowSteps<uint8_t>(format, block, row_stride, k_stride, k0, k1, panels);
  }
  const int64_t width = format.width, groups = CeilDiv(k1 - k0, format.k_group), first_group = k0 / format.k_group;
  const bool is_s4 = format.element == PanelFormat::Element::kS4;
  alignas(64) int8_t bytes[kMaxS4Bytes];
  AQT_DCHECK(!is_s4 || groups * width * format.k_group <= kMaxS4Bytes);
  ForEachPanel(format, block, row_stride, panels, [&](const int8_t* from, char* panel) {
    char* const to = panel + format.HeaderBytes() + format.GroupBytes(first_group);
    int8_t* const out = is_s4 ? bytes : reinterpret_cast<int8_t*>(to);
    switch (format.k_group) {
      case 1: Groups<1>(from, row_stride, k_stride, groups, width, out); break;
      case 2: Groups<2>(from, row_stride, k_stride, groups, width, out); break;
      default: Groups<4>(from, row_stride, k_stride, groups, width, out); break;
    }
    if (is_s4) StoreS4(bytes, groups, width * format.k_group, reinterpret_cast<uint8_t*>(to));
    if (!format.has_correction) return;
    int32_t* correction = reinterpret_cast<int32_t*>(panel);
    if (k0 == 0) std::memset(correction, 0, width * sizeof(int32_t));
    Correct(out, groups, width, correction);
  });
}

void InterleaveBF16(const PanelFormat& format, const BFloat16* block, int64_t row_stride, int64_t k_stride, int64_t k0,
                    int64_t k1, const Panels& panels, bool flush) {
  const auto* bits = reinterpret_cast<const uint16_t*>(block);
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    AQT_DCHECK(format.k_group == 2);
    return RowSteps<uint16_t>(format, bits, row_stride, k_stride, k0, k1, panels, flush);
  }
  const int64_t width = format.width, groups = CeilDiv(k1 - k0, format.k_group);
  ForEachPanel(format, bits, row_stride, panels, [&](const uint16_t* from, char* panel) {
    auto* out = reinterpret_cast<uint16_t*>(panel) + k0 * width;
    if (format.k_group == 1) Groups<1>(from, row_stride, k_stride, groups, width, out);
    else Groups<2>(from, row_stride, k_stride, groups, width, out);
  });
}

void InterleaveF32(const PanelFormat& format, const float* block, int64_t row_stride, int64_t k_stride, int64_t k0,
                   int64_t k1, const Panels& panels, bool flush) {
  AQT_DCHECK(format.k_group == 1);
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    return RowSteps<float>(format, block, row_stride, k_stride, k0, k1, panels, flush);
  }
  ForEachPanel(format, block, row_stride, panels, [&](const float* from, char* panel) {
    Groups<1>(from, row_stride, k_stride, k1 - k0, format.width, reinterpret_cast<float*>(panel) + k0 * format.width);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels::internal {

void Interleave(Target target, const PanelFormat& format, const int8_t* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, const Panels& panels, bool) {
  AQT_HWY_DISPATCH(target, InterleaveS8)(format, block, row_stride, k_stride, k0, k1, panels);
}

void Interleave(Target target, const PanelFormat& format, const BFloat16* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, const Panels& panels, bool subnormals_are_zero) {
  AQT_HWY_DISPATCH(target, InterleaveBF16)(format, block, row_stride, k_stride, k0, k1, panels, subnormals_are_zero);
}

void Interleave(Target target, const PanelFormat& format, const float* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, const Panels& panels, bool subnormals_are_zero) {
  AQT_HWY_DISPATCH(target, InterleaveF32)(format, block, row_stride, k_stride, k0, k1, panels, subnormals_are_zero);
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
