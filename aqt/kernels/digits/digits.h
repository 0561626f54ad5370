#ifndef AQT_KERNELS_DIGITS_DIGITS_H_
#define AQT_KERNELS_DIGITS_DIGITS_H_

// The product of floats and stored integers (weight-only quantization) on the integer units:
//   out[b, m, n] = epilogue(sum over k of x[b, m, k] * q[b, n, k] * s[b, group of k, n])
// x is f32, bf16 or f16; q is s8, s4 or s2; the scales s, one per column and group of k, are optional.
//
// The bits are the same on every target, for any number of threads, and whatever the other rows and columns are. A row
// is written as integers of three digits, the products with q are summed exactly, and only a few sums are rounded, in a
// fixed order.
//
// The arithmetic for one row of x: k is split into groups (DigitFormat::Group). Subnormal f32 and bf16 elements count
// as zero. If k <= kMaxDigitGroup, the first layer of a group holds all elements. Each further layer holds x - u v, the
// part that the previous layer dropped, until nothing is left or there are kMaxDigitLayers. So a short row is nearly
// always held exactly: in bf16 and f16 mostly by one layer, in f32 by two.
// If k is larger, the nonzero elements of each group are sorted into layers:
//   Let A be the largest magnitude among the remaining elements, and 2^e <= A < 2^(e+1). If at least half of them are
//   >= 2^(e - kDigitLayerBits), or if this is the last allowed layer (kMaxDigitLayers), all of them form the layer.
//   Otherwise those at or above the bound form it, and the smaller ones, the majority, are left for the next layer.
//   This way outliers do not make the other elements coarser.
// In a layer, let u be the smallest power of two from 2^-149 upwards for which no |v| exceeds 8355711 (three digits of
// 127):
//   v = round_half_even(x / u);   |x - u v| <= u / 2 <= A / 8355711
//   v = d0 + 256 d1 + 65536 d2    with digits in [-128, 127]
//   S_i = sum of d_i * q          exact, |S_i| <= 2^21
//   t = R(65536 S2 + R(S0 + 256 S1))
//   p = R(p + R(t * u))
// where R rounds to f32. p starts at +0 and takes the groups in ascending order, and the layers of a group from large
// to small. Without scales p is the sum. With scales each scale group has its own p, and
//   sum = F(sum + F(F(p) * s))
// in ascending order from +0, where F rounds to f32 and turns a subnormal number into a zero of its sign. This is the
// sum of the products of tiles that are dequantized one at a time. Epilogue (gemm.h) follows in either case.
//
// x may also be s8 with a scale per row and scale group, DigitArgs::lhs_scales, if no scale group is split. Each group
// of a row is then a single layer, with its elements as d0, zeros as d1 and d2, and the scale as u, whatever its value:
//   sum = F(sum + F(F(R(S0) * u) * s))
//
// If a row has infinite or NaN elements, p is the f32 sum of x * q over only these elements. So it is infinite or NaN
// exactly where an f32 loop would be, and with the same sign. Other rows and other scale groups are not affected.
//
// The error, with G groups, L layers, T_g the terms of group g, and eps = 2^-24, if nothing overflows or underflows:
//   |sum - exact| <= sum over g of |s_g| (sum over layers of 1.2e-7 A_layer * (sum over its k of |q_k|))
//                    + (G L + 5) eps * sum over g of (sum over layers of |t u s|)
// The first term is what the digits drop, the second is the later rounding; an f32 loop has K eps sum |x q s|. At least
// half of the elements of a layer, unless it is the last allowed one, are larger than A / 128. So the first term is
// small compared to sum |x q s| unless q vanishes at exactly these elements. For a short row (k <= kMaxDigitGroup) the
// first term has 1.8e-21 A instead, with A the largest element of the group: the error is that of an f32 loop.

#include <algorithm>
#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// The largest number of elements of a group, and the size of all but the last group without scales.
inline constexpr int64_t kMaxDigitGroup = 128;
inline constexpr int64_t kMaxDigitLayers = 3;
// The largest element of a layer is less than 2^(kDigitLayerBits + 1) times the elements that form it by the rule
// above.
inline constexpr int kDigitLayerBits = 6;

