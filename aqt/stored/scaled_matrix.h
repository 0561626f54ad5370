#ifndef AQT_STORED_SCALED_MATRIX_H_
#define AQT_STORED_SCALED_MATRIX_H_

// Private to this folder: weights stored row by row, as codes with scales and possibly zero points. Most formats are of
// this kind.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "aqt/core/shape.h"
#include "aqt/stored/stored_weight.h"

namespace aqt::stored {

// The codes of a row.
enum class CodeKind : uint8_t {
  kBytes,  // one F8_E4M3 or I8 per value
  kE2M1,   // two per byte, low nibble first
  kE2M3,   // four in three bytes
  kBits,   // integers of `bits` bits in I32 words, stored plus 2^(bits - 1)
};

struct ScaledMatrix {
  const io::TensorInfo* codes = nullptr;
  CodeKind kind = CodeKind::kBytes;
  int bits = 8;          // kBits; kBytes of I8: the range that values must be in
  int64_t per_word = 0;  // kBits: see stored_values::BitFields

  const io::TensorInfo* scales = nullptr;
  bool powers = false;  // scales of U8 are E8M0
  // The scale of element (r, c) of the matrix [rows, cols] is the one at row
  //   r / batch_rows * scale_rows_per_batch + r % batch_rows / unit_rows
  // and column c / unit_cols of the matrix of scales, which has scale_cols columns.
  int64_t batch_rows = 0;  // 0: all rows
  int64_t scale_rows_per_batch = 0;
  int64_t unit_rows = 1;
  int64_t unit_cols = 1;
  int64_t scale_cols = 1;

  // A scalar that all scales are combined with: divided by (compressed-tensors), or multiplied with (ModelOpt). May be
  // null.
  const io::TensorInfo* divisor = nullptr;
  const io::TensorInfo* factor = nullptr;

  // Zero points: like the scales, I8 or F8; or packed along the rows, as words [words, scale_cols]. May be null.
  const io::TensorInfo* zeros = nullptr;
  bool packed_zeros = false;

  // The scale's column of each column of the weight, instead of c / unit_cols; I32 [cols]. May be null.
  const io::TensorInfo* group_index = nullptr;
};

// How the product of a weight with its inputs is computed by a server.
struct Product {
  std::optional<InputArgs> input;               // null: with floats
  const io::TensorInfo* input_scale = nullptr;  // of static inputs
  std::string unknown;                          // why it is not known, as WhyNoCodes says it; empty if it is
};

// A weight of that name and shape. Without a product it has no WeightCodes.
std::unique_ptr<StoredWeight> MakeScaledMatrix(std::string name, Shape shape, ScaledMatrix matrix,
                                               std::optional<Product> product = std::nullopt);

}  // namespace aqt::stored

#endif  // AQT_STORED_SCALED_MATRIX_H_
