#ifndef AQT_QUANT_CONFIG_RUNTIME_H_
#define AQT_QUANT_CONFIG_RUNTIME_H_

// How a call runs, as opposed to what it computes (config.h): threads, arithmetic rules, an observer, a user-supplied
// product.

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/executor.h"
#include "aqt/kernels/target.h"

namespace aqt {

// Both rules treat subnormal f32 and bf16 numbers (but not those of f16) as zero in arithmetic, also as operands of a
// product. They differ only in division by a constant and in the gradient of clipped values:
enum class Arithmetic {
  // bound / quant_bound with more than one bound is bound * (1 / quant_bound), as XLA on CPU computes it; some f32
  // scales then differ from the quotient in the last bit. So the bits of a single row, or of a per-tensor scale, may
  // differ from those of the same row among others. log2 multiplies by 1 / ln 2. With clip_gradient the gradient of a
  // clipped value is 0 in f32 and f16; in bf16 it is multiplied by 0.
  kXlaCompatible,
  // A division is a division. With clip_gradient the gradient is multiplied by 0 where the value was clipped: an
  // infinite or NaN gradient gives NaN.
  kIeee,
};
absl::string_view ToString(Arithmetic arithmetic);  // "ARITHMETIC_XLA_COMPATIBLE", "ARITHMETIC_IEEE"

// Deliberate differences from the original systems; all false by default, all true in Original().
struct Compat {
  // Mid scales: quantize the original operands with scales calibrated on the rescaled ones. By default the rescaled
  // operands are quantized, so that the mid scales cancel.
  bool mid_scales_on_original_operands = false;
  // A calibration with state that has seen no batch is read as it is: MeanOfAbsMax then gives NaN scales,
  // DelayedScaling scales of 0 (and products of 0). By default that is an error, unless the same call updates the
  // state.
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

  static Compat Original();
  bool operator==(const Compat&) const = default;
};

// The fields of Compat by name, in order.
struct CompatField {
  absl::string_view name;
  bool Compat::*member;
};
absl::Span<const CompatField> CompatFields();

// Sees every intermediate of a quantized contraction. While an observer is set, nothing is fused; bits do not change.
class Observer {
 public:
  virtual ~Observer() = default;
  // `name` is PASS.SIDE.WHAT or PASS.WHAT; PASS is fwd, dlhs or drhs, SIDE is lhs or rhs (in the backward passes lhs is
  // the incoming gradient):
  //   fwd.lhs.scale, fwd.lhs.bias, fwd.lhs.key (u32[2]), fwd.lhs.noise, fwd.lhs.qvalue   only if there is one
  //   fwd.dg_lhs, fwd.dg_rhs, fwd.accum                            what the contraction received and returned
  // `name` is valid for the life of the program, `value` only during the call.
  virtual void OnTensor(absl::string_view name, const ArrayRef& value) = 0;
};

// A plain contraction by the user instead of the built-in one: the product that a quantized contraction quantizes for.
class PlainProduct {
 public:
  virtual ~PlainProduct() = default;
  // Writes lhs x rhs to all of `out`, dense, axes in the order batch, remaining of lhs, remaining of rhs. `pass` is
  // fwd, dlhs or drhs. The operands are what the observer's PASS.dg_lhs and PASS.dg_rhs are: qvalues (s8, e4m3fn, ...)
  // where a side is quantized and not dequantized before the product, floats elsewhere; any strides. out.dtype is the
  // accumulator dtype of the configuration. If that is unset: of a float and an integer the float, of two floats the
  // one with the larger range, then the larger precision (bf16 of bf16 and f16, e5m2 of e5m2 and e4m3fn), of two
  // integers the wider one; but s4 with s4 is passed and returned as s8. The built-in product rounds both operands to
  // out.dtype first if they differ, and sums in f32. The arrays are valid during the call.
  virtual void Contract(absl::string_view pass, const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims,
                        const MutableArrayRef& out) = 0;
};

struct Runtime {
  Executor* executor = nullptr;  // null = only the calling thread
  Arithmetic arithmetic = Arithmetic::kXlaCompatible;
  Compat compat = {};
  Observer* observer = nullptr;
  PlainProduct* product = nullptr;  // null: the built-in kernels. Nothing is fused with a user's product.
  // The instruction set that kernels use; null = kernels::BestTarget(), which AQT_MAX_TARGET caps. Must be supported.
  std::optional<kernels::Target> target = std::nullopt;
};

// InvalidArgument if this machine cannot run the target.
absl::Status Validate(const Runtime& runtime);

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_RUNTIME_H_
