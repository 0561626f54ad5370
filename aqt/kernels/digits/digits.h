#ifndef AQT_KERNELS_DIGITS_DIGITS_H_
#define AQT_KERNELS_DIGITS_DIGITS_H_

// The product of floats and stored integers (weight-only quantization) on the integer units:
//   out[b, m, n] = epilogue(sum over k of x[b, m, k] * q[b, n, k] * s[b, group of k, n])
// x is f32, bf16 or f16; q is s8, s4 or s2; the scales s, one per column and group of k, are optional.
//
// The same bits on every target, for any number of threads and whatever the other rows and columns are: a row is
// written as integers of three digits, the products with q are summed exactly, and only few sums are rounded, in a
// fixed order.
//
// The arithmetic, for one row of x. k is cut into groups (DigitFormat::Group). Subnormal f32 and bf16 elements count as
// zero. If k <= kMaxDigitGroup, the first layer of a group holds all elements, and each further one what the layer
// before it has dropped, x - u v, until nothing is left or there are kMaxDigitLayers. So a short row is nearly always
// held exactly: in bf16 and f16 mostly by one layer, in f32 by two.
// If k is larger, the nonzero elements of each group are sorted into layers:
//   Let A be the largest magnitude of the elements that are left, and 2^e <= A < 2^(e+1). If at least half of them are
//   >= 2^(e - kDigitLayerBits), or if this is the last allowed layer (kMaxDigitLayers), they all form it. Otherwise
//   those that are form it, and the smaller ones, the majority, are left for the next. So outliers do not coarsen the
//   others.
// In a layer, with u the smallest power of two from 2^-149 on for which no |v| exceeds 8355711 (three digits of 127):
//   v = round_half_even(x / u);   |x - u v| <= u / 2 <= A / 8355711
//   v = d0 + 256 d1 + 65536 d2    with digits in [-128, 127]
//   S_i = sum of d_i * q          exact, |S_i| <= 2^21
//   t = R(65536 S2 + R(S0 + 256 S1))
//   p = R(p + R(t * u))
// where R rounds to f32, and p starts at +0 and takes the groups in ascending order, and the layers of a group from the
// large to the small. Without scales p is the sum. With scales each scale group has a p of its own, and
//   sum = F(sum + F(F(p) * s))
// in ascending order from +0 on, where F rounds to f32 and makes a subnormal number a zero with its sign: the sum of
// the products of tiles that are dequantized one by one. All of this is followed by Epilogue (gemm.h).
//
// x may also be s8 with a scale per row and scale group, DigitArgs::lhs_scales, where no scale group is cut. A group of
// a row is then one layer, with its elements for d0, zeros for d1 and d2, and the scale for u, whatever number it is:
//   sum = F(sum + F(F(R(S0) * u) * s))
//
// If a row has infinite or NaN elements, p is the sum over only these of x * q in f32, so it is infinite or NaN where,
// and with the sign with which, a loop of f32 would be. Other rows, and the other scale groups, are not affected.
//
// The error, with G groups, T_g the terms of group g, and eps = 2^-24, if nothing over- or underflows:
//   |sum - exact| <= sum over g of |s_g| (sum over layers of 1.2e-7 A_layer * (sum over its k of |q_k|))
//                    + (G L + 5) eps * sum over g of (sum over layers of |t u s|)
// The first term is what the digits drop, the second what is rounded later; a loop of f32 has K eps sum |x q s|. At
// least half of the elements of a layer, unless it is the last allowed one, are larger than A / 128, so the first term
// is small beside sum |x q s| unless q vanishes at just these. Of a short row (k <= kMaxDigitGroup) the first term has
// 1.8e-21 A instead, with A the largest element of the group: the error is that of a loop of f32.

#include <algorithm>
#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// The largest number of elements of a group, and of a group without scales.
inline constexpr int64_t kMaxDigitGroup = 128;
inline constexpr int64_t kMaxDigitLayers = 3;
// The largest element of a layer is less than 2^(kDigitLayerBits + 1) times those that decide about it.
inline constexpr int kDigitLayerBits = 6;

