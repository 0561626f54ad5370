#ifndef AQT_QUANT_WEIGHTS_COMPRESSED_TENSORS_H_
#define AQT_QUANT_WEIGHTS_COMPRESSED_TENSORS_H_

// Weight quantization by the rules of the compressed-tensors format, bit for bit.
//
// With T the dtype of the weight w [o, i] (f32, bf16 or f16), every operation rounded to T, and units u (the tensor, a
// row, a group of a row, or a block of rows and columns), integers of b = num_bits, qmin = -2^(b-1) and
// qmax = 2^(b-1) - 1 have
//   lo = min(0, min of u), hi = max(0, max of u)
//   symmetric:   scale = max(-lo, hi) / ((2^b - 1) / 2)
//   asymmetric:  scale = (hi - lo) / (2^b - 1),  zero_point = round(clamp(qmin - lo / scale, qmin, qmax)), NaN gives 0
//   a scale of 0 then becomes the epsilon of T (2^-23, 2^-7, 2^-10)
//   q = round(clamp(w / scale + zero_point, qmin, qmax)), NaN gives 0
//   dequantized = (q - zero_point) * scale
// round() rounds to nearest, ties to even. Clamping comes first, and qmin is reached; AQT's rule (aqt_weight.h), which
// multiplies by an inverse and stays within +-qmax, gives different integers. A NaN makes the scale of its unit NaN and
// its integers 0. An infinity makes the scale infinite; its own integer is 0, and a finite w gets the zero point.
//
// 8-bit floats (e4m3fn, symmetric only) have
//   scale = max(-lo, hi) / 448, and the epsilon of T instead of 0
//   q = e4m3fn(clamp(w / scale + 0, -448, 448)), so that -0 gives +0, and NaN gives NaN;  dequantized = q * scale
// A small negative w gives -0, unlike with integers.
//
// Floats of 4, 6 and 8 bits in groups with scales of 8 bits (MX, NVFP4): see microscaled.h.

#include <array>
#include <cstdint>
#include <optional>
#include <ostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "aqt/core/array.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"

namespace aqt::compressed_tensors {

// Which elements share a scale. ToString gives the names of the format: "tensor", "channel", "group", "block".
enum class Strategy : uint8_t { kTensor, kChannel, kGroup, kBlock };
absl::string_view ToString(Strategy strategy);
std::ostream& operator<<(std::ostream& os, Strategy strategy);

// "int", "float".
enum class ValueType : uint8_t { kInt, kFloat };
absl::string_view ToString(ValueType type);
std::ostream& operator<<(std::ostream& os, ValueType type);

// How scales are stored.
enum class ScaleType : uint8_t {
  kWeight,  // in the dtype of the weight
  kE8M0,    // MX: as powers of two, u8 holding the exponent + 127. Floats of 4, 6 or 8 bits in groups of 32
  kE4M3,    // NVFP4: as e4m3fn, beside a global scale of the weight that divides them. 4-bit floats in groups of 16
};

// How a weight is quantized.
struct WeightScheme {
  ValueType type = ValueType::kInt;
  int num_bits = 8;  // kInt: 2 to 8; kFloat: 8, or with the scale types of microscaled.h 4 (e2m1) and 6 (e2m3)
  Strategy strategy = Strategy::kChannel;
  int64_t group_size = 0;  // kGroup: columns per group, a divisor of i; otherwise 0
  // kBlock: rows and columns per block, at least 1; otherwise {0, 0}. Blocks at the lower and right edge may be
  // smaller.
  std::array<int64_t, 2> block{0, 0};
  bool symmetric = true;
  ScaleType scale_type = ScaleType::kWeight;  // others: only with kGroup
  bool operator==(const WeightScheme&) const = default;
};

// InvalidArgument for a field out of its range. Unimplemented: kFloat that is asymmetric, or that has other bits or
// groups than its scale type.
absl::Status Validate(const WeightScheme& scheme);

// The parts of a matrix [o, i] that each have one scale: `rows` x `cols` elements, fewer at the lower and right edge.
struct Units {
  int64_t rows = 1;
  int64_t cols = 1;
  int64_t per_row = 1;  // units side by side
  Shape scale_shape;    // [1], [o, 1], [o, i / group_size], or [ceil(o / block[0]), ceil(i / block[1])]

