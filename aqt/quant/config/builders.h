#ifndef AQT_QUANT_CONFIG_BUILDERS_H_
#define AQT_QUANT_CONFIG_BUILDERS_H_

// AQT's named configurations, and setters that each change one aspect of a configuration.

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/config.h"

namespace aqt {

// Tells a setter to leave a field unchanged.
struct Skip {};
inline constexpr Skip kSkip;
// A setter's argument: kSkip leaves the field unchanged, std::nullopt sets it to null, a value sets it.
template <class T>
class OrSkip {
 public:
  OrSkip(Skip) {}
  OrSkip(std::nullopt_t) : value_(std::optional<T>()) {}
  OrSkip(T value) : value_(std::optional<T>(std::move(value))) {}
  OrSkip(std::optional<T> value) : value_(std::move(value)) {}
  void ApplyTo(std::optional<T>& field) const {
    if (value_.has_value()) field = *value_;
  }

 private:
  std::optional<std::optional<T>> value_ = std::nullopt;
};

// The width of an operand: no bits (not quantized), a number of bits, or an 8-bit float.
//   Bits fwd = 8;   Bits none = std::nullopt;   Bits fp8 = Bits::E4M3();
class Bits {
 public:
  Bits() = default;
  Bits(std::nullopt_t) {}
  Bits(int bits) : bits_(bits) {}
  Bits(std::optional<int> bits) : bits_(bits) {}
  static Bits E4M3() { return Bits(DType::kE4M3FN); }
  static Bits E5M2() { return Bits(DType::kE5M2); }

  bool quantized() const { return bits_.has_value() || fp8_.has_value(); }
  std::optional<int> bits() const { return bits_; }
  std::optional<DType> fp8() const { return fp8_; }
  bool operator==(const Bits&) const = default;

