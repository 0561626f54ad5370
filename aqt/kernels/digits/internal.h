#ifndef AQT_KERNELS_DIGITS_INTERNAL_H_
#define AQT_KERNELS_DIGITS_INTERNAL_H_

// Shared by the files of digits.

#include <cstdint>

#include "aqt/core/machine/target.h"
#include "aqt/kernels/digits/digits.h"
#include "aqt/kernels/gemm/driver.h"

namespace aqt::kernels::internal {

inline constexpr int64_t kDigits = 3;
inline constexpr int64_t kPanelColumns = DigitFormat::kPanelColumns;
// Sums are kept as two halves of a panel, because FinishTile (gemm_driver.h) takes 32 columns.
inline constexpr int64_t kHalfColumns = 32;

// How the digits of a group lie in memory: tiles of `tile_rows` layers (each belongs to a row of x), in one of these
// layouts. "Word" is the same digit of four consecutive k, a byte each.
enum class DigitLayout : uint8_t {
  kWords,  // for each four k, row after row: 3 words
  // For each four k, row after row: the number d0 + 256 d1, wrapped to s16, of k 0 and 2, then of k 1 and 3, and d2 in
  // the same order. It wraps where it is below -32768 (DigitLine::wrapped).
  kPairs,
  kTiles,  // for each 64 k, digit after digit, row after row: 64 bytes
  kBytes,  // for each four k, row after row: d0, 4 bytes. Of integers, whose other digits are 0
};
inline constexpr int64_t kMaxIntegerTileRows = 4;  // of a tile of kBytes, which has one or as many

// A term R(t * u) of such a unit and larger, if it is not 0, is at least as large, for t is an integer. With a scale of
// the same kind its product is 0 or at least 2^-102, thus a multiple of 2^-125. Then neither the product nor its sum
// with a number that is not subnormal is subnormal.
inline constexpr float kPlainMagnitude = 0x1p-51f;

// One layer: a row of x in one group.
struct DigitLine {
  int32_t row;             // of the block of rows
  float unit;              // u
  int32_t start[kDigits];  // -2^(bits - 1) * sum of the digits: makes up for the offset of the weights
  // With scales: whether this is the first and the last line of the row in a scale group.
  bool is_first, is_last;
  // Whether it is both, and its unit is at least kPlainMagnitude.
  bool is_plain;
  // With kPairs: a bit for each k whose d0 + 256 d1 wraps.
  uint64_t wrapped[kMaxDigitGroup / 64];
};

// F(sum + F(F(part) * scale)) of digits.h.
inline float AddScaled(float sum, float part, float scale) {
  return FlushedIf(true, sum + FlushedIf(true, FlushedIf(true, part) * scale));
}

struct DigitGroupArgs {
  const uint8_t* weights;  // a group of a panel
  const float* scales;     // kPanelColumns of them, or null
  int bits;
  int64_t pitch;  // of the group: k with padding
  const DigitLine* lines;
  int64_t num_lines;
  const char* digits;
  // Of all lines, in their order, at [half * half_stride + row * kHalfColumns + column]. Without scales they are added
  // to `sums`. With scales they are added in `parts`, from the first to the last, and then to `sums` (digits.h).
  float* sums;
  float* parts;
  int64_t half_stride;
  int64_t fetch;  // if not 0, so many bytes ahead of where the weights are read they may be fetched
};

// From a group of a panel to the next.
inline int64_t GroupBytes(const DigitGroupArgs& args) {
  return kPanelColumns * (args.pitch * args.bits / 8 + (args.scales == nullptr ? 0 : int64_t{sizeof(float)}));
}

// A row by itself with one line in each group, which with scales is the first and the last one: all groups of one
// panel, or of DigitKernel::row_panels.
struct DigitRowArgs {
  DigitGroupArgs first;  // group of the first panel; the others follow (GroupBytes). There are no `parts`
  int64_t groups, panels;
  int64_t line_bytes;  // from the line of a group to that of the next, and likewise the digits
};

inline constexpr int64_t kMaxRowPanels = 2;

struct DigitKernel {
  const char* name;
  DigitLayout layout;
  int64_t tile_rows;
  void (*group)(const DigitGroupArgs& args);
  void (*row)(const DigitRowArgs& args) = nullptr;  // null if the kernel has none
  int64_t row_panels = 1;                           // that a row may go over side by side, at most kMaxRowPanels

  int64_t TileBytes(int64_t pitch) const {
    const int64_t bytes_per_k = layout == DigitLayout::kBytes ? 1 : layout == DigitLayout::kPairs ? 4 : 3;
    return tile_rows * bytes_per_k * pitch;
  }
};

// The kernel for blocks of this many rows, of floats or of integers.
const DigitKernel& DigitKernelFor(Target target, const DigitFormat& format, int64_t rows, bool integers);

// Each is null where the build lacks it.
const DigitKernel* DigitsVnni(int bits, int64_t rows);  // for blocks of so many rows
const DigitKernel* DigitsVnniOfIntegers(int64_t rows);
const DigitKernel* DigitsAmx();  // for groups whose pitch is a multiple of 64
const DigitKernel& DigitsEmulated();
const DigitKernel& DigitsEmulatedOfIntegers();

// Weights of fewer bits as bytes, 64 columns by `pitch` k.
void DecodeDigitWeights(Target target, const uint8_t* packed, int bits, int64_t pitch, uint8_t* bytes);

// `count` elements of x, converted to f32, with zeros up to `pitch`, a multiple of 16.
void LoadDigitSource(Target target, const Operand& x, int64_t b, int64_t row, int64_t begin, int64_t count,
                     int64_t pitch, float* values);

// One layer of a group, as 32-bit numbers: bytes 0 to 2 are the digits.
struct DigitLayers {
  int64_t count = 0;  // 0 if all elements are zero, or if some are not finite
  bool is_finite = true;
  float unit[kMaxDigitLayers];
  int32_t digit_sum[kMaxDigitLayers][kDigits];
  alignas(64) uint32_t digits[kMaxDigitLayers][kMaxDigitGroup];
};
// Of the elements that LoadDigitSource would load. `is_short`: DigitFormat::is_short.
void SplitDigits(Target target, const Operand& x, int64_t b, int64_t row, int64_t begin, int64_t count, int64_t pitch,
                 bool is_short, DigitLayers& layers);

// Puts the digits of a layer at place `line` of the group, and sets own.wrapped if the layout has it.
void PlaceDigits(Target target, const DigitKernel& kernel, const uint32_t* digits, int64_t pitch, int64_t line,
                 char* group, DigitLine& own);

// Rows [row, row + rows) of s8 as a tile of kBytes, at most tile_rows of them, and the sum of each. Missing ones are
// zeros.
void PlaceIntegers(Target target, const Operand& x, int64_t b, int64_t row, int64_t rows, int64_t begin, int64_t count,
                   int64_t pitch, int64_t tile_rows, char* tile, int32_t* sums);

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_DIGITS_INTERNAL_H_
