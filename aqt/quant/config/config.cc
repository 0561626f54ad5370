#include "aqt/quant/config/config.h"

#include "absl/strings/str_cat.h"

namespace aqt {
namespace {

std::string DescribeInt(const IntSymmetric& n) {
  std::string text = absl::StrCat("int", n.bits);
  if (!n.preserve_zero) absl::StrAppend(&text, " without zero");
  if (n.preserve_max_val) absl::StrAppend(&text, " preserve_max_val");
  if (n.noise.has_value()) absl::StrAppend(&text, " with noise");
  absl::StrAppend(&text, n.dtype.has_value() ? " in " : "", n.dtype.has_value() ? ToString(*n.dtype) : "");
  return text;
}

}  // namespace

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
  }
  return "?";
}

std::ostream& operator<<(std::ostream& os, QuantMode mode) { return os << std::string(ToString(mode)); }
std::ostream& operator<<(std::ostream& os, DequantMode mode) { return os << std::string(ToString(mode)); }
std::ostream& operator<<(std::ostream& os, CalibrationMode mode) { return os << std::string(ToString(mode)); }
std::ostream& operator<<(std::ostream& os, NoiseKind kind) { return os << std::string(ToString(kind)); }

std::string Describe(const Numerics& numerics) {
  struct Visitor {
    std::string operator()(const NoNumerics&) const { return "none"; }
    std::string operator()(const IntSymmetric& n) const { return DescribeInt(n); }
    std::string operator()(const Fp8& n) const { return std::string(ToString(n.dtype)); }
    std::string operator()(const Fp& n) const {
      return absl::StrCat("e", n.format.nexp, "m", n.format.nmant, n.format.radix == 4 ? " radix 4" : "");
    }
  };
  return std::visit(Visitor(), numerics);
}

}  // namespace aqt
