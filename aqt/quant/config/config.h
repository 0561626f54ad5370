#ifndef AQT_QUANT_CONFIG_CONFIG_H_
#define AQT_QUANT_CONFIG_CONFIG_H_

// What to quantize and how: plain structs without behaviour. The names are AQT's; builders are in builders.h,
// calibrations in calibrations.h. The formulas for each field are in docs/bits.md and next to the code that applies it
// (numerics.h, calibration.h, quantizer.h, dot_general.h).
//
//   DotGeneralConfig { fwd, dlhs, drhs: DotGeneralRawConfig { lhs, rhs: TensorConfig {
//       Quantizer { Numerics, Calibration } } } }
//
// The numbers in a configuration are doubles, as in Python; they are rounded to f32 and then to the dtype of the tensor
// before use. Equality is field by field.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/calibrations.h"
#include "aqt/quant/config/tiling.h"

namespace aqt {

// ---- modes

// How a layer treats one operand.
enum class QuantMode { kTrain = 1, kCalibrate = 2, kConvert = 3, kServe = 4 };

// Where the scale of an operand is multiplied back.
enum class DequantMode {
  kOutput = 1,  // onto the product (needs kContractingAxis)
  // onto the quantized operand, before the product ("fake quantization"; the product is in floating point)
  kThisInput = 2,
  kOtherInput = 3,  // onto the other, floating point, operand, before the product (needs kRemainingAxis)
};

// The axes of an operand along which one scale is shared, unless Quantizer::calib_shared_axes says otherwise.
enum class CalibrationMode { kContractingAxis = 1, kRemainingAxis = 2 };

// ---- numerics: which values a quantized number can take

// Noise added before rounding. kJaxUniform: u - 0.5 with u uniform in [0, 1), 23 bits.
// kRandomCenteredUniform ("custom-1"): 16 bits, symmetric around zero, from -0.49999237 to 0.49999237 inclusive.
// kFast, not in AQT: 22 bits, symmetric around zero, from -0.49999988 to 0.49999988 inclusive; drawn with FastBits of
// core/rng.h, about ten times as fast as the others, which use Threefry-2x32. The numbers differ from AQT's and are the
// same in both PrngLayouts.
enum class NoiseKind { kJaxUniform = 1, kRandomCenteredUniform = 2, kFast = 3 };
// Noise for stochastic rounding, in steps of the grid.
struct Noise {
  NoiseKind kind = NoiseKind::kJaxUniform;
  Axes noise_sharing_axes = {};  // axes along which one draw is shared; negative ones count from the end
  bool operator==(const Noise&) const = default;
};

// The tensor stays unquantized: no scale, no calibration.
struct NoNumerics {
  bool operator==(const NoNumerics&) const = default;
};

// Integers -(2^(bits-1)-1) .. 2^(bits-1)-1, or half-integers when preserve_zero is false. See numerics.h for the
// formulas.
struct IntSymmetric {
  int bits = 8;  // 1 .. 22
  // false: the grid is ..., -0.5, 0.5, ...; an integer container then loses the halves.
  bool preserve_zero = true;
  bool preserve_max_val = false;  // true: the largest value is mapped to the largest integer exactly
  bool clip = true;
  bool clip_gradient = false;  // true: the gradient is zero where the scaled value was clipped
  bool round = true;
  std::optional<Noise> noise = std::nullopt;  // stochastic rounding; needs a key in the Context
  // The container: s2, s4, s8, s32, f32, bf16 or f16; null means the dtype of the scaled value. Values are converted to
  // it as by Cast (array.h): an integer container with fewer bits saturates, and fractions are truncated.
  std::optional<DType> dtype = DType::kS8;
  bool operator==(const IntSymmetric&) const = default;
};

// 8-bit floats by clamping and one rounding. (exponent_bits, mantissa_bits) is (4, 3) for e4m3fn and (5, 2) for e5m2.
// With dtype bf16 the values stay bf16, and only stochastic rounding reduces them to mantissa_bits.
struct Fp8 {
  DType dtype = DType::kE4M3FN;  // e4m3fn, e5m2, or bf16
  int exponent_bits = 4;
  int mantissa_bits = 3;
  bool stochastic_rounding = false;
  bool operator==(const Fp8&) const = default;
};

// A small float format simulated in bf16.
struct FpFormat {
  int nexp = 2;    // exponent bits
  int minexp = 0;  // only 0 is supported, as in AQT
  int nmant = 1;   // mantissa bits
  bool has_subnormals = true;
  bool has_two_nan = false;  // only false is supported
  bool has_naninf = false;   // only false is supported
  int radix = 2;             // 2 or 4
  bool operator==(const FpFormat&) const = default;
};
// Small floats simulated in bf16.
struct Fp {
  FpFormat format = {};
  bool stochastic_rounding = false;
  bool clip_gradient = false;  // true: the gradient is zero where the rounded value is NaN, as in AQT
  bool operator==(const Fp&) const = default;
};

// The values that a quantized number can take.
using Numerics = std::variant<NoNumerics, IntSymmetric, Fp8, Fp>;

// ---- one tensor

// The axes that share one scale. If neither field is set, the contraction (or the caller) decides.
struct SharedAxes {
  bool per_tensor = false;  // one scale for the whole tensor
  Axes axes = {};           // negative ones count from the end; empty means not set
  bool operator==(const SharedAxes&) const = default;
};

// How one tensor is quantized.
struct Quantizer {
  Numerics numerics = NoNumerics{};
  SharedAxes calib_shared_axes = {};
  bool scale_stop_grad = true;                      // no gradient through the scale; always true in DotGeneralConfig
  std::optional<DType> scale_dtype = std::nullopt;  // f32, bf16 or f16; null = the dtype of the tensor
  std::optional<Calibration> calibration = std::nullopt;  // required unless numerics is NoNumerics
  bool operator==(const Quantizer&) const = default;
};

// ---- one contraction, and a contraction with its two gradients

// How one operand of a contraction is quantized, and where its scale is applied.
struct TensorConfig {
  Quantizer quantizer = {};
  // rhs of dlhs and drhs only: use the quantized value of the forward pass instead of the float operand.
  bool use_fwd_quant = false;
  DequantMode dequant_mode = DequantMode::kOutput;
  CalibrationMode calibration_mode = CalibrationMode::kContractingAxis;
  bool operator==(const TensorConfig&) const = default;
};

// Backward contractions only: splits a contracting axis and sums the dequantized parts.
struct LocalAqt {
  std::optional<int64_t> contraction_axis_shard_count = std::nullopt;
  std::optional<int64_t> contraction_axis_shard_size = std::nullopt;
  bool tile_largest_shape = false;
  bool operator==(const LocalAqt&) const = default;
};

// Rotates the contracting axes of both operands before they are calibrated and quantized, by the Walsh-Hadamard
// transform of blocks of `block` elements (aqt/kernels/quantize/hadamard.h). The contracting axes count as one,
// row-major in the order of the contraction; with a tiling or LocalAqt those of a tile. If their extent is not a
// multiple of the block, the rest is rotated in smaller powers of two. The product stays the same but for rounding;
// outliers in a few channels no longer determine the scale of a row.
//
// A rotated operand is rounded to its dtype. An operand that is not quantized is rotated, too. Gradients: see
// DotGeneral.
struct Hadamard {
  int64_t block = 64;  // a power of two from 2 to 4096
  bool operator==(const Hadamard&) const = default;
};

// One contraction.
struct DotGeneralRawConfig {
  TensorConfig lhs = {}, rhs = {};
  // Dtype of the product before scaling. s32 needs two integer operands (so no kThisInput); null = the larger dtype of
  // the operands of the product (quant/contraction/engine/contract.h).
  std::optional<DType> dg_accumulator_dtype = std::nullopt;
  std::optional<LocalAqt> local_aqt = std::nullopt;
  // SmoothQuant-like exponents; null = off.
  std::optional<double> lhs_mid_alpha = std::nullopt, rhs_mid_alpha = std::nullopt;
  // Not with mid alphas, in convolutions, or with groups of rows; needs a quantized operand.
  std::optional<Hadamard> hadamard = std::nullopt;
  bool allow_dummy_gradient_into_qtensor = false;
  bool operator==(const DotGeneralRawConfig&) const = default;
};

// A contraction and its two gradients. fwd: lhs x rhs -> out. dlhs: g x rhs -> gradient of lhs. drhs: g x lhs ->
// gradient of rhs. In both backward contractions the incoming gradient g is "lhs" and the saved operand is "rhs".
//
// Rotations (DotGeneralRawConfig::hadamard): each contraction rotates the axes that it sums over itself. The saved
// operands are the float operands, not rotated by fwd: a rotation is orthogonal, so g x rhs is already the gradient of
// lhs. Where a gradient reads the quantized operand of a rotated forward pass (use_fwd_quant), its result is the
// gradient of the rotated operand, and is rotated back. With clip_gradient, the gradient of the rotated operand is
// masked, then rotated back.
//
// With a tiling, each tile of a contracting axis is a contraction with its own scales: the operands are viewed in a
// shape whose batch axes include the tiles, fwd, dlhs and drhs work on those shapes (their calib_shared_axes and
// noise_sharing_axes are axes of them), and dequantized results are summed over the tiles in f32. See dot_general.h.
struct DotGeneralConfig {
  DotGeneralRawConfig fwd = {}, dlhs = {}, drhs = {};
  std::optional<DotTiling> tiling = std::nullopt;
  bool operator==(const DotGeneralConfig&) const = default;
};

// ---- per call

// The random key and the modes of one call.
struct Context {
  std::optional<Key> key = std::nullopt;  // needed when any numerics adds noise
  // The mode of calibrations with state: for lhs of a contraction (in gradients: for the incoming gradient), and for
  // rhs unless rhs_quant_mode is set.
  QuantMode quant_mode = QuantMode::kTrain;
  std::optional<QuantMode> rhs_quant_mode = std::nullopt;
  bool operator==(const Context&) const = default;
};

// ---- text: the identifiers of the enum values in textproto

absl::string_view ToString(QuantMode mode);        // "QUANT_MODE_TRAIN"
absl::string_view ToString(DequantMode mode);      // "DEQUANT_MODE_THIS_INPUT"
absl::string_view ToString(CalibrationMode mode);  // "CALIBRATION_MODE_CONTRACTING_AXIS"
absl::string_view ToString(NoiseKind kind);        // "NOISE_KIND_JAX_UNIFORM"
std::ostream& operator<<(std::ostream& os, QuantMode mode);
std::ostream& operator<<(std::ostream& os, DequantMode mode);
std::ostream& operator<<(std::ostream& os, CalibrationMode mode);
std::ostream& operator<<(std::ostream& os, NoiseKind kind);

// One word for messages and for the text of programs, equal only for equal numerics: "float",
// "int8:s8+preserve_max_val+jax_uniform", "fp8_e4m3:e4m3fn".
std::string Describe(const Numerics& numerics);
std::string Describe(const Noise& noise);  // "jax_uniform"; with sharing axes "jax_uniform[0]"

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_CONFIG_H_
