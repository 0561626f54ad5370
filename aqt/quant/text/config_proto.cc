#include "aqt/quant/text/config_proto.h"

#include <cstdint>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/validate.h"
#include "aqt/quant/tensor/quantizer.h"
#include "configs/config_text.h"
#include "configs/quant.pb.h"
#include "configs/quant_presets.h"
#include "google/protobuf/repeated_field.h"
#include "google/protobuf/text_format.h"

namespace aqt {
namespace {

using config::Place;
using google::protobuf::RepeatedField;

// Names of Python classes and enum values of AQT, and of fields in its public README and older versions.
constexpr config::Rename kRenames[] = {
    {"DotGeneralRaw", "dg_in_dtype", "the container into the numerics instead: int_symmetric { dtype: \"s8\" }"},
    {"Tensor", "numerics",
     "quantizer { int_symmetric { ... } }; numerics, calibration, calib_shared_axes and "
     "scale_stop_grad are in quantizer"},
    {"Tensor", "int_symmetric", "quantizer { int_symmetric { ... } }"},
    {"Tensor", "calibration", "quantizer { abs_max { ... } }"},
    {"Tensor", "calib_shared_axes", "quantizer { calib_shared_axes { ... } }"},
    {"Tensor", "scale_stop_grad", "quantizer { scale_stop_grad: ... }"},
    {"", "use_fake_quant", "dequant_mode: DEQUANT_MODE_THIS_INPUT, in lhs or rhs"},
    {"", "po2_scale", "quantizer { abs_max { po2_scale: true } }; po2_scale belongs to the calibration"},
    {"Quantizer", "numerics", "the kind itself: int_symmetric { ... }, fp8 { ... }, fp { ... } or no_numerics {}"},
    {"Quantizer", "calibration",
     "the kind itself: abs_max {}, abs_mean {}, constant { ... }, snr_search { ... }, "
     "mean_of_abs_max {}, weighted_stats { ... } or delayed_scaling {}"},
    {"Quantizer", "bits", "int_symmetric { bits: ... }"},
    {"Tensor", "bits", "quantizer { int_symmetric { bits: ... } }"},
    {"", "context", "nothing: key, step and mode belong to each call"},
    {"DotGeneralRaw", "dg_quantizer", "lhs { quantizer { ... } } and rhs { quantizer { ... } }"},
    {"DotGeneralRaw", "lhs_mid", "lhs_mid_alpha: ..."},
    {"DotGeneralRaw", "rhs_mid", "rhs_mid_alpha: ..."},
    {"DotGeneralRaw", "jax_scope_name", "nothing: scopes are those of the program"},
    {"", "int_numerics", "int_symmetric"},
    {"", "IntNumerics", "int_symmetric"},
    {"", "IntSymmetric", "int_symmetric"},
    {"", "NoNumerics", "no_numerics"},
    {"", "Fp8Numerics", "fp8"},
    {"", "FpNumerics", "fp"},
    {"", "AbsMaxCalibration", "abs_max"},
    {"", "AbsMeanCalibration", "abs_mean"},
    {"", "ConstantCalibration", "constant"},
    {"", "SnrBasedAutoCalibration", "snr_search"},
    {"", "auto_clip_search_config", "candidates: [...], in snr_search"},
    {"", "MeanOfAbsMaxCalibration", "mean_of_abs_max"},
    {"", "WeightedStatsCalibration", "weighted_stats"},
    {"", "DelayedScalingCalibration", "delayed_scaling"},
    {"", "quant_collection", "nothing: statistics are in slots of kind stat"},
    {"", "noise_fn", "noise { kind: ... }"},
    {"IntSymmetric", "stochastic_rounding", "noise { kind: ... }"},
    {"AbsMax", "scale", "clipping_scale"},
    {"", "OUTPUT", "DEQUANT_MODE_OUTPUT"},
    {"", "THIS_INPUT", "DEQUANT_MODE_THIS_INPUT"},
    {"", "OTHER_INPUT", "DEQUANT_MODE_OTHER_INPUT"},
    {"", "CONTRACTING_AXIS", "CALIBRATION_MODE_CONTRACTING_AXIS"},
    {"", "REMAINING_AXIS", "CALIBRATION_MODE_REMAINING_AXIS"},
    {"", "jax.uniform", "NOISE_KIND_JAX_UNIFORM"},
    {"", "jax", "NOISE_KIND_JAX_UNIFORM"},  // what the parser reads of an unquoted jax.uniform
    {"", "custom-1", "NOISE_KIND_RANDOM_CENTERED_UNIFORM"},
    {"", "custom", "NOISE_KIND_RANDOM_CENTERED_UNIFORM"},
};

// A message's place in the text, and its path for messages without a place.
struct Spot {
  Place place;
  std::string path;

