#include "aqt/kernels/interleave.h"

#include <cstring>

namespace aqt::kernels::internal {
namespace {

// The element as the panel holds it, from the block's.
template <PanelFormat::Element kElement>
struct Convert;
template <>
struct Convert<PanelFormat::Element::kS8> {
  static int8_t Of(int8_t x) { return x; }
};
template <>
struct Convert<PanelFormat::Element::kU8Offset> {
  static uint8_t Of(int8_t x) { return static_cast<uint8_t>(x ^ 0x80); }
};
template <>
struct Convert<PanelFormat::Element::kS16> {
  static int16_t Of(int8_t x) { return x; }
};
template <>
struct Convert<PanelFormat::Element::kF32> {
  static float Of(float x) { return x; }
};

template <PanelFormat::Element kElement, int kGroup, class T>
void RowSteps(const T* block, int64_t row_stride, int64_t k_stride, int64_t steps, int64_t width, char* out) {
  using Out = decltype(Convert<kElement>::Of(T()));
  constexpr int64_t kStepK = PanelFormat::kStepGroups * kGroup;
  static_assert(kStepK * sizeof(Out) == 64);
  Out line[kStepK];
  for (int64_t s = 0; s < steps; ++s) {
    for (int64_t r = 0; r < width; ++r, out += 64) {
      const T* from = block + r * row_stride + s * kStepK * k_stride;
      if (k_stride == 1) {
        for (int64_t i = 0; i < kStepK; ++i) line[i] = Convert<kElement>::Of(from[i]);
      } else {
        for (int64_t i = 0; i < kStepK; ++i) line[i] = Convert<kElement>::Of(from[i * k_stride]);
      }
      std::memcpy(out, line, 64);
    }
  }
}

template <int kGroup, class T>
void Groups(const T* block, int64_t row_stride, int64_t k_stride, int64_t groups, int64_t width, char* out) {
  T* to = reinterpret_cast<T*>(out);
  for (int64_t g = 0; g < groups; ++g, block += kGroup * k_stride) {
    for (int64_t r = 0; r < width; ++r, to += kGroup) {
      for (int i = 0; i < kGroup; ++i) to[i] = block[r * row_stride + i * k_stride];
    }
  }
}

// correction[r] -= 128 * sum of the row's elements, modulo 2^32.
void Correct(const int8_t* groups_of_rows, int64_t groups, int64_t width, int64_t k_group, int32_t* correction) {
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < width; ++r, groups_of_rows += k_group) {
      int32_t sum = 0;
      for (int64_t i = 0; i < k_group; ++i) sum += groups_of_rows[i];
      correction[r] = static_cast<int32_t>(static_cast<uint32_t>(correction[r]) - static_cast<uint32_t>(128 * sum));
    }
  }
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void Interleave(Target, const PanelFormat& format, const int8_t* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, char* panel) {
  using Element = PanelFormat::Element;
  const int64_t groups = CeilDiv(k1 - k0, format.k_group), first_group = k0 / format.k_group, width = format.width;
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    const int64_t steps = CeilDiv(groups, PanelFormat::kStepGroups);
    char* out = panel + first_group * 4 * width;
    if (format.element == Element::kS16) RowSteps<Element::kS16, 2>(block, row_stride, k_stride, steps, width, out);
    else RowSteps<Element::kU8Offset, 4>(block, row_stride, k_stride, steps, width, out);
    return;
  }
  char* out = panel + format.HeaderBytes() + first_group * width * format.k_group;
  if (format.k_group == 2) Groups<2>(block, row_stride, k_stride, groups, width, out);
  else Groups<4>(block, row_stride, k_stride, groups, width, out);
  if (!format.has_correction) return;
  int32_t* correction = reinterpret_cast<int32_t*>(panel);
  if (k0 == 0) std::memset(correction, 0, width * sizeof(int32_t));
  Correct(reinterpret_cast<const int8_t*>(out), groups, width, format.k_group, correction);
}

void Interleave(Target, const PanelFormat& format, const float* block, int64_t row_stride, int64_t k_stride, int64_t k0,
                int64_t k1, char* panel) {
  char* out = panel + k0 * 4 * format.width;
  if (format.layout == PanelFormat::Layout::kRowSteps) {
    RowSteps<PanelFormat::Element::kF32, 1>(block, row_stride, k_stride, CeilDiv(k1 - k0, PanelFormat::kStepGroups),
                                            format.width, out);
  } else {
    Groups<1>(block, row_stride, k_stride, k1 - k0, format.width, out);
  }
}

}  // namespace aqt::kernels::internal
