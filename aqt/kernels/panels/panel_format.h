#ifndef AQT_KERNELS_PANELS_PANEL_FORMAT_H_
#define AQT_KERNELS_PANELS_PANEL_FORMAT_H_

// The layouts in which the matrix kernels read their operands. A tile policy fixes one format per side. Packing depends
// only on the format, so tiles with the same format share packed operands and packing code.

#include <cstdint>

#include "aqt/core/ceil_div.h"

namespace aqt::kernels {

// A packed operand is a sequence of panels. A panel holds `width` consecutive rows of the operand (for the rhs these
// are columns of the product) over all of k. k is split into groups of `k_group` consecutive elements. The last group
// and the last panel are padded with zeros.
struct PanelFormat {
  enum class Layout : uint8_t {
    // Steps of 16 groups. Within a step the 16 groups of each row are adjacent: 64 bytes. For operands that a tile
    // broadcasts one group at a time; a group has 4 bytes.
    kRowSteps,
    // For each group, row after row. For operands that a tile loads as vectors over rows.
    kInterleaved,
  };
  enum class Element : uint8_t {
    // Only for the rhs of s8 kernels, kInterleaved. Two groups share their bytes: in each byte, the value of the even
    // group has the low four bits and the value of the next group the high ones.
    kS4,
    kS8,
    kU8Offset,  // value + 128: the unsigned operand of a u8 x s8 dot product
    kS16,       // s8 values, sign extended
    kBF16,      // for f32 kernels, which widen it, as they do kS8
    kF32,
  };

  Layout layout;
  Element element;
  // The panel starts with `width` s32 values, -128 times the sum over k of each row (modulo 2^32). Added to a sum over
  // kU8Offset values of the other side, they give the sum over the original values.
  bool has_correction;
  int32_t width;
  int32_t k_group;

  static constexpr int64_t kStepGroups = 16;

  constexpr int64_t ElementBits() const {
    switch (element) {
      case Element::kS4: return 4;
      case Element::kS8:
      case Element::kU8Offset: return 8;
      case Element::kS16:
      case Element::kBF16: return 16;
      case Element::kF32: return 32;
    }
    return 0;
  }
  // The number of groups that share their bytes.
  constexpr int64_t SharedGroups() const { return element == Element::kS4 ? 2 : 1; }
  // The size of `groups` groups in the layout kInterleaved; with shared bytes, starting at an even group.
  constexpr int64_t GroupBytes(int64_t groups) const {
    const int64_t shared = SharedGroups();
    return CeilDiv(groups, shared) * (shared * width * k_group * ElementBits() / 8);
  }
  constexpr int64_t NumPanels(int64_t rows) const { return CeilDiv(rows, width); }
  constexpr int64_t NumGroups(int64_t k) const { return CeilDiv(k, k_group); }
  // The size of the header before the first group.
  constexpr int64_t HeaderBytes() const { return has_correction ? RoundUp(int64_t{4} * width, 64) : 0; }
  constexpr int64_t PanelBytes(int64_t k) const {
    const int64_t groups = NumGroups(k);
    if (layout == Layout::kRowSteps) return CeilDiv(groups, kStepGroups) * width * 64;
    return HeaderBytes() + RoundUp(GroupBytes(groups), 64);
  }
  // The size of one packed matrix [rows, k], and the distance between matrices of a batch.
  constexpr int64_t PackedBytes(int64_t rows, int64_t k) const { return NumPanels(rows) * PanelBytes(k); }

  bool operator==(const PanelFormat&) const = default;
};

// The alignment of packed operands, in bytes.
inline constexpr int64_t kPanelAlignment = 64;

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_PANELS_PANEL_FORMAT_H_