  Spot In(const google::protobuf::Message& message, const char* field) const {
    return {place.In(message, field), absl::StrCat(path, path.empty() ? "" : ".", field)};
  }
  absl::Status At(const absl::Status& status) const { return place.At(path.empty() ? status : Annotate(status, path)); }
  absl::Status Error(absl::string_view message) const { return At(absl::InvalidArgumentError(message)); }
};

constexpr absl::string_view kNone = "none";

std::string DTypeText(std::optional<DType> dtype) { return std::string(dtype.has_value() ? ToString(*dtype) : kNone); }

// ---- defaults that depend on other fields; configs/quant.proto states them

std::optional<DType> DefaultContainer(const IntSymmetric& n) {
  if (!n.preserve_zero || n.bits < 2 || n.bits > 8) return std::nullopt;
  return n.bits == 4 ? DType::kS4 : DType::kS8;
}

std::optional<DType> DefaultAccumulator(const DotGeneralRaw& raw) {
  const auto is_integer = [](const Tensor& tensor) {
    const std::optional<DType> dtype = ProductDType(tensor);
    return dtype == DType::kS4 || dtype == DType::kS8;
  };
  const auto is_fp8 = [](const Tensor& tensor) { return std::holds_alternative<Fp8>(tensor.quantizer.numerics); };
  if (is_integer(raw.lhs) && is_integer(raw.rhs)) return DType::kS32;
  if (is_fp8(raw.lhs) || is_fp8(raw.rhs)) return DType::kF32;
  return std::nullopt;
}

// ---- structs to messages. A field with its fixed default is left out.

template <class T>
void WriteList(const T& values, RepeatedField<int64_t>* out) {
  out->Add(values.begin(), values.end());
}

void Write(const Noise& noise, config::Noise* out) {
  const bool uniform = noise.kind == NoiseKind::kJaxUniform;
  out->set_kind(uniform ? config::NOISE_KIND_JAX_UNIFORM : config::NOISE_KIND_RANDOM_CENTERED_UNIFORM);
  WriteList(noise.noise_sharing_axes, out->mutable_noise_sharing_axes());
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

void Write(const ConstantValue& value, config::ConstantValue* out) {
  if (const double* number = std::get_if<double>(&value)) {
    out->set_number(*number);
    return;
  }
  const Array& array = std::get<ConstantArray>(value).array;
  config::ConstantArray* message = out->mutable_array();
  message->set_dtype(DTypeText(array.dtype()));
  WriteList(array.shape(), message->mutable_shape());
  const Array doubles = Cast(array, DType::kF64);
  for (const double v : doubles.View<double>()) message->add_values(v);
}

void Write(const AbsMax& c, config::AbsMax* out) {
  if (c.clipping_scale.has_value()) out->set_clipping_scale(*c.clipping_scale);
  if (c.po2_scale) out->set_po2_scale(true);
}

void Write(const AbsMean& c, config::AbsMean* out) {
  out->set_p(c.p);
  if (c.clipping_scale != AbsMean().clipping_scale) out->set_clipping_scale(c.clipping_scale);
  if (c.po2_scale) out->set_po2_scale(true);
}

void Write(const Constant& c, config::Constant* out) {
  Write(c.bound, out->mutable_bound());
  if (c.bias.has_value()) Write(*c.bias, out->mutable_bias());
  if (c.po2_scale) out->set_po2_scale(true);
}

void Write(const SnrSearch& c, config::SnrSearch* out) {
  for (const double candidate : c.candidates) out->add_candidates(candidate);
  if (c.po2_scale) out->set_po2_scale(true);
}

void Write(const MeanOfAbsMax& c, config::MeanOfAbsMax* out) {
  if (c.po2_scale) out->set_po2_scale(true);
}

void Write(const WeightedStats& c, config::WeightedStats* out) {
  const WeightedStats fixed;
  if (c.l1_dev_coeff != fixed.l1_dev_coeff) out->set_l1_dev_coeff(c.l1_dev_coeff);
  if (c.lp_dev_coeff != fixed.lp_dev_coeff) out->set_lp_dev_coeff(c.lp_dev_coeff);
  if (c.max_dev_coeff != fixed.max_dev_coeff) out->set_max_dev_coeff(c.max_dev_coeff);
  if (c.const_bound_coeff != fixed.const_bound_coeff) out->set_const_bound_coeff(c.const_bound_coeff);
  if (c.update_count_prior != fixed.update_count_prior) out->set_update_count_prior(c.update_count_prior);
  if (c.max_dev_prior != fixed.max_dev_prior) out->set_max_dev_prior(c.max_dev_prior);
  if (c.mean_prior != fixed.mean_prior) out->set_mean_prior(c.mean_prior);
  if (c.l1_dev_prior != fixed.l1_dev_prior) out->set_l1_dev_prior(c.l1_dev_prior);
  if (c.lp_dev_prior != fixed.lp_dev_prior) out->set_lp_dev_prior(c.lp_dev_prior);
  if (c.lp_order != fixed.lp_order) out->set_lp_order(c.lp_order);
  if (c.safe_divide != fixed.safe_divide) out->set_safe_divide(c.safe_divide);
  if (c.filter_zeros != fixed.filter_zeros) out->set_filter_zeros(c.filter_zeros);
  if (c.ema_update_count != fixed.ema_update_count) out->set_ema_update_count(c.ema_update_count);
  if (c.po2_scale) out->set_po2_scale(true);
}

void Write(const DelayedScaling& c, config::DelayedScaling* out) {
  out->set_amax_history_length(c.amax_history_length);
  if (c.po2_scale) out->set_po2_scale(true);
}

struct WriteNumerics {
  config::Quantizer* out;
  void operator()(const NoNumerics&) const { out->mutable_no_numerics(); }
  void operator()(const IntSymmetric& n) const { Write(n, out->mutable_int_symmetric()); }
  void operator()(const Fp8& n) const { Write(n, out->mutable_fp8()); }
  void operator()(const Fp& n) const { Write(n, out->mutable_fp()); }
};

struct WriteCalibration {
  config::Quantizer* out;
  void operator()(const AbsMax& c) const { Write(c, out->mutable_abs_max()); }
  void operator()(const AbsMean& c) const { Write(c, out->mutable_abs_mean()); }
  void operator()(const Constant& c) const { Write(c, out->mutable_constant()); }
  void operator()(const SnrSearch& c) const { Write(c, out->mutable_snr_search()); }
  void operator()(const MeanOfAbsMax& c) const { Write(c, out->mutable_mean_of_abs_max()); }
  void operator()(const WeightedStats& c) const { Write(c, out->mutable_weighted_stats()); }
  void operator()(const DelayedScaling& c) const { Write(c, out->mutable_delayed_scaling()); }
};

void Write(const Quantizer& q, config::Quantizer* out) {
  std::visit(WriteNumerics{out}, q.numerics);
  if (q.calib_shared_axes.per_tensor) out->mutable_calib_shared_axes()->set_per_tensor(true);
  if (!q.calib_shared_axes.axes.empty()) {
    WriteList(q.calib_shared_axes.axes, out->mutable_calib_shared_axes()->mutable_axes());
  }
  if (!q.scale_stop_grad) out->set_scale_stop_grad(false);
  if (q.scale_dtype.has_value()) out->set_scale_dtype(DTypeText(q.scale_dtype));
  if (q.calibration.has_value()) std::visit(WriteCalibration{out}, *q.calibration);
}

void Write(const Tensor& tensor, config::Tensor* out) {
  Write(tensor.quantizer, out->mutable_quantizer());
  if (tensor.use_fwd_quant) out->set_use_fwd_quant(true);
  switch (tensor.dequant_mode) {
    case DequantMode::kOutput: break;
    case DequantMode::kThisInput: out->set_dequant_mode(config::DEQUANT_MODE_THIS_INPUT); break;
    case DequantMode::kOtherInput: out->set_dequant_mode(config::DEQUANT_MODE_OTHER_INPUT); break;
  }
  switch (tensor.calibration_mode) {
    case CalibrationMode::kContractingAxis: break;
    case CalibrationMode::kRemainingAxis: out->set_calibration_mode(config::CALIBRATION_MODE_REMAINING_AXIS); break;
  }
}

void Write(const DotGeneralRaw& raw, config::DotGeneralRaw* out) {
  Write(raw.lhs, out->mutable_lhs());
  Write(raw.rhs, out->mutable_rhs());
  out->set_dg_accumulator_dtype(DTypeText(raw.dg_accumulator_dtype));
  if (raw.local_aqt.has_value()) {
    const LocalAqt& local = *raw.local_aqt;
    config::LocalAqt* message = out->mutable_local_aqt();
    if (local.contraction_axis_shard_count.has_value()) {
      message->set_contraction_axis_shard_count(*local.contraction_axis_shard_count);
    }
    if (local.contraction_axis_shard_size.has_value()) {
      message->set_contraction_axis_shard_size(*local.contraction_axis_shard_size);
    }
    if (local.tile_largest_shape) message->set_tile_largest_shape(true);
  }
  if (raw.lhs_mid_alpha.has_value()) out->set_lhs_mid_alpha(*raw.lhs_mid_alpha);
  if (raw.rhs_mid_alpha.has_value()) out->set_rhs_mid_alpha(*raw.rhs_mid_alpha);
  if (raw.allow_dummy_gradient_into_qtensor) out->set_allow_dummy_gradient_into_qtensor(true);
}

// ---- messages to structs

absl::StatusOr<std::optional<DType>> ReadDType(const std::string& text, const Spot& spot) {
  if (text == kNone) return std::optional<DType>();
  const std::optional<DType> dtype = DTypeFromString(text);
  if (dtype.has_value()) return dtype;
  constexpr std::pair<absl::string_view, absl::string_view> kNumpyNames[] = {
      {"int2", "s2"},          {"int4", "s4"},     {"int8", "s8"},       {"int32", "s32"},
      {"float16", "f16"},      {"float32", "f32"}, {"bfloat16", "bf16"}, {"float8_e4m3fn", "e4m3fn"},
      {"float8_e5m2", "e5m2"}, {"None", "none"}};
  for (const auto& [numpy, name] : kNumpyNames) {
    if (text == numpy) return spot.Error(absl::StrCat("\"", text, "\" is not a data type; write \"", name, "\""));
  }
  return spot.Error(absl::StrCat("\"", text,
                                 "\" is not a data type; expected s2, s4, s8, s32, e4m3fn, e5m2, f16, bf16, "
                                 "f32 or none"));
}

Axes ReadAxes(const RepeatedField<int64_t>& axes) { return Axes(axes.begin(), axes.end()); }

Noise ReadNoise(const config::Noise& m) {
  Noise noise;
  if (m.kind() == config::NOISE_KIND_RANDOM_CENTERED_UNIFORM) noise.kind = NoiseKind::kRandomCenteredUniform;
  noise.noise_sharing_axes = ReadAxes(m.noise_sharing_axes());
  return noise;
}

absl::StatusOr<IntSymmetric> Read(const config::IntSymmetric& m, const Spot& spot) {
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
    AQT_ASSIGN_OR_RETURN(n.dtype, ReadDType(m.dtype(), spot.In(m, "dtype")));
  }
  return n;
}

absl::StatusOr<Fp8> Read(const config::Fp8& m, const Spot& spot) {
  Fp8 n;
  if (m.has_dtype()) {
    AQT_ASSIGN_OR_RETURN(const std::optional<DType> dtype, ReadDType(m.dtype(), spot.In(m, "dtype")));
    if (!dtype.has_value()) return spot.In(m, "dtype").Error("an 8-bit float needs a dtype: e4m3fn, e5m2 or bf16");
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

absl::StatusOr<ConstantArray> Read(const config::ConstantArray& m, const Spot& spot) {
  AQT_ASSIGN_OR_RETURN(const std::optional<DType> dtype,
                       ReadDType(m.has_dtype() ? m.dtype() : std::string(kNone), spot.In(m, "dtype")));
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    return spot.In(m, "dtype").Error("an array needs a dtype: f32, bf16 or f16");
  }
  const Shape shape(std::vector<int64_t>(m.shape().begin(), m.shape().end()));
  if (const absl::Status status = CheckShape(shape); !status.ok()) return spot.In(m, "shape").At(status);
  if (shape.num_elements() != m.values_size()) {
    return spot.In(m, "values")
        .Error(absl::StrCat("the shape ", shape.ToString(), " has ", shape.num_elements(), " elements, but there are ",
                            m.values_size(), " values"));
  }
  const ArrayRef values(m.values().data(), shape);
  return ConstantArray{Cast(values, *dtype)};
}

absl::StatusOr<ConstantValue> Read(const config::ConstantValue& m, const Spot& spot) {
  switch (m.value_case()) {
    case config::ConstantValue::kNumber: return ConstantValue(m.number());
    case config::ConstantValue::kArray: {
      AQT_ASSIGN_OR_RETURN(ConstantArray array, Read(m.array(), spot.In(m, "array")));
      return ConstantValue(std::move(array));
    }
    case config::ConstantValue::VALUE_NOT_SET: break;
  }
  return spot.Error("needs number or array");
}

absl::StatusOr<Constant> Read(const config::Constant& m, const Spot& spot) {
  Constant c;
  if (m.has_bound()) {
    AQT_ASSIGN_OR_RETURN(c.bound, Read(m.bound(), spot.In(m, "bound")));
  }
  if (m.has_bias()) {
    AQT_ASSIGN_OR_RETURN(c.bias, Read(m.bias(), spot.In(m, "bias")));
  }
  c.po2_scale = m.po2_scale();
  return c;
}

AbsMax Read(const config::AbsMax& m) {
  AbsMax c{.po2_scale = m.po2_scale()};
  if (m.has_clipping_scale()) c.clipping_scale = m.clipping_scale();
  return c;
}

AbsMean Read(const config::AbsMean& m) {
  AbsMean c{.po2_scale = m.po2_scale()};
  if (m.has_p()) c.p = m.p();
  if (m.has_clipping_scale()) c.clipping_scale = m.clipping_scale();
  return c;
}

WeightedStats Read(const config::WeightedStats& m) {
  WeightedStats c{.safe_divide = m.safe_divide(), .po2_scale = m.po2_scale()};
  if (m.has_l1_dev_coeff()) c.l1_dev_coeff = m.l1_dev_coeff();
  if (m.has_lp_dev_coeff()) c.lp_dev_coeff = m.lp_dev_coeff();
  if (m.has_max_dev_coeff()) c.max_dev_coeff = m.max_dev_coeff();
  if (m.has_const_bound_coeff()) c.const_bound_coeff = m.const_bound_coeff();
  if (m.has_update_count_prior()) c.update_count_prior = m.update_count_prior();
  if (m.has_max_dev_prior()) c.max_dev_prior = m.max_dev_prior();
  if (m.has_mean_prior()) c.mean_prior = m.mean_prior();
  if (m.has_l1_dev_prior()) c.l1_dev_prior = m.l1_dev_prior();
  if (m.has_lp_dev_prior()) c.lp_dev_prior = m.lp_dev_prior();
  if (m.has_lp_order()) c.lp_order = m.lp_order();
  if (m.has_filter_zeros()) c.filter_zeros = m.filter_zeros();
  if (m.has_ema_update_count()) c.ema_update_count = m.ema_update_count();
  return c;
}

DelayedScaling Read(const config::DelayedScaling& m) {
  DelayedScaling c{.po2_scale = m.po2_scale()};
  if (m.has_amax_history_length()) c.amax_history_length = m.amax_history_length();
  return c;
}

absl::StatusOr<Numerics> ReadNumerics(const config::Quantizer& m, const Spot& spot) {
  switch (m.numerics_case()) {
    case config::Quantizer::kIntSymmetric: {
      AQT_ASSIGN_OR_RETURN(Numerics numerics, Read(m.int_symmetric(), spot.In(m, "int_symmetric")));
      return numerics;
    }
    case config::Quantizer::kFp8: {
      AQT_ASSIGN_OR_RETURN(Numerics numerics, Read(m.fp8(), spot.In(m, "fp8")));
      return numerics;
    }
    case config::Quantizer::kFp: return Numerics(Read(m.fp()));
    case config::Quantizer::kNoNumerics:
    case config::Quantizer::NUMERICS_NOT_SET: break;
  }
  return Numerics(NoNumerics());
}

absl::StatusOr<std::optional<Calibration>> ReadCalibration(const config::Quantizer& m, const Spot& spot) {
  std::optional<Calibration> calibration;
  switch (m.calibration_case()) {
    case config::Quantizer::kAbsMax: calibration = Read(m.abs_max()); break;
    case config::Quantizer::kAbsMean: calibration = Read(m.abs_mean()); break;
    case config::Quantizer::kConstant: {
      AQT_ASSIGN_OR_RETURN(calibration, Read(m.constant(), spot.In(m, "constant")));
      break;
    }
    case config::Quantizer::kSnrSearch: {
      const auto& candidates = m.snr_search().candidates();
      calibration =
          SnrSearch{.candidates = {candidates.begin(), candidates.end()}, .po2_scale = m.snr_search().po2_scale()};
      break;
    }
    case config::Quantizer::kMeanOfAbsMax:
      calibration = MeanOfAbsMax{.po2_scale = m.mean_of_abs_max().po2_scale()};
      break;
    case config::Quantizer::kWeightedStats: calibration = Read(m.weighted_stats()); break;
    case config::Quantizer::kDelayedScaling: calibration = Read(m.delayed_scaling()); break;
    case config::Quantizer::CALIBRATION_NOT_SET: break;
  }
  return calibration;
}

absl::StatusOr<Quantizer> Read(const config::Quantizer& m, const Spot& spot) {
  Quantizer q;
  AQT_ASSIGN_OR_RETURN(q.numerics, ReadNumerics(m, spot));
  AQT_ASSIGN_OR_RETURN(q.calibration, ReadCalibration(m, spot));
  q.calib_shared_axes = {.per_tensor = m.calib_shared_axes().per_tensor(),
                         .axes = ReadAxes(m.calib_shared_axes().axes())};
  AQT_RETURN_IF_ERROR(spot.In(m, "calib_shared_axes").At(ValidateSharedAxes(q.calib_shared_axes)));
  if (m.has_scale_stop_grad()) q.scale_stop_grad = m.scale_stop_grad();
  if (m.has_scale_dtype()) {
    AQT_ASSIGN_OR_RETURN(q.scale_dtype, ReadDType(m.scale_dtype(), spot.In(m, "scale_dtype")));
  }
  const absl::Status status = Validate(q);
  // The plan reports what is legal but not implemented.
  if (absl::IsInvalidArgument(status)) return spot.At(status);
  return q;
}

absl::StatusOr<Tensor> Read(const config::Tensor& m, const Spot& spot) {
  Tensor tensor;
  AQT_ASSIGN_OR_RETURN(tensor.quantizer, Read(m.quantizer(), spot.In(m, "quantizer")));
  tensor.use_fwd_quant = m.use_fwd_quant();
  switch (m.dequant_mode()) {
    case config::DEQUANT_MODE_THIS_INPUT: tensor.dequant_mode = DequantMode::kThisInput; break;
    case config::DEQUANT_MODE_OTHER_INPUT: tensor.dequant_mode = DequantMode::kOtherInput; break;
    default: break;
  }
  if (m.calibration_mode() == config::CALIBRATION_MODE_REMAINING_AXIS) {
    tensor.calibration_mode = CalibrationMode::kRemainingAxis;
  }
  const Spot at = m.has_dequant_mode() ? spot.In(m, "dequant_mode") : spot.In(m, "calibration_mode");
  AQT_RETURN_IF_ERROR(at.At(ValidateTensor(tensor)));
  return tensor;
}

absl::StatusOr<DotGeneralRaw> Read(const config::DotGeneralRaw& m, const Spot& spot) {
  DotGeneralRaw raw;
  AQT_ASSIGN_OR_RETURN(raw.lhs, Read(m.lhs(), spot.In(m, "lhs")));
  AQT_ASSIGN_OR_RETURN(raw.rhs, Read(m.rhs(), spot.In(m, "rhs")));
  raw.dg_accumulator_dtype = DefaultAccumulator(raw);
  if (m.has_dg_accumulator_dtype()) {
    const Spot at = spot.In(m, "dg_accumulator_dtype");
    AQT_ASSIGN_OR_RETURN(raw.dg_accumulator_dtype, ReadDType(m.dg_accumulator_dtype(), at));
    AQT_RETURN_IF_ERROR(at.At(ValidateAccumulator(raw)));
  }
  if (m.has_local_aqt()) {
    LocalAqt& local = raw.local_aqt.emplace();
    const config::LocalAqt& message = m.local_aqt();
    if (message.has_contraction_axis_shard_count()) {
      local.contraction_axis_shard_count = message.contraction_axis_shard_count();
    }
    if (message.has_contraction_axis_shard_size()) {
      local.contraction_axis_shard_size = message.contraction_axis_shard_size();
    }
    local.tile_largest_shape = message.tile_largest_shape();
  }
  if (m.has_lhs_mid_alpha()) raw.lhs_mid_alpha = m.lhs_mid_alpha();
  if (m.has_rhs_mid_alpha()) raw.rhs_mid_alpha = m.rhs_mid_alpha();
  const Spot alpha = spot.In(m, m.has_lhs_mid_alpha() ? "lhs_mid_alpha" : "rhs_mid_alpha");
  AQT_RETURN_IF_ERROR(alpha.At(ValidateMidAlphas(raw)));
  raw.allow_dummy_gradient_into_qtensor = m.allow_dummy_gradient_into_qtensor();
  return raw;
}

absl::StatusOr<std::vector<AxisTiling>> Read(const google::protobuf::RepeatedPtrField<config::AxisTiling>& list,
                                             const Spot& spot) {
  std::vector<AxisTiling> tilings;
  for (const config::AxisTiling& m : list) {
    if (!m.has_axis()) return spot.Error("an axis to tile needs a number: axis: -1");
    if (!m.has_tile_count() && !m.has_tile_size()) {
      return spot.Error(absl::StrCat("axis ", m.axis(), " needs a tile_count or a tile_size"));
    }
    AxisTiling& tiling = tilings.emplace_back(AxisTiling{.axis = m.axis()});
    if (m.has_tile_count()) tiling.tile_count = m.tile_count();
    if (m.has_tile_size()) tiling.tile_size = m.tile_size();
  }
  return tilings;
}

absl::StatusOr<TensorTiling> Read(const config::TensorTiling& m, const Spot& spot) {
  TensorTiling tiling;
  AQT_ASSIGN_OR_RETURN(tiling.contraction_axes, Read(m.contraction_axes(), spot.In(m, "contraction_axes")));
  AQT_ASSIGN_OR_RETURN(tiling.remaining_axes, Read(m.remaining_axes(), spot.In(m, "remaining_axes")));
  return tiling;
}

absl::Status CheckLocalAqt(const DotGeneralRaw& raw, const config::DotGeneralRaw& m, const Spot& spot) {
  if (!raw.local_aqt.has_value()) return absl::OkStatus();
  AQT_RETURN_IF_ERROR(spot.In(m, "local_aqt").At(ValidateLocalAqt(*raw.local_aqt)));
  const auto quantizer = [](const config::Tensor& tensor, const Spot& at) { return at.In(tensor, "quantizer"); };
  AQT_RETURN_IF_ERROR(quantizer(m.lhs(), spot.In(m, "lhs")).At(ValidateTensorOfLocalAqt(raw.lhs)));
  return quantizer(m.rhs(), spot.In(m, "rhs")).At(ValidateTensorOfLocalAqt(raw.rhs));
}

// Incompatible modes of fwd; use_fwd_quant and local_aqt where they have no meaning.
absl::Status CheckPlaces(const DotGeneral& dg, const config::DotGeneral& m, const Spot& spot) {
  const Spot fwd = spot.In(m, "fwd"), dlhs = spot.In(m, "dlhs"), drhs = spot.In(m, "drhs");
  const auto use = [](const config::Tensor& tensor, const Spot& at) { return at.In(tensor, "use_fwd_quant"); };
  const auto none = [&](bool set, const config::Tensor& tensor, const Spot& at) {
    if (!set) return absl::OkStatus();
    return use(tensor, at)
        .Error("only the rhs of dlhs and of drhs, the saved operands, can use the forward quantization");
  };
  const auto modes = [](const Tensor& tensor, const config::Tensor& tm, const Spot& at) {
    return at.In(tm, tm.has_dequant_mode() ? "dequant_mode" : "calibration_mode").At(ValidateForwardModes(tensor));
  };
  AQT_RETURN_IF_ERROR(modes(dg.fwd.lhs, m.fwd().lhs(), fwd.In(m.fwd(), "lhs")));
  AQT_RETURN_IF_ERROR(modes(dg.fwd.rhs, m.fwd().rhs(), fwd.In(m.fwd(), "rhs")));
  AQT_RETURN_IF_ERROR(none(dg.fwd.lhs.use_fwd_quant, m.fwd().lhs(), fwd.In(m.fwd(), "lhs")));
  AQT_RETURN_IF_ERROR(none(dg.fwd.rhs.use_fwd_quant, m.fwd().rhs(), fwd.In(m.fwd(), "rhs")));
  AQT_RETURN_IF_ERROR(none(dg.dlhs.lhs.use_fwd_quant, m.dlhs().lhs(), dlhs.In(m.dlhs(), "lhs")));
  AQT_RETURN_IF_ERROR(none(dg.drhs.lhs.use_fwd_quant, m.drhs().lhs(), drhs.In(m.drhs(), "lhs")));
  if (dg.dlhs.rhs.use_fwd_quant) {
    AQT_RETURN_IF_ERROR(use(m.dlhs().rhs(), dlhs.In(m.dlhs(), "rhs")).At(ValidateUseFwdQuant(dg.fwd, Side::kRhs)));
  }
  if (dg.drhs.rhs.use_fwd_quant) {
    AQT_RETURN_IF_ERROR(use(m.drhs().rhs(), drhs.In(m.drhs(), "rhs")).At(ValidateUseFwdQuant(dg.fwd, Side::kLhs)));
  }
  if (dg.fwd.local_aqt.has_value()) {
    return fwd.In(m.fwd(), "local_aqt").Error("local_aqt is only supported in dlhs and drhs");
  }
  AQT_RETURN_IF_ERROR(CheckLocalAqt(dg.dlhs, m.dlhs(), dlhs));
  return CheckLocalAqt(dg.drhs, m.drhs(), drhs);
}

}  // namespace

absl::StatusOr<DotGeneral> FromProto(const config::DotGeneral& message, const Place& place) {
  const std::vector<config::EmbeddedText> presets = config::QuantPresets();
  if (message.has_schema()) AQT_RETURN_IF_ERROR(config::CheckSchema(message, place));
  config::DotGeneral m = message;
  AQT_RETURN_IF_ERROR(config::ResolveBase(presets, place, &m));
  const Spot spot{place, ""};
  DotGeneral dg;
  AQT_ASSIGN_OR_RETURN(dg.fwd, Read(m.fwd(), spot.In(m, "fwd")));
  AQT_ASSIGN_OR_RETURN(dg.dlhs, Read(m.dlhs(), spot.In(m, "dlhs")));
  AQT_ASSIGN_OR_RETURN(dg.drhs, Read(m.drhs(), spot.In(m, "drhs")));
  AQT_RETURN_IF_ERROR(CheckPlaces(dg, m, spot));
  if (m.has_tiling()) {
    const Spot tiling = spot.In(m, "tiling");
    dg.tiling.emplace();
    AQT_ASSIGN_OR_RETURN(dg.tiling->lhs, Read(m.tiling().lhs(), tiling.In(m.tiling(), "lhs")));
    AQT_ASSIGN_OR_RETURN(dg.tiling->rhs, Read(m.tiling().rhs(), tiling.In(m.tiling(), "rhs")));
  }
  return dg;
}

absl::StatusOr<DotGeneral> FromProto(const config::DotGeneral& message) { return FromProto(message, Place()); }

absl::StatusOr<DotGeneral> DotGeneralFromText(absl::string_view textproto, absl::string_view source) {
  config::DotGeneral message;
  google::protobuf::TextFormat::ParseInfoTree tree;
  AQT_RETURN_IF_ERROR(config::ParseText(textproto, source, kRenames, &message, &tree));
  const Place place(source, &tree);
  AQT_RETURN_IF_ERROR(config::CheckSchema(message, place));
  return FromProto(message, place);
}

absl::StatusOr<DotGeneral> DotGeneralFromPreset(absl::string_view name) {
  const std::vector<config::EmbeddedText> presets = config::QuantPresets();
  for (const config::EmbeddedText& preset : presets) {
    if (preset.name == name) return DotGeneralFromText(preset.text, absl::StrCat("preset ", name));
  }
  return absl::InvalidArgumentError(config::NoSuchPreset(name, presets));
}

absl::Span<const config::Rename> DotGeneralRenames() { return kRenames; }

std::vector<std::string> DotGeneralPresetNames() { return config::PresetNames(config::QuantPresets()); }

namespace {

void Write(const std::vector<AxisTiling>& list, google::protobuf::RepeatedPtrField<config::AxisTiling>* out) {
  for (const AxisTiling& tiling : list) {
    config::AxisTiling* message = out->Add();
    message->set_axis(tiling.axis);
    if (tiling.tile_count.has_value()) message->set_tile_count(*tiling.tile_count);
    if (tiling.tile_size.has_value()) message->set_tile_size(*tiling.tile_size);
  }
}

void Write(const TensorTiling& tiling, config::TensorTiling* out) {
  Write(tiling.contraction_axes, out->mutable_contraction_axes());
  Write(tiling.remaining_axes, out->mutable_remaining_axes());
}

}  // namespace

config::DotGeneral ToProto(const DotGeneral& dg) {
  config::DotGeneral message;
  message.set_schema(1);
  Write(dg.fwd, message.mutable_fwd());
  Write(dg.dlhs, message.mutable_dlhs());
  Write(dg.drhs, message.mutable_drhs());
  if (dg.tiling.has_value()) {
    Write(dg.tiling->lhs, message.mutable_tiling()->mutable_lhs());
    Write(dg.tiling->rhs, message.mutable_tiling()->mutable_rhs());
  }
  return message;
}

std::string ToText(const DotGeneral& config) { return config::PrintText(ToProto(config)); }

}  // namespace aqt