  // The row-major index of the scale of element (r, c).
  int64_t Of(int64_t r, int64_t c) const { return r / rows * per_row + c / cols; }
};
// `scheme` must be valid. InvalidArgument if a group size does not divide i.
absl::StatusOr<Units> UnitsOf(const WeightScheme& scheme, int64_t o, int64_t i);

// The range of q: {-128, 127, 1} for 8 bits, {-448, 448, 32} for 8-bit floats, {-6, 6, 2} for 4-bit floats.
struct ValueRange {
  float min;
  float max;
  float last_step;  // from max to the next smaller value
};
ValueRange RangeOf(const WeightScheme& scheme);

// A quantized weight [o, i].
struct QuantizedWeight {
  // [o, i]; s8, values of num_bits bits, or e4m3fn, which also holds floats of 4 and 6 bits. Words or bytes if
  // Options::packed
  Array q;
  Array scale;                      // T, or u8 or e4m3fn as ScaleType says; [Units::scale_shape]
  std::optional<Array> zero_point;  // s8, the shape of scale; null when symmetric
  float global_scale = 1;           // kE4M3: divides the scales
};

// Options of QuantizeWeight and DequantizeWeight.
struct Options {
  kernels::Target target = kernels::BestTarget();
  bool reference = false;        // plain loops instead of the kernels: slow, for tests
  Executor* executor = nullptr;  // null: the calling thread. The result does not depend on it.
  // QuantizeWeight only: q is packed as by PackInts or PackSmallFloats. Integers, and floats of 4 and 6 bits.
  bool packed = false;
  float global_scale = 1;  // QuantizeWeight with kE4M3 only: see GlobalScaleOf in microscaled.h; positive and finite
};

// w: [o, i], f32, bf16 or f16, any strides. InvalidArgument for another rank or dtype, a group size that does not
// divide i, a tensor without elements, or packed 8-bit floats; otherwise the errors of Validate.
absl::StatusOr<QuantizedWeight> QuantizeWeight(const ArrayRef& w, const WeightScheme& scheme,
                                               const Options& options = {});

// The weight [o, i] in the dtype of the scale, or in f32 unless that is kWeight. `weight` may come from a file:
// InvalidArgument when its shapes or dtypes do not fit `scheme`.
absl::StatusOr<Array> DequantizeWeight(const QuantizedWeight& weight, const WeightScheme& scheme,
                                       const Options& options = {});

// ---- bit packing of the pack-quantized layout
//
// Value q of element k of a row is stored as q + 2^(num_bits-1) in bits [k * num_bits, (k + 1) * num_bits) of the row's
// bit stream; bit n of the stream is bit n % 32 of word n / 32. Rows start at a new word, unused bits are 0.

// s8 [o, i] -> s32 [o, ceil(i * num_bits / 32)]. InvalidArgument when a value does not fit num_bits.
absl::StatusOr<Array> PackInts(const ArrayRef& q, int num_bits);
// s32 [o, ceil(i * num_bits / 32)] -> s8 [o, i].
absl::StatusOr<Array> UnpackInts(const ArrayRef& words, int num_bits, int64_t i);

// Zero points are packed along the rows: s8 [o, g] -> s32 [ceil(o * num_bits / 32), g], and back.
absl::StatusOr<Array> PackZeroPoints(const ArrayRef& zero_point, int num_bits);
absl::StatusOr<Array> UnpackZeroPoints(const ArrayRef& words, int num_bits, int64_t o);

}  // namespace aqt::compressed_tensors

#endif  // AQT_QUANT_WEIGHTS_COMPRESSED_TENSORS_H_