 private:
  explicit Bits(DType fp8) : fp8_(fp8) {}
  std::optional<int> bits_ = std::nullopt;
  std::optional<DType> fp8_ = std::nullopt;
};

// NoNumerics without bits; Fp8 for 8-bit floats; else IntSymmetric with container s4 for 4 bits, s8 for other widths
// from 2 to 8, and null above. 1 bit means half-integers (preserve_zero false) and no container.
Numerics NumericsFromBits(Bits bits, bool preserve_max_val = false);

// NumericsFromBits with AbsMax calibration.
Quantizer QuantizerMake(Bits bits, bool preserve_max_val = false, bool scale_stop_grad = true,
                        std::optional<DType> scale_dtype = std::nullopt);

// One contraction with operands of these bits. The accumulator is s32 when both have 2 to 8 bits, f32 when both are
// 8-bit floats, null otherwise.
DotGeneralRawConfig DotGeneralRawMake(Bits lhs_bits, Bits rhs_bits, std::optional<LocalAqt> local_aqt = std::nullopt,
                                      bool allow_dummy_gradients = false);

// For ConvGeneralPlan with 1 to 3 spatial axes: DotGeneralRawMake with one lhs scale per example and one rhs scale per
// output channel, written out as calib_shared_axes.
DotGeneralRawConfig ConvGeneralDilatedMake(int spatial_dims, Bits lhs_bits, Bits rhs_bits);

// Options of DotGeneralMake.
struct DotGeneralMakeOptions {
  Bits bwd_bits = {};
  bool use_fwd_quant = true;  // where the forward operand is quantized
  std::optional<LocalAqt> dlhs_local_aqt = std::nullopt, drhs_local_aqt = std::nullopt;
  bool allow_dummy_gradients = false;  // allow_dummy_gradient_into_qtensor of all three
};
// A contraction and its gradients with operands of these bits. Rounds to nearest everywhere.
DotGeneralConfig DotGeneralMake(Bits lhs_bits, Bits rhs_bits, const DotGeneralMakeOptions& options = {});

// A configuration that quantizes nothing.
DotGeneralConfig DefaultUnquantizedConfig();

// Options of FullyQuantized.
struct FullyQuantizedOptions {
  Bits fwd_bits = 8;
  Bits bwd_bits = 8;
  bool use_fwd_quant = true;
  // Noise (jax.uniform) on both operands of both backward products.
  std::optional<bool> use_stochastic_rounding = true;
  // Noise on the incoming gradient (lhs) or on the saved operand (rhs), not on both. Set both flags, with
  // use_stochastic_rounding null, or neither.
  std::optional<bool> vjp_lhs_stochastic_rounding = std::nullopt, vjp_rhs_stochastic_rounding = std::nullopt;
  bool use_dummy_static_bound = false;  // constant bound 1 on all six operands
  std::optional<LocalAqt> dlhs_local_aqt = std::nullopt, drhs_local_aqt = std::nullopt;
};
// Quantizes all six operands. InvalidArgument for contradictory noise flags.
absl::StatusOr<DotGeneralConfig> FullyQuantized(const FullyQuantizedOptions& options);
// FullyQuantized with the default options.
DotGeneralConfig FullyQuantized();

// Options of ConfigV3.
struct ConfigV3Options {
  Bits fwd_bits = 8;
  Bits dlhs_bits = 8;
  Bits drhs_bits = std::nullopt;
  bool use_dummy_static_bound = false;  // constant bound 1 on all six operands
  NoiseKind rng_type = NoiseKind::kJaxUniform;
  std::optional<LocalAqt> dlhs_local_aqt = std::nullopt, drhs_local_aqt = std::nullopt;
  std::optional<DType> fwd_accumulator_dtype = DType::kS32;
  std::optional<DType> dlhs_accumulator_dtype = DType::kS32;
  std::optional<DType> drhs_accumulator_dtype = std::nullopt;
};
// Quantizes forward and gradient separately, with noise on the incoming gradient only. The accumulators are as given,
// regardless of the bits.
DotGeneralConfig ConfigV3(const ConfigV3Options& options = {});

// Options of ConfigV4.
struct ConfigV4Options {
  Bits fwd_bits = 8;
  Bits dlhs_bits = 8;
  Bits drhs_bits = std::nullopt;
  bool use_dummy_static_bound = false;  // constant bound 1 on all six operands
  NoiseKind rng_type = NoiseKind::kJaxUniform;
  std::optional<LocalAqt> dlhs_local_aqt = std::nullopt, drhs_local_aqt = std::nullopt;
  // kSkip: chosen from the bits (see SetNumerics).
  OrSkip<DType> fwd_accumulator_dtype = kSkip, dlhs_accumulator_dtype = kSkip, drhs_accumulator_dtype = kSkip;
  bool dlhs_use_fwd_quant = false, drhs_use_fwd_quant = false;
  // For both sides of each contraction. DotGeneralPlan::Make rejects fwd_mid_alpha_both together with use_fwd_quant.
  std::optional<double> fwd_mid_alpha_both = std::nullopt, dlhs_mid_alpha_both = std::nullopt;
  std::optional<double> drhs_mid_alpha_both = std::nullopt;
};
// ConfigV3 with accumulators that follow from the bits by default, and with use_fwd_quant and mid alphas as options.
DotGeneralConfig ConfigV4(const ConfigV4Options& options = {});

// 8-bit floats forward, nothing backward. InvalidArgument for other bits.
absl::StatusOr<DotGeneralConfig> ConfigFwdFp8(Bits fwd_bits);
DotGeneralConfig ConfigFwdFp8();

// ---- setters: each changes only the fields that it names

// Sets the DequantMode of each side of fwd; null leaves it unchanged.
void SetFwdDequantMode(DotGeneralConfig& config, std::optional<DequantMode> lhs, std::optional<DequantMode> rhs);
// Sets the CalibrationMode of each side of fwd; null leaves it unchanged.
void SetFwdCalibrationMode(DotGeneralConfig& config, std::optional<CalibrationMode> lhs,
                           std::optional<CalibrationMode> rhs);
// Sets the numerics of both sides, and the accumulator: s32 when both containers are s4 or s8, else f32 when either
// side is Fp8, else null.
void SetNumerics(DotGeneralRawConfig& raw, Numerics lhs, Numerics rhs);
// Sets the accumulator dtype of each contraction.
void SetAccumulatorDType(DotGeneralConfig& config, OrSkip<DType> fwd, OrSkip<DType> dlhs, OrSkip<DType> drhs);
// Gives fwd.rhs the container s2. The accumulator does not change: set it to f32, since s2 rules out s32, and null with
// s8 means sums of 8 bits that wrap around.
// InvalidArgument unless fwd.rhs is an IntSymmetric of 2 bits.
absl::Status SetFwdRhsDTypeInt2(DotGeneralConfig& config);
// Turns noise on or off in dlhs and drhs only, on their lhs (the gradient) and rhs. Fp8 gets its own flag; NoNumerics
// is left unchanged.
void SetStochasticRounding(DotGeneralConfig& config, bool vjp_lhs, bool vjp_rhs,
                           NoiseKind kind = NoiseKind::kJaxUniform, const Axes& noise_sharing_axes = {});
// Sets Constant calibration on all six operands.
void SetConstantCalibration(DotGeneralConfig& config, double bound = 1, std::optional<double> bias = std::nullopt);
// Sets the LocalAqt of dlhs and drhs.
void SetLocalAqt(DotGeneralConfig& config, OrSkip<LocalAqt> dlhs, OrSkip<LocalAqt> drhs);
// Sets use_fwd_quant of the rhs of dlhs and drhs; null leaves it unchanged. InvalidArgument together with mid alphas.
absl::Status SetUseFwdQuant(DotGeneralConfig& config, std::optional<bool> dlhs, std::optional<bool> drhs);
// Sets the mid alphas of both sides of each contraction; null leaves them unchanged. InvalidArgument together with
// use_fwd_quant.
absl::Status SetUseMidQuant(DotGeneralConfig& config, std::optional<double> fwd_alpha, std::optional<double> dlhs_alpha,
                            std::optional<double> drhs_alpha);
// Sets SnrSearch with these candidates on the rhs of all three contractions; po2_scale is kept.
void SetAutoCalibScale(DotGeneralConfig& config, const std::vector<double>& candidates);
// Sets preserve_zero on every IntSymmetric of all six operands. The container becomes that of NumericsFromBits, or null
// when `preserve_zero` is false.
void SetIntNumericsPreserveZero(DotGeneralConfig& config, bool preserve_zero);
// Sets the clipping scale of every AbsMax; below 1, every IntSymmetric with one gets clip_gradient. InvalidArgument if
// another kind of calibration is configured.
absl::Status SetAbsmaxCalibScale(DotGeneralConfig& config, double scale);
// Sets the numerics of all six operands, AbsMax on those with bits (the others keep their calibration), and the
// accumulators as SetNumerics does; use_fwd_quant becomes false where the matching forward operand is quantized.
void SetBits(DotGeneralConfig& config, Bits fwd_lhs, Bits fwd_rhs, Bits dlhs_lhs, Bits dlhs_rhs, Bits drhs_lhs,
             Bits drhs_rhs);
// Sets the calibration of both sides of fwd.
void SetFwdCalibration(DotGeneralConfig& config, const Calibration& calibration);
// Sets the dtype of the scales of all six operands.
void SetScaleDType(DotGeneralConfig& config, std::optional<DType> scale_dtype);

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_BUILDERS_H_
