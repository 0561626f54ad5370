#include "aqt/quant/text/numerics_message.h"

#include <optional>
#include <utility>
#include <variant>

#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"

namespace aqt::internal {
namespace {

// ---- structs to messages

config::NoiseKind ToMessage(NoiseKind kind) {
  switch (kind) {
    case NoiseKind::kJaxUniform: return config::NOISE_KIND_JAX_UNIFORM;
    case NoiseKind::kRandomCenteredUniform: return config::NOISE_KIND_RANDOM_CENTERED_UNIFORM;
    case NoiseKind::kFast: return config::NOISE_KIND_FAST;
  }
  return config::NOISE_KIND_UNSPECIFIED;
}

void Write(const Noise& noise, config::Noise* out) {
  out->set_kind(ToMessage(noise.kind));
  out->mutable_noise_sharing_axes()->Add(noise.noise_sharing_axes.begin(), noise.noise_sharing_axes.end());
}

void Write(const IntSymmetric& n, config::IntSymmetric* out) {
  const IntSymmetric fixed;
  out->set_bits(n.bits);
  if (n.preserve_zero != (n.bits != 1)) out->set_preserve_zero(n.preserve_zero);
  if (n.preserve_max_val != fixed.preserve_max_val) out->set_preserve_max_val(n.preserve_max_val);
  if (n.clip != fixed.clip) out->set_clip(n.clip);
  if (n.clip_gradient != fixed.clip_gradient) out->set_clip_gradient(n.clip_gradient);
  if (n.round != fixed.round) out->set_round(n.round);
  if (n.noise.has_value()) Write(*n.noise, out->mutable_noise());
  out->set_dtype(DTypeText(n.dtype));
}

void Write(const Fp8& n, config::Fp8* out) {
  out->set_dtype(DTypeText(n.dtype));
  out->set_exponent_bits(n.exponent_bits);
  out->set_mantissa_bits(n.mantissa_bits);
  if (n.stochastic_rounding) out->set_stochastic_rounding(true);
}

void Write(const Fp& n, config::Fp* out) {
  const FpFormat fixed;
  config::FpFormat* format = out->mutable_format();
  format->set_nexp(n.format.nexp);
  if (n.format.minexp != fixed.minexp) format->set_minexp(n.format.minexp);
  format->set_nmant(n.format.nmant);
  format->set_has_subnormals(n.format.has_subnormals);
  if (n.format.has_two_nan) format->set_has_two_nan(true);
  if (n.format.has_naninf) format->set_has_naninf(true);
  if (n.format.radix != fixed.radix) format->set_radix(n.format.radix);
  if (n.stochastic_rounding) out->set_stochastic_rounding(true);
  if (n.clip_gradient) out->set_clip_gradient(true);
}

struct WriteVisitor {
  config::Quantizer* out;
  void operator()(const NoNumerics&) const { out->mutable_no_numerics(); }
  void operator()(const IntSymmetric& n) const { Write(n, out->mutable_int_symmetric()); }
  void operator()(const Fp8& n) const { Write(n, out->mutable_fp8()); }
  void operator()(const Fp& n) const { Write(n, out->mutable_fp()); }
};

// ---- messages to structs

// A default that depends on other fields; configs/quant.proto states it.
std::optional<DType> DefaultContainer(const IntSymmetric& n) {
  if (!n.preserve_zero || n.bits < 2 || n.bits > 8) return std::nullopt;
  return n.bits == 4 ? DType::kS4 : DType::kS8;
}

Noise ReadNoise(const config::Noise& m) {
  Noise noise;
  if (m.kind() == config::NOISE_KIND_RANDOM_CENTERED_UNIFORM) noise.kind = NoiseKind::kRandomCenteredUniform;
  if (m.kind() == config::NOISE_KIND_FAST) noise.kind = NoiseKind::kFast;
  noise.noise_sharing_axes = Axes(m.noise_sharing_axes().begin(), m.noise_sharing_axes().end());
  return noise;
}

absl::StatusOr<IntSymmetric> Read(const config::IntSymmetric& m, const ConfigPath& path) {
  IntSymmetric n;
  if (m.has_bits()) n.bits = m.bits();
  n.preserve_zero = m.has_preserve_zero() ? m.preserve_zero() : n.bits != 1;
  if (m.has_preserve_max_val()) n.preserve_max_val = m.preserve_max_val();
  if (m.has_clip()) n.clip = m.clip();
  if (m.has_clip_gradient()) n.clip_gradient = m.clip_gradient();
  if (m.has_round()) n.round = m.round();
  if (m.has_noise()) n.noise = ReadNoise(m.noise());
  n.dtype = DefaultContainer(n);
  if (m.has_dtype()) {
    AQT_ASSIGN_OR_RETURN(n.dtype, ReadDType(m.dtype(), path.In(m, "dtype")));
  }
  return n;
}

absl::StatusOr<Fp8> Read(const config::Fp8& m, const ConfigPath& path) {
  Fp8 n;
  if (m.has_dtype()) {
    AQT_ASSIGN_OR_RETURN(const std::optional<DType> dtype, ReadDType(m.dtype(), path.In(m, "dtype")));
    if (!dtype.has_value()) return path.In(m, "dtype").Error("an 8-bit float needs a dtype: e4m3fn, e5m2 or bf16");
    n.dtype = *dtype;
  }
  if (n.dtype == DType::kE5M2) {
    n.exponent_bits = 5;
    n.mantissa_bits = 2;
  }
  if (m.has_exponent_bits()) n.exponent_bits = m.exponent_bits();
  if (m.has_mantissa_bits()) n.mantissa_bits = m.mantissa_bits();
  n.stochastic_rounding = m.stochastic_rounding();
  return n;
}

Fp Read(const config::Fp& m) {
  Fp n;
  const config::FpFormat& format = m.format();
  if (format.has_nexp()) n.format.nexp = format.nexp();
  if (format.has_minexp()) n.format.minexp = format.minexp();
  if (format.has_nmant()) n.format.nmant = format.nmant();
  if (format.has_has_subnormals()) n.format.has_subnormals = format.has_subnormals();
  n.format.has_two_nan = format.has_two_nan();
  n.format.has_naninf = format.has_naninf();
  if (format.has_radix()) n.format.radix = format.radix();
  n.stochastic_rounding = m.stochastic_rounding();
  n.clip_gradient = m.clip_gradient();
  return n;
}

}  // namespace

void WriteNumerics(const Numerics& numerics, config::Quantizer* out) { std::visit(WriteVisitor{out}, numerics); }

absl::StatusOr<Numerics> ReadNumerics(const config::Quantizer& m, const ConfigPath& path) {
  switch (m.numerics_case()) {
    case config::Quantizer::kIntSymmetric: {
      AQT_ASSIGN_OR_RETURN(Numerics numerics, Read(m.int_symmetric(), path.In(m, "int_symmetric")));
      return numerics;
    }
    case config::Quantizer::kFp8: {
      AQT_ASSIGN_OR_RETURN(Numerics numerics, Read(m.fp8(), path.In(m, "fp8")));
      return numerics;
    }
    case config::Quantizer::kFp: return Numerics(Read(m.fp()));
    case config::Quantizer::kNoNumerics:
    case config::Quantizer::NUMERICS_NOT_SET: break;
  }
  return Numerics(NoNumerics());
}

}  // namespace aqt::internal
