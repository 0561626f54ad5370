#include "aqt/quant/config/config.h"

#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace aqt {

absl::string_view ToString(QuantMode mode) {
  switch (mode) {
    case QuantMode::kTrain: return "QUANT_MODE_TRAIN";
    case QuantMode::kCalibrate: return "QUANT_MODE_CALIBRATE";
    case QuantMode::kConvert: return "QUANT_MODE_CONVERT";
    case QuantMode::kServe: return "QUANT_MODE_SERVE";
  }
  return "?";
}

absl::string_view ToString(DequantMode mode) {
  switch (mode) {
    case DequantMode::kOutput: return "DEQUANT_MODE_OUTPUT";
    case DequantMode::kThisInput: return "DEQUANT_MODE_THIS_INPUT";
    case DequantMode::kOtherInput: return "DEQUANT_MODE_OTHER_INPUT";
  }
  return "?";
}

absl::string_view ToString(CalibrationMode mode) {
  switch (mode) {
    case CalibrationMode::kContractingAxis: return "CALIBRATION_MODE_CONTRACTING_AXIS";
    case CalibrationMode::kRemainingAxis: return "CALIBRATION_MODE_REMAINING_AXIS";
  }
  return "?";
}

absl::string_view ToString(NoiseKind kind) {
  switch (kind) {
    case NoiseKind::kJaxUniform: return "NOISE_KIND_JAX_UNIFORM";
    case NoiseKind::kRandomCenteredUniform: return "NOISE_KIND_RANDOM_CENTERED_UNIFORM";
    case NoiseKind::kFast: return "NOISE_KIND_FAST";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& os, QuantMode mode) { return os << std::string(ToString(mode)); }
std::ostream& operator<<(std::ostream& os, DequantMode mode) { return os << std::string(ToString(mode)); }
std::ostream& operator<<(std::ostream& os, CalibrationMode mode) { return os << std::string(ToString(mode)); }
std::ostream& operator<<(std::ostream& os, NoiseKind kind) { return os << std::string(ToString(kind)); }

std::string Describe(const Noise& noise) {
  const Axes& axes = noise.noise_sharing_axes;
  return absl::StrCat(absl::AsciiStrToLower(absl::StripPrefix(ToString(noise.kind), "NOISE_KIND_")),
                      axes.empty() ? "" : absl::StrCat("[", absl::StrJoin(axes, ","), "]"));
}

std::string Describe(const Numerics& numerics) {
  struct Visitor {
    std::string operator()(const NoNumerics&) const { return "float"; }
    std::string operator()(const IntSymmetric& n) const {
      std::string text = absl::StrCat("int", n.bits, ":", n.dtype.has_value() ? ToString(*n.dtype) : "none");
      if (!n.preserve_zero) text += "+half_integers";
      if (n.preserve_max_val) text += "+preserve_max_val";
      if (!n.clip) text += "+no_clip";
      if (n.clip_gradient) text += "+clip_gradient";
      if (!n.round) text += "+no_round";
      if (n.noise.has_value()) absl::StrAppend(&text, "+", Describe(*n.noise));
      return text;
    }
    std::string operator()(const Fp8& n) const {
      return absl::StrCat("fp8_e", n.exponent_bits, "m", n.mantissa_bits, ":", ToString(n.dtype),
                          n.stochastic_rounding ? "+stochastic" : "");
    }
    std::string operator()(const Fp& n) const {
      const FpFormat& f = n.format;
      return absl::StrCat("fp_e", f.nexp, "m", f.nmant, "_min", f.minexp, "_radix", f.radix,
                          f.has_subnormals ? "" : "+no_subnormals", f.has_two_nan ? "+two_nan" : "",
                          f.has_naninf ? "+naninf" : "", n.stochastic_rounding ? "+stochastic" : "",
                          n.clip_gradient ? "+clip_gradient" : "");
    }
  };
  return std::visit(Visitor(), numerics);
}

}  // namespace aqt
