#ifndef AQT_KERNELS_DIGITS_INTERNAL_H_
#define AQT_KERNELS_DIGITS_INTERNAL_H_

// Declarations shared by the digits files.

#include <cstdint>

#include "aqt/core/machine/target.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/digits/digits.h"
#include "aqt/kernels/gemm/driver.h"

namespace aqt::kernels::internal {

inline constexpr int64_t kDigits = 3;
inline constexpr int64_t kPanelColumns = DigitFormat::kPanelColumns;
// Sums are kept as two halves of a panel because FinishTile (kernels/gemm/driver.h) takes 32 columns.
inline constexpr int64_t kHalfColumns = 32;

// The memory layout of the digits of a group: tiles of `tile_rows` layers (each belongs to a row of x), in one of these
// layouts. A "word" is the same digit of four consecutive k, one byte each.
enum class DigitLayout : uint8_t {
  kWords,  // for each four k, row after row: 3 words
  // For each four k, row after row: the number d0 + 256 d1, wrapped to s16, of k 0 and 2, then of k 1 and 3, followed
  // by d2 in the same order. The number wraps where it is below -32768 (DigitLine::wrapped).
  kPairs,
  kTiles,  // for each 64 k, digit after digit, row after row: 64 bytes
  kBytes,  // for each four k, row after row: d0, 4 bytes. For integers, whose other digits are 0
};
inline constexpr int64_t kMaxIntegerTileRows = 4;  // of a kBytes tile, which has either one row or this many

// t is an integer. So with a unit of at least this size, a nonzero term R(t * u) is at least as large. Its product with
// a scale of at least this size is 0 or at least 2^-102, and therefore a multiple of 2^-125. Then neither the product
// nor its sum with a number that is not subnormal can be subnormal.
inline constexpr float kPlainMagnitude = 0x1p-51f;

// One layer: a row of x in one group.
struct DigitLine {
  int32_t row;             // within the block of rows
  float unit;              // u
  int32_t start[kDigits];  // -2^(bits - 1) * sum of the digits: compensates for the offset of the weights
  // With scales: whether this is the first or the last line of the row in a scale group.
  bool is_first, is_last;
  // Whether both hold and the unit is at least kPlainMagnitude.
  bool is_plain;
  // With kPairs: a bit for each k where d0 + 256 d1 wraps.
  uint64_t wrapped[kMaxDigitGroup / 64];
};

// F(sum + F(F(part) * scale)) of digits.h.
inline float AddScaled(float sum, float part, float scale) {
  return FlushSubnormal(sum + FlushSubnormal(FlushSubnormal(part) * scale));
}

// One group of a panel times the lines of a block of rows.
struct DigitGroupArgs {
  const uint8_t* weights;  // one group of a panel
  const float* scales;     // kPanelColumns scales, or null
  int bits;
  int64_t pitch;  // k of the group including padding
  const DigitLine* lines;
  int64_t num_lines;
  const char* digits;
  // The sums of all lines, in order, at [half * half_stride + row * kHalfColumns + column]. Without scales, terms
  // accumulate in `sums`. With scales, they accumulate in `parts` from the first line to the last, and then in `sums`
  // (digits.h).
  float* sums;
  float* parts;
  int64_t half_stride;
  int64_t fetch;  // if not 0, how many bytes ahead of the current read the weights may be prefetched
};

// Distance between consecutive groups of a panel.
inline int64_t GroupBytes(const DigitGroupArgs& args) {
  return kPanelColumns * (args.pitch * args.bits / 8 + (args.scales == nullptr ? 0 : int64_t{sizeof(float)}));
}

// A single row with one line per group, which with scales is both first and last. Covers all groups of one panel, or of
// DigitKernel::row_panels panels.
struct DigitRowArgs {
  DigitGroupArgs first;  // group of the first panel; the others follow (GroupBytes). There are no `parts`
  int64_t groups, panels;
  int64_t line_bytes;  // distance between the lines of consecutive groups, and between their digits
};

inline constexpr int64_t kMaxRowPanels = 2;

// A kernel for the products with the digits of a group.
struct DigitKernel {
  const char* name;
  DigitLayout layout;
  int64_t tile_rows;
  void (*group)(const DigitGroupArgs& args);
  void (*row)(const DigitRowArgs& args) = nullptr;  // null if the kernel has none
  int64_t row_panels = 1;                           // panels that `row` can process side by side, at most kMaxRowPanels

  int64_t TileBytes(int64_t pitch) const {
    const int64_t bytes_per_k = layout == DigitLayout::kBytes ? 1 : layout == DigitLayout::kPairs ? 4 : 3;
    return tile_rows * bytes_per_k * pitch;
  }
};

// The kernel for blocks of this many rows, for floats or integers.
const DigitKernel& DigitKernelFor(Target target, const DigitFormat& format, int64_t rows, bool integers);

// Null where the build lacks the kernel.
const DigitKernel* DigitsVnni(int bits, int64_t rows);  // for blocks of this many rows
const DigitKernel* DigitsVnniOfIntegers(int64_t rows);
const DigitKernel* DigitsAmx();  // for groups whose pitch is a multiple of 64
const DigitKernel& DigitsEmulated();
const DigitKernel& DigitsEmulatedOfIntegers();

// Expands weights of fewer bits to bytes, 64 columns by `pitch` k.
void DecodeDigitWeights(Target target, const uint8_t* packed, int bits, int64_t pitch, uint8_t* bytes);

// Loads `count` elements of x converted to f32, followed by zeros up to `pitch`, a multiple of 16.
void LoadDigitSource(Target target, const Operand& x, int64_t b, int64_t row, int64_t begin, int64_t count,
                     int64_t pitch, float* values);

// The layers of a group as 32-bit numbers, whose bytes 0 to 2 are the digits.
struct DigitLayers {
  int64_t count = 0;  // 0 if all elements are zero, or if some are not finite
  bool is_finite = true;
  float unit[kMaxDigitLayers];
  int32_t digit_sum[kMaxDigitLayers][kDigits];
  alignas(64) uint32_t digits[kMaxDigitLayers][kMaxDigitGroup];
};
// Splits the elements that LoadDigitSource would load. `is_short`: DigitFormat::is_short.
void SplitDigits(Target target, const Operand& x, int64_t b, int64_t row, int64_t begin, int64_t count, int64_t pitch,
                 bool is_short, DigitLayers& layers);

// Stores the digits of a layer as line `line` of the group, and sets own.wrapped if the layout uses it.
void PlaceDigits(Target target, const DigitKernel& kernel, const uint32_t* digits, int64_t pitch, int64_t line,
                 char* group, DigitLine& own);

// Stores rows [row, row + rows) of s8, at most tile_rows, as a kBytes tile, and the sum of each row. Missing rows are
// zeros.
void PlaceIntegers(Target target, const Operand& x, int64_t b, int64_t row, int64_t rows, int64_t begin, int64_t count,
                   int64_t pitch, int64_t tile_rows, char* tile, int32_t* sums);

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_DIGITS_INTERNAL_H_
