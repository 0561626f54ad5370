#include "aqt/kernels/interleave.h"

#include <cstring>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/kernels/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/interleave.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef AQT_KERNELS_INTERLEAVE_ONCE_
#define AQT_KERNELS_INTERLEAVE_ONCE_
namespace aqt::kernels::internal {
namespace {
int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
}  // namespace
}  // namespace aqt::kernels::internal
#endif  // AQT_KERNELS_INTERLEAVE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// One block of TransposeUnits.
template <class Unit>
void TransposeBlock(const char* src, int64_t src_bytes, char* dst, int64_t dst_bytes) {
  constexpr int64_t kUnits = 16 / sizeof(Unit);
  for (int64_t r = 0; r < kUnits; ++r) {
    for (int64_t c = 0; c < kUnits; ++c) {
      std::memcpy(dst + c * dst_bytes + r * sizeof(Unit), src + r * src_bytes + c * sizeof(Unit), sizeof(Unit));
    }
  }
}

// Interleaves kGroup lines of 16 rows: for each row, an element of each line side by side.
template <int kGroup, class T>
void Zip(const T* lines, int64_t stride, T* out) {
  for (int r = 0; r < 16; ++r) {
    for (int i = 0; i < kGroup; ++i) *out++ = lines[i * stride + r];
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
    // Each pass interleaves line i with line i + kUnits / 2, which rotates the bits of (line, unit); together they
    // swap line and unit.
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

// dst[c, r] = src[r, c] for units of 1, 2 or 4 bytes; distances in bytes.
template <class Unit>
void TransposeUnits(const char* src, int64_t src_bytes, int64_t rows, int64_t cols, char* dst, int64_t dst_bytes) {
  constexpr int64_t kUnits = 16 / sizeof(Unit);
  AQT_DCHECK(rows % kUnits == 0 && cols % kUnits == 0);
  for (int64_t r = 0; r < rows; r += kUnits) {
    for (int64_t c = 0; c < cols; c += kUnits) {
      TransposeBlock<Unit>(src + r * src_bytes + c * static_cast<int64_t>(sizeof(Unit)), src_bytes,
                           dst + c * dst_bytes + r * static_cast<int64_t>(sizeof(Unit)), dst_bytes);
    }
  }
}

// The layout kRowSteps: steps of 64 bytes per row.
template <class Out, class T>
void RowSteps(const T* block, int64_t row_stride, int64_t steps, int64_t width, char* out) {
  constexpr int64_t kStepK = 64 / sizeof(Out);
  for (int64_t s = 0; s < steps; ++s, block += kStepK) {
    for (int64_t r = 0; r < width; ++r, out += 64) {
      const T* from = block + r * row_stride;
      if constexpr (std::is_same_v<Out, T>) {
        std::memcpy(out, from, 64);
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
  // Whole steps, except for the last groups, which the panel may have no room for.
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

void TransposeS8(const int8_t* src, int64_t src_stride, int64_t rows, int64_t cols, int8_t* dst, int64_t dst_stride) {
  TransposeUnits<uint8_t>(reinterpret_cast<const char*>(src), src_stride, rows, cols, reinterpret_cast<char*>(dst),
                          dst_stride);
}

void TransposeBF16(const BFloat16* src, int64_t src_stride, int64_t rows, int64_t cols, BFloat16* dst,
                   int64_t dst_stride) {
  TransposeUnits<uint16_t>(reinterpret_cast<const char*>(src), src_stride * 2, rows, cols, reinterpret_cast<char*>(dst),
                           dst_stride * 2);
}

void TransposeF32(const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst, int64_t dst_stride) {
  TransposeUnits<uint32_t>(reinterpret_cast<const char*>(src), src_stride * 4, rows, cols, reinterpret_cast<char*>(dst),
                           dst_stride * 4);
}

void InterleaveS8(const PanelFormat& format, const int8_t* block, int64_t row_stride, int64_t k_stride, int64_t k0,
                  int64_t k1, char* panel) {
  const int64_t groups = CeilDiv(k1 - k0, format.k_group), steps = CeilDiv(groups, PanelFormat::kStepGroups);
  const int64_t width = format.width, first_group = k0 / format.k_group;
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    AQT_DCHECK(k_stride == 1);
    char* out = panel + first_group * 4 * width;
    if (format.element == PanelFormat::Element::kS16) RowSteps<int16_t>(block, row_stride, steps, width, out);
    else if (format.element == PanelFormat::Element::kS8) RowSteps<int8_t>(block, row_stride, steps, width, out);
    else RowSteps<uint8_t>(block, row_stride, steps, width, out);
    return;
  }
  int8_t* out = reinterpret_cast<int8_t*>(panel + format.HeaderBytes()) + first_group * width * format.k_group;
  switch (format.k_group) {
    case 1: Groups<1>(block, row_stride, k_stride, groups, width, out); break;
    case 2: Groups<2>(block, row_stride, k_stride, groups, width, out); break;
    default: Groups<4>(block, row_stride, k_stride, groups, width, out); break;
  }
  if (!format.has_correction) return;
  int32_t* correction = reinterpret_cast<int32_t*>(panel);
  if (k0 == 0) std::memset(correction, 0, width * sizeof(int32_t));
  Correct(out, groups, width, correction);
}

void InterleaveBF16(const PanelFormat& format, const BFloat16* block, int64_t row_stride, int64_t k_stride, int64_t k0,
                    int64_t k1, char* panel) {
  const int64_t groups = CeilDiv(k1 - k0, format.k_group), width = format.width;
  const auto* from = reinterpret_cast<const uint16_t*>(block);
  auto* out = reinterpret_cast<uint16_t*>(panel) + k0 * width;
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    AQT_DCHECK(k_stride == 1 && format.k_group == 2);
    RowSteps<uint16_t>(from, row_stride, CeilDiv(groups, PanelFormat::kStepGroups), width, panel + k0 * 2 * width);
  } else if (format.k_group == 1) {
    Groups<1>(from, row_stride, k_stride, groups, width, out);
  } else {
    Groups<2>(from, row_stride, k_stride, groups, width, out);
  }
}

void InterleaveF32(const PanelFormat& format, const float* block, int64_t row_stride, int64_t k_stride, int64_t k0,
                   int64_t k1, char* panel) {
  AQT_DCHECK(format.k_group == 1);
  const int64_t width = format.width;
  auto* out = reinterpret_cast<float*>(panel) + k0 * width;
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    AQT_DCHECK(k_stride == 1);
    RowSteps<float>(block, row_stride, CeilDiv(k1 - k0, PanelFormat::kStepGroups), width, reinterpret_cast<char*>(out));
  } else {
    Groups<1>(block, row_stride, k_stride, k1 - k0, width, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels::internal {

void Transpose(Target target, const int8_t* src, int64_t src_stride, int64_t rows, int64_t cols, int8_t* dst,
               int64_t dst_stride) {
  AQT_HWY_DISPATCH(target, TransposeS8)(src, src_stride, rows, cols, dst, dst_stride);
}

void Transpose(Target target, const BFloat16* src, int64_t src_stride, int64_t rows, int64_t cols, BFloat16* dst,
               int64_t dst_stride) {
  AQT_HWY_DISPATCH(target, TransposeBF16)(src, src_stride, rows, cols, dst, dst_stride);
}

void Transpose(Target target, const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
               int64_t dst_stride) {
  AQT_HWY_DISPATCH(target, TransposeF32)(src, src_stride, rows, cols, dst, dst_stride);
}

void Interleave(Target target, const PanelFormat& format, const int8_t* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, char* panel) {
  AQT_HWY_DISPATCH(target, InterleaveS8)(format, block, row_stride, k_stride, k0, k1, panel);
}

void Interleave(Target target, const PanelFormat& format, const BFloat16* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, char* panel) {
  AQT_HWY_DISPATCH(target, InterleaveBF16)(format, block, row_stride, k_stride, k0, k1, panel);
}

void Interleave(Target target, const PanelFormat& format, const float* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, char* panel) {
  AQT_HWY_DISPATCH(target, InterleaveF32)(format, block, row_stride, k_stride, k0, k1, panel);
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
