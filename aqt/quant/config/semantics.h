#ifndef AQT_QUANT_CONFIG_SEMANTICS_H_
#define AQT_QUANT_CONFIG_SEMANTICS_H_

// The rules by which a configuration (config.h) is computed. call_options.h says how a call runs.

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/rng.h"

namespace aqt {

// How divisions by a constant and gradients of clipped values are computed. Both rules treat subnormal f32 and bf16
// numbers (but not those of f16) as zero in arithmetic, also as operands of a product. They differ only as follows:
enum class Arithmetic {
  // bound / quant_bound with more than one bound is bound * (1 / quant_bound), as XLA on CPU computes it; some f32
  // scales then differ from the quotient in the last bit. So the bits of a single row, or of a per-tensor scale, may
  // differ from those of the same row in a batch. log2 multiplies by 1 / ln 2. With clip_gradient the gradient of a
  // clipped value is 0 in f32 and f16; in bf16 it is multiplied by 0.
  kXlaCompatible,
  // Division by a constant is a true division. With clip_gradient the gradient is multiplied by 0 where the value was
  // clipped: an infinite or NaN gradient gives NaN.
  kIeee,
};
absl::string_view ToString(Arithmetic arithmetic);  // "ARITHMETIC_XLA_COMPATIBLE", "ARITHMETIC_IEEE"

// How a contraction of a float lhs with an rhs of integers (weight-only quantization) sums its products in the forward
// pass. All other products of a float and an integer, including gradients and convolutions, use kFloat.
enum class WeightOnly {
  // On the integer units, in groups of k (aqt/kernels/digits/digits.h): the same bits on every machine and many times
  // faster for few rows. lhs is rounded to the digits first, so the bits are not the original's (docs/bits.md gives the
  // error).
  kDigits,
  // The integers are converted to floats and multiplied as floats, as in the original.
  kFloat,
};
absl::string_view ToString(WeightOnly weight_only);  // "WEIGHT_ONLY_DIGITS", "WEIGHT_ONLY_FLOAT"

// Deliberate differences from the original systems, all false by default. Those from AQT come first, and are true in
// Original(); then those from Qwix, true in Qwix().
struct Compat {
  // Mid scales: quantize the original operands with scales calibrated on the rescaled ones. By default the rescaled
  // operands are quantized, so that the mid scales cancel.
  bool mid_scales_on_original_operands = false;
  // A calibration with state that has seen no batch can be read: MeanOfAbsMax then gives NaN scales, DelayedScaling
  // scales of 0 (and products of 0). By default that is an error, unless the same call updates the state.
  bool read_unseen_calibration = false;
  // Einsum: when the operands of the product are exchanged, the mid alphas of fwd are not. By default they are, so that
  // lhs_mid_alpha belongs to the first operand of the equation.
  bool einsum_keeps_mid_alphas = false;
  // Convolution: the gradient of an operand with integer numerics is zero. By default it passes straight through.
  bool conv_integer_gradient_is_zero = false;
  // Convolution: an accumulator dtype has no effect; sums of floats are rounded to the dtype of the operands. By
  // default they are rounded to f32, bf16 or f16 if the configuration asks for it.
  bool conv_ignores_accumulator_dtype = false;
  // SnrSearch with po2_scale: candidates are rated with the scale before it becomes a power of two. By default they are
  // rated with the power of two that would be used.
  bool snr_rates_unrounded_scales = false;
  // SnrSearch: squares, their sums, the ratio and its logarithm are rounded to the dtype of the tensor, where they can
  // overflow or vanish. By default squares are summed and divided in f64.
  bool snr_rates_in_tensor_dtype = false;
  // Weight-only contractions use WeightOnly::kFloat. By default they use Semantics::weight_only.
  bool weight_only_in_float = false;
  // Einsum: a letter that only one operand has is summed in the dtype of the operand, rounded after each addition, in
  // the order of XLA on CPU (aqt/kernels/reduce/xla_sum.h). By default it is summed in f32 and rounded once.
  bool einsum_sums_in_dtype = false;

  // The rest is how Qwix quantizes (docs/coming-from-aqt-or-qwix.md). SnrSearch has none of it and is refused.

  // The scaled value is x / scale. With kXlaCompatible it is computed as XLA on CPU does: unless each element has its
  // own scale, it is x * (1 / scale), where only an f16 reciprocal is rounded before the product. By default the scaled
  // value is x * R(1 / scale), with R the rounding to the dtype of the scale.
  bool divide_by_scale = false;
  // A scale below the square root of the smallest normal number of its dtype (2^-63; f16: 2^-7) becomes 1. By default a
  // bound of 0 becomes 1 before it is divided, and small scales stay.
  bool small_scales_are_one = false;
  // IntSymmetric with `clip`: values are clipped to -2^(bits-1) .. 2^(bits-1)-1. By default the lowest integer is not
  // used, so that the range is symmetric.
  bool integers_reach_lowest = false;
  // IntSymmetric with clip_gradient: the gradient passes where |x| is at most the bound that the calibration found, and
  // is 0 elsewhere, in each dtype. By default it passes where the scaled value was not clipped (numerics.h). Only
  // contractions do this; QuantizeGradient has no bound.
  bool clip_gradient_at_bound = false;
  // IntSymmetric with noise: the scaled value plus noise stays in f32 until it is rounded to an integer. By default it
  // is first rounded to the dtype of the scaled value.
  bool noise_sum_stays_f32 = false;
  // AbsMean: the mean is over all elements; it is divided in f32. By default it is over those that are not 0.
  bool abs_mean_counts_zeros = false;
  // Fp8 of an f16 tensor: the bound is divided in f16. By default it is divided in f32.
  bool fp8_scales_in_tensor_dtype = false;

  static Compat Original();
  static Compat Qwix();
  // Whether one of the fields of Qwix is set.
  bool ChangesQuantization() const;
  bool operator==(const Compat&) const = default;
};

// A field of Compat with its name, and whether it is one of Qwix.
struct CompatField {
  absl::string_view name;
  bool Compat::*member;
  bool is_of_qwix = false;
};
// All fields of Compat, in order of declaration.
absl::Span<const CompatField> CompatFields();

// Everything that changes bits besides the configuration, the shapes and the key. Fixed when a plan is made.
struct Semantics {
  // With kIeee an example's bits never depend on its batch (see above).
  Arithmetic arithmetic = Arithmetic::kXlaCompatible;
  Compat compat = {};
  PrngLayout prng_layout = PrngLayout::kPartitionable;  // how keys are split and numbers are drawn
  WeightOnly weight_only = WeightOnly::kDigits;

  // weight_only, or kFloat with compat.weight_only_in_float.
  WeightOnly WeightOnlySums() const { return compat.weight_only_in_float ? WeightOnly::kFloat : weight_only; }
  bool operator==(const Semantics&) const = default;
};

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_SEMANTICS_H_