// The layout of packed weights [n, k]: panels of 64 columns, each a sequence of groups of k. A group has first the
// weights and then, if there are scales, 64 f32 scales. Weights are unsigned: q + 2^(bits - 1). With 8 bits, each block
// of four k stores its four bytes column after column. With 4 (2) bits, each byte holds the values of 2 (4) such
// blocks, the first in its lowest bits. Columns beyond n and k beyond a group are padding.
struct DigitFormat {
  static constexpr int64_t kPanelColumns = 64;

  int bits = 8;  // 8, 4 or 2
  int64_t n = 0, k = 0;
  int64_t scale_group = 0;  // consecutive k that share a scale; 0: no scales

  bool has_scales() const { return scale_group != 0; }
  // Whether x loses nothing that an f32 loop would keep: see above.
  bool is_short() const { return k <= kMaxDigitGroup; }
  // Scale groups of more than kMaxDigitGroup elements are split.
  struct Group {
    int64_t begin, size, scale;  // elements [begin, begin + size) of k, and the index of their scale
  };
  int64_t NumGroups() const { return NumScaleGroups() * GroupsPerScale(); }
  int64_t NumScaleGroups() const { return has_scales() ? CeilDiv(k, scale_group) : 1; }
  Group GroupAt(int64_t i) const {
    const int64_t scale = i / GroupsPerScale(), from = has_scales() ? scale * scale_group : 0;
    const int64_t to = has_scales() ? std::min(k, from + scale_group) : k;
    const int64_t begin = std::min(to, from + i % GroupsPerScale() * kMaxDigitGroup);
    return {begin, std::min(to - begin, kMaxDigitGroup), scale};
  }
  // Elements of k that a group occupies, the same for all groups.
  int64_t GroupPitch() const {
    const int64_t size = std::min(has_scales() ? std::min(scale_group, k) : k, kMaxDigitGroup);
    const int64_t unit = size > 32 ? 64 : 16;
    return RoundUp(size, unit);
  }
  int64_t GroupWeightBytes() const { return GroupPitch() * kPanelColumns * bits / 8; }
  int64_t GroupBytes() const {
    return GroupWeightBytes() + (has_scales() ? kPanelColumns * int64_t{sizeof(float)} : 0);
  }
  int64_t NumPanels() const { return CeilDiv(n, kPanelColumns); }
  int64_t PanelBytes() const { return NumGroups() * GroupBytes(); }
  int64_t PackedBytes() const { return NumPanels() * PanelBytes(); }

  bool operator==(const DigitFormat&) const = default;

 private:
  int64_t GroupsPerScale() const {
    return std::max<int64_t>(1, CeilDiv(has_scales() ? std::min(scale_group, k) : k, kMaxDigitGroup));
  }
};

// The scales of a format that has them. The scale of scale group i and column j of matrix b is at data[b * batch_stride
// + i * group_stride + j * column_stride]. For an integer x, j is a row.
struct DigitScales {
  const float* data = nullptr;
  int64_t batch_stride = 0, group_stride = 0, column_stride = 1;
};

// Packs weights: s8, or, for formats of fewer bits, s8, s4 or s2 whose values all fit. `panels` has
// format.PackedBytes() bytes per matrix, aligned to kPanelAlignment. The bytes are the same on every target.
void PackDigitWeights(const DigitFormat& format, const Operand& weights, const DigitScales& scales, void* panels,
                      Executor* executor);

// What a product on digits has besides the problem, whose lhs is x, and whose output is f32, bf16 or f16.
struct DigitArgs {
  DigitFormat format = {};
  const void* rhs = nullptr;    // weights in this format
  int64_t rhs_batch_bytes = 0;  // 0 if all matrices of a batch share the weights
  DigitScales lhs_scales = {};  // for an integer x
  void* scratch = nullptr;      // DigitScratchBytes(...) bytes, aligned to kPanelAlignment
};

// Scratch bytes for `batch` matrices of this many rows, of floats or of s8.
int64_t DigitScratchBytes(Target target, const DigitFormat& format, int64_t batch, int64_t rows, bool integers = false);
void MultiplyDigits(Target target, const GemmProblem& problem, const DigitArgs& args, Executor* executor);

// Whether a product of integers with this scale_group is faster here than as accumulated products of gemm.h.
bool PrefersDigitsOfIntegers(Target target, int64_t scale_group);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_DIGITS_DIGITS_H_