// The layout of packed weights [n, k]: panels of 64 columns; in a panel, groups of k; in a group first the weights,
// then, if there are scales, 64 of them in f32. Weights are unsigned: q + 2^(bits - 1). With 8 bits, for each four k
// the four bytes of column after column; with 4 (2) bits, each byte holds those of 2 (4) such blocks of four k, the
// first in its lowest bits. Columns beyond n and k beyond a group are padding.
struct DigitFormat {
  static constexpr int64_t kPanelColumns = 64;

  int bits = 8;  // 8, 4 or 2
  int64_t n = 0, k = 0;
  int64_t scale_group = 0;  // consecutive k that share a scale; 0: there are no scales

  bool has_scales() const { return scale_group != 0; }
  // Whether nothing of x is dropped that a loop of f32 would keep: see above.
  bool is_short() const { return k <= kMaxDigitGroup; }
  // Scale groups of more than kMaxDigitGroup elements are cut.
  struct Group {
    int64_t begin, size, scale;  // elements [begin, begin + size) of k; the index of their scale
  };
  int64_t NumGroups() const { return NumScaleGroups() * GroupsPerScale(); }
  int64_t NumScaleGroups() const { return has_scales() ? CeilDiv(k, scale_group) : 1; }
  Group GroupAt(int64_t i) const {
    const int64_t scale = i / GroupsPerScale(), from = has_scales() ? scale * scale_group : 0;
    const int64_t to = has_scales() ? std::min(k, from + scale_group) : k;
    const int64_t begin = std::min(to, from + i % GroupsPerScale() * kMaxDigitGroup);
    return {begin, std::min(to - begin, kMaxDigitGroup), scale};
  }
  // Elements of k that a group occupies: the same for all.
  int64_t GroupPitch() const {
    const int64_t size = std::min(has_scales() ? std::min(scale_group, k) : k, kMaxDigitGroup);
    const int64_t unit = size > 32 ? 64 : 16;
    return CeilDiv(size, unit) * unit;
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

// The scales of a format that has them: of scale group i and column j of matrix b at
// data[b * batch_stride + i * group_stride + j * column_stride]. Of integers x, j is a row.
struct DigitScales {
  const float* data = nullptr;
  int64_t batch_stride = 0, group_stride = 0, column_stride = 1;
};

// Packs weights: s8, or, for formats of fewer bits, s8, s4 or s2 of which each fits. `panels` has format.PackedBytes()
// bytes per matrix, aligned to kPanelAlignment. The same bytes on every target.
void PackDigitWeights(const DigitFormat& format, const Operand& weights, const DigitScales& scales, void* panels,
                      Executor* executor);

struct DigitArgs {
  Operand lhs = {};             // x: batch, rows and k
  DigitScales lhs_scales = {};  // of integers x
  DigitFormat format = {};
  const void* rhs = nullptr;
  int64_t rhs_batch_bytes = 0;  // 0 if all matrices of a batch share the weights

  // As in GemmArgs: f32, bf16 or f16, any strides.
  void* out = nullptr;
  DType out_dtype = DType::kF32;
  AxisGroup out_batch = {}, out_rows = {}, out_cols = {};
  Epilogue epilogue = {};

  // DigitScratchBytes(...) bytes, aligned to kPanelAlignment.
  void* scratch = nullptr;
};

// For `batch` matrices of so many rows, of floats or of s8.
int64_t DigitScratchBytes(Target target, const DigitFormat& format, int64_t batch, int64_t rows, bool integers = false);
void MultiplyDigits(Target target, const DigitArgs& args, Executor* executor);

// Whether integers times integers, with this scale_group, are faster here than as products of gemm.h that are added up.
bool PrefersDigitsOfIntegers(Target target, int64_t scale_group);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_DIGITS_DIGITS_H_
