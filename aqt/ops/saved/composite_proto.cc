#include "aqt/ops/saved/composite_proto.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/program.h"
#include "aqt/ops/contraction/aqt_dot_parts.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction/opaque_kinds.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/saved/composite.pb.h"
#include "aqt/ops/saved/composite_values_proto.h"
#include "aqt/ops/saved/fp8_composite_proto.h"
#include "aqt/ops/scaling/low_precision.h"
#include "aqt/ops/scaling/low_precision_parts.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/ops/xla_sum.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/text/config_proto.h"
#include "aqt/quant/text/semantics_proto.h"
#include "configs/config_text.h"
#include "configs/enum_values.h"

namespace aqt {
namespace {

using internal::Corrupt;
using internal::DotBackwardParts;
using internal::DotForwardParts;
using internal::DotQuantizeParts;
using internal::LoadAval;
using internal::LoadAxes;
using internal::LoadShape;
using internal::OperandForm;
using internal::Save;
using saved::SavedComposite;
using Made = internal::MadeComposite;

// ---- values that occur in many composites; others are in composite_values_proto.h

absl::StatusOr<PrngLayout> LoadLayout(config::PrngLayout in) {
  PrngLayout layout{};
  AQT_RETURN_IF_ERROR(config::ReadEnum(internal::kLayouts, in, config::Place(), &layout));
  return layout;
}

absl::StatusOr<QuantMode> LoadMode(config::QuantMode in) {
  QuantMode mode{};
  AQT_RETURN_IF_ERROR(config::ReadEnum(internal::kModes, in, config::Place(), &mode));
  return mode;
}

absl::StatusOr<Semantics> LoadSemantics(const saved::SavedSemantics& in) {
  Semantics semantics;
  AQT_RETURN_IF_ERROR(internal::ReadSemantics(in, config::Place(), &semantics));
  return semantics;
}

// A quantizer that quantizes.
absl::StatusOr<Quantizer> LoadQuantizer(const config::Quantizer& in) {
  AQT_ASSIGN_OR_RETURN(Quantizer quantizer, FromProto(in));
  if (!IsQuantized(quantizer.numerics)) return Corrupt("the quantizer quantizes nothing");
  return quantizer;
}

// Numerics alone, as those of a quantizer, which needs a calibration to be legal.
config::Quantizer NumericsMessage(const Numerics& numerics) {
  return ToProto(Quantizer{.numerics = numerics, .calibration = AbsMax()});
}

// ---- contractions

constexpr OperandForm kForms[] = {OperandForm::kFloat, OperandForm::kFloatWithScale, OperandForm::kQvalueWithScale};

saved::SavedOperand FormMessage(OperandForm form) {
  return static_cast<saved::SavedOperand>(config::NumberOf(kForms, form) - 1);
}
absl::StatusOr<OperandForm> LoadForm(saved::SavedOperand in) {
  OperandForm form{};
  AQT_RETURN_IF_ERROR(config::ReadEnum(kForms, in + 1, config::Place(), &form));
  return form;
}

void Save(const DotDims& dims, saved::SavedContraction* out) {
  saved::SavedDotDims& m = *out->mutable_dot();
  Save(dims.lhs_contracting, m.mutable_lhs_contracting());
  Save(dims.rhs_contracting, m.mutable_rhs_contracting());
  Save(dims.lhs_batch, m.mutable_lhs_batch());
  Save(dims.rhs_batch, m.mutable_rhs_batch());
}
void Save(const ConvDims& dims, saved::SavedContraction* out) {
  saved::SavedConvDims& m = *out->mutable_conv();
  m.set_padding(std::string(ToString(dims.padding)));
  for (const auto& [low, high] : dims.explicit_padding) {
    m.add_low(low);
    m.add_high(high);
  }
  Save(dims.window_strides, m.mutable_window_strides());
  Save(dims.lhs_dilation, m.mutable_lhs_dilation());
  Save(dims.rhs_dilation, m.mutable_rhs_dilation());
  m.set_feature_group_count(dims.feature_group_count);
}
void Save(const RaggedDims&, saved::SavedContraction* out) { out->mutable_ragged(); }

absl::StatusOr<ConvDims> LoadConvDims(const saved::SavedConvDims& in) {
  ConvDims dims{.window_strides = LoadAxes(in.window_strides()),
                .lhs_dilation = LoadAxes(in.lhs_dilation()),
                .rhs_dilation = LoadAxes(in.rhs_dilation()),
                .feature_group_count = in.feature_group_count()};
  if (in.low_size() != in.high_size()) return Corrupt("padding has ", in.low_size(), " low, ", in.high_size(), " high");
  for (int i = 0; i < in.low_size(); ++i) dims.explicit_padding.emplace_back(in.low(i), in.high(i));
  for (const ConvPadding padding : {ConvPadding::kValid, ConvPadding::kSame, ConvPadding::kExplicit}) {
    if (in.padding() != ToString(padding)) continue;
    dims.padding = padding;
    return dims;
  }
  return Corrupt("\"", in.padding(), "\" is no padding");
}

absl::StatusOr<PlannedDims> LoadDims(const saved::SavedContraction& in) {
  switch (in.dims_case()) {
    case saved::SavedContraction::kDot:
      return DotDims{LoadAxes(in.dot().lhs_contracting()), LoadAxes(in.dot().rhs_contracting()),
                     LoadAxes(in.dot().lhs_batch()), LoadAxes(in.dot().rhs_batch())};
    case saved::SavedContraction::kConv: return LoadConvDims(in.conv());
    case saved::SavedContraction::kRagged: return RaggedDims();
    case saved::SavedContraction::DIMS_NOT_SET: break;
  }
  return Corrupt("the contraction has no dims");
}

void Save(const internal::ContractionParts& parts, saved::SavedContraction* out) {
  Save(parts.lhs, out->mutable_lhs());
  Save(parts.rhs, out->mutable_rhs());
  std::visit([&](const auto& dims) { Save(dims, out); }, parts.dims);
  if (parts.is_float) return;
  *out->mutable_config() = ToProto(parts.config);
  internal::WriteSemantics(parts.semantics, out->mutable_semantics());
  out->set_lhs_mode(internal::ToProto(parts.modes.lhs));
  out->set_rhs_mode(internal::ToProto(parts.modes.rhs));
}

absl::StatusOr<internal::ContractionParts> LoadContraction(const saved::SavedContraction& in) {
  internal::ContractionParts parts;
  AQT_ASSIGN_OR_RETURN(parts.lhs, LoadAval(in.lhs()));
  AQT_ASSIGN_OR_RETURN(parts.rhs, LoadAval(in.rhs()));
  AQT_ASSIGN_OR_RETURN(parts.dims, LoadDims(in));
  parts.is_float = !in.has_config();
  if (parts.is_float) return parts;
  AQT_ASSIGN_OR_RETURN(parts.config, PlannedFromProto(in.config()));
  AQT_ASSIGN_OR_RETURN(parts.semantics, LoadSemantics(in.semantics()));
  AQT_ASSIGN_OR_RETURN(parts.modes.lhs, LoadMode(in.lhs_mode()));
  AQT_ASSIGN_OR_RETURN(parts.modes.rhs, LoadMode(in.rhs_mode()));
  return parts;
}

void Save(const DotForwardParts& parts, SavedComposite& out) {
  saved::SavedForward& m = *out.mutable_forward();
  Save(parts.contraction, m.mutable_contraction());
  m.set_with_residuals(parts.with_residuals);
  m.set_lhs(FormMessage(parts.lhs));
  m.set_rhs(FormMessage(parts.rhs));
  m.set_has_backward_state(parts.has_backward_state);
  m.set_has_key(parts.has_key);
  for (const Slot& slot : parts.backward_slots) {
    saved::SavedSlot& saved = *m.add_backward_slots();
    saved.set_kind(std::string(ToString(slot.kind)));
    saved.set_path(slot.path);
  }
  if (parts.name.has_value()) m.set_name(*parts.name);
}
Made Load(const saved::SavedForward& in) {
  DotForwardParts parts;
  AQT_ASSIGN_OR_RETURN(parts.contraction, LoadContraction(in.contraction()));
  AQT_ASSIGN_OR_RETURN(parts.lhs, LoadForm(in.lhs()));
  AQT_ASSIGN_OR_RETURN(parts.rhs, LoadForm(in.rhs()));
  parts.with_residuals = in.with_residuals();
  parts.has_backward_state = in.has_backward_state();
  parts.has_key = in.has_key();
  for (const saved::SavedSlot& saved : in.backward_slots()) {
    const std::optional<SlotKind> kind = SlotKindFromString(saved.kind());
    if (!kind.has_value()) return Corrupt("\"", saved.kind(), "\" is no kind of slot");
    parts.backward_slots.push_back({*kind, saved.path()});
  }
  if (in.has_name()) parts.name = in.name();
  return internal::MakeDotOp(parts);
}

void Save(const DotBackwardParts& parts, SavedComposite& out) {
  Save(parts.contraction, out.mutable_backward()->mutable_contraction());
  out.mutable_backward()->set_has_key(parts.has_key);
}
Made Load(const saved::SavedBackward& in) {
  DotBackwardParts parts{.contraction = {}, .has_key = in.has_key()};
  AQT_ASSIGN_OR_RETURN(parts.contraction, LoadContraction(in.contraction()));
  return internal::MakeDotOp(parts);
}

void Save(const DotQuantizeParts& parts, SavedComposite& out) {
  saved::SavedQuantize& m = *out.mutable_quantize();
  Save(parts.contraction, m.mutable_contraction());
  m.set_is_rhs(parts.side == Side::kRhs);
  m.set_has_scale(parts.has_scale);
}
Made Load(const saved::SavedQuantize& in) {
  DotQuantizeParts parts{.contraction = {}, .side = in.is_rhs() ? Side::kRhs : Side::kLhs, .has_scale = in.has_scale()};
  AQT_ASSIGN_OR_RETURN(parts.contraction, LoadContraction(in.contraction()));
  return internal::MakeDotOp(parts);
}

void Save(const EinsumParts& parts, SavedComposite& out) {
  saved::SavedEinsum& m = *out.mutable_einsum();
  m.set_equation(parts.equation);
  Save(parts.lhs, m.mutable_lhs());
  Save(parts.rhs, m.mutable_rhs());
}
Made Load(const saved::SavedEinsum& in) {
  EinsumParts parts{.equation = in.equation(), .lhs = {}, .rhs = {}};
  AQT_ASSIGN_OR_RETURN(parts.lhs, LoadAval(in.lhs()));
  AQT_ASSIGN_OR_RETURN(parts.rhs, LoadAval(in.rhs()));
  return MakeEinsumOp(parts);
}

// ---- scaling

void Save(const ScalingParts& parts, SavedComposite& out) {
  saved::SavedScaling& m = *out.mutable_scaling();
  m.set_kind(static_cast<int>(parts.step.kind));
  m.set_dtype(internal::SavedDType(parts.step.dtype));
  m.set_backward(parts.step.backward);
  m.set_dropped_under_grad(parts.options.dropped_under_grad);
}
Made Load(const saved::SavedScaling& in) {
  if (in.kind() < 0 || in.kind() > static_cast<int>(ScalingKind::kGetScale)) {
    return Corrupt(in.kind(), " is no kind of scaling");
  }
  ScalingParts parts{{static_cast<ScalingKind>(in.kind()), std::nullopt, in.backward()}, {in.dropped_under_grad()}};
  AQT_ASSIGN_OR_RETURN(parts.step.dtype, internal::LoadOptionalDType(in.dtype()));
  return MakeScalingOp(parts);
}

// ---- opaque operations

void Save(const internal::OperandKeyOp& op, SavedComposite& out) {
  out.mutable_operand_key()->set_role(static_cast<int>(op.role));
  out.mutable_operand_key()->set_prng_layout(internal::ToProto(op.layout));
}
Made Load(const saved::SavedOperandKey& in) {
  if (in.role() < 0 || in.role() > static_cast<int>(internal::KeyRole::kConvRhs)) {
    return Corrupt(in.role(), " is no role of an operand");
  }
  AQT_ASSIGN_OR_RETURN(const PrngLayout layout, LoadLayout(in.prng_layout()));
  return internal::MakeOpaqueOp(internal::OperandKeyOp{static_cast<internal::KeyRole>(in.role()), layout});
}

void Save(const internal::FoldInKeyOp& op, SavedComposite& out) { out.mutable_fold_in_key()->set_data(op.data); }
Made Load(const saved::SavedFoldInKey& in) { return internal::MakeOpaqueOp(internal::FoldInKeyOp{in.data()}); }

void Save(const internal::GroupEndsOp& op, SavedComposite& out) {
  Save(op.lhs, out.mutable_group_ends()->mutable_lhs());
  Save(op.rhs, out.mutable_group_ends()->mutable_rhs());
}
Made Load(const saved::SavedGroupEnds& in) {
  internal::GroupEndsOp op;
  AQT_ASSIGN_OR_RETURN(op.lhs, LoadAval(in.lhs()));
  AQT_ASSIGN_OR_RETURN(op.rhs, LoadAval(in.rhs()));
  if (op.lhs.shape.rank() != 2 || op.rhs.shape.rank() != 3) {
    return Corrupt(op.lhs.ToString(), " and ", op.rhs.ToString(), " are not the operands of a ragged contraction");
  }
  return internal::MakeOpaqueOp(std::move(op));
}

void Save(const internal::NoiseOp& op, SavedComposite& out) {
  saved::SavedNoise& m = *out.mutable_noise();
  *m.mutable_quantizer() = NumericsMessage(IntSymmetric{.noise = op.noise});
  Save(op.shape, m.mutable_shape());
  m.set_prng_layout(internal::ToProto(op.layout));
}
Made Load(const saved::SavedNoise& in) {
  AQT_ASSIGN_OR_RETURN(const Quantizer quantizer, LoadQuantizer(in.quantizer()));
  const IntSymmetric* numerics = std::get_if<IntSymmetric>(&quantizer.numerics);
  if (numerics == nullptr || !numerics->noise.has_value()) return Corrupt("there is no noise");
  AQT_ASSIGN_OR_RETURN(Shape shape, LoadShape(in.shape()));
  AQT_ASSIGN_OR_RETURN(const PrngLayout layout, LoadLayout(in.prng_layout()));
  return internal::MakeOpaqueOp(internal::NoiseOp{*numerics->noise, std::move(shape), layout});
}

void Save(const internal::QvalueOp& op, SavedComposite& out) {
  *out.mutable_qvalue()->mutable_quantizer() = NumericsMessage(op.numerics);
  out.mutable_qvalue()->set_prng_layout(internal::ToProto(op.layout));
}
Made Load(const saved::SavedQvalue& in) {
  AQT_ASSIGN_OR_RETURN(const Quantizer quantizer, LoadQuantizer(in.quantizer()));
  AQT_ASSIGN_OR_RETURN(const PrngLayout layout, LoadLayout(in.prng_layout()));
  return internal::MakeOpaqueOp(internal::QvalueOp{quantizer.numerics, layout});
}

template <class Op>
saved::SavedCalibration& Save(const Op& op, saved::SavedCalibration* out) {
  *out->mutable_quantizer() = ToProto(op.quantizer);
  Save(op.axes, out->mutable_axes());
  internal::WriteSemantics(op.semantics, out->mutable_semantics());
  return *out;
}
template <class Op>
absl::Status Load(const saved::SavedCalibration& in, Op& op) {
  AQT_ASSIGN_OR_RETURN(op.quantizer, LoadQuantizer(in.quantizer()));
  AQT_ASSIGN_OR_RETURN(op.semantics, LoadSemantics(in.semantics()));
  op.axes = LoadAxes(in.axes());
  return absl::OkStatus();
}

void Save(const internal::ScaleOp& op, SavedComposite& out) { Save(op, out.mutable_scale()); }
Made LoadScale(const saved::SavedCalibration& in) {
  internal::ScaleOp op;
  AQT_RETURN_IF_ERROR(Load(in, op));
  if (in.has_x() || in.mode() != config::QUANT_MODE_UNSPECIFIED) return Corrupt("aqt_scale has neither x nor mode");
  return internal::MakeOpaqueOp(std::move(op));
}

void Save(const internal::CalibrateOp& op, SavedComposite& out) {
  saved::SavedCalibration& m = Save(op, out.mutable_calibrate());
  Save(op.x, m.mutable_x());
  m.set_mode(internal::ToProto(op.mode));
}
Made LoadCalibrate(const saved::SavedCalibration& in) {
  internal::CalibrateOp op;
  AQT_RETURN_IF_ERROR(Load(in, op));
  AQT_ASSIGN_OR_RETURN(op.x, LoadAval(in.x()));
  AQT_ASSIGN_OR_RETURN(op.mode, LoadMode(in.mode()));
  return internal::MakeOpaqueOp(std::move(op));
}

void Save(const internal::StaticScaleOp& op, SavedComposite& out) {
  Save(op.x, Save(op, out.mutable_static_scale()).mutable_x());
}
Made LoadStaticScale(const saved::SavedCalibration& in) {
  internal::StaticScaleOp op;
  AQT_RETURN_IF_ERROR(Load(in, op));
  AQT_ASSIGN_OR_RETURN(op.x, LoadAval(in.x()));
  if (in.mode() != config::QUANT_MODE_UNSPECIFIED) return Corrupt("aqt_static_scale has no mode");
  return internal::MakeOpaqueOp(std::move(op));
}

void Save(const SmallFloat& format, SavedComposite& out) {
  saved::SavedSmallFloat& m = *out.mutable_low_precision_sum();
  m.set_min_exponent(format.min_exponent);
  m.set_max_exponent(format.max_exponent);
  m.set_mantissa_bits(format.mantissa_bits);
}
Made Load(const saved::SavedSmallFloat& in) {
  return internal::MakeLowPrecisionSum({in.min_exponent(), in.max_exponent(), in.mantissa_bits()});
}

void Save(const Axes& sum_axes, SavedComposite& out) { Save(sum_axes, out.mutable_xla_sum()->mutable_axes()); }
Made Load(const saved::SavedXlaSum& in) { return internal::MakeXlaSum(LoadAxes(in.axes())); }

// ---- all of them

absl::StatusOr<std::string> SaveComposite(const Composite& op) {
  SavedComposite saved;
  AQT_ASSIGN_OR_RETURN(const std::optional<internal::DotParts> dot, internal::DotPartsOf(op));
  if (dot.has_value()) {
    std::visit([&](const auto& parts) { Save(parts, saved); }, *dot);
  } else if (const internal::OpaqueKind* opaque = internal::OpaqueKindOf(op)) {
    std::visit([&](const auto& kind) { Save(kind, saved); }, *opaque);
  } else if (const std::optional<EinsumParts> einsum = EinsumPartsOf(op)) {
    Save(*einsum, saved);
  } else if (const std::optional<ScalingParts> scaling = ScalingPartsOf(op)) {
    Save(*scaling, saved);
  } else if (const std::optional<SmallFloat> sums = internal::LowPrecisionSumFormatOf(op)) {
    Save(*sums, saved);
  } else if (const std::optional<Axes> axes = internal::XlaSumAxesOf(op)) {
    Save(*axes, saved);
  } else if (!internal::SaveFp8(op, saved)) {
    return absl::UnimplementedError("another composite has the name of this one");
  }
  return saved.SerializeAsString();
}

Made LoadMessage(const SavedComposite& in) {
  switch (in.kind_case()) {
    case SavedComposite::kForward: return Load(in.forward());
    case SavedComposite::kBackward: return Load(in.backward());
    case SavedComposite::kQuantize: return Load(in.quantize());
    case SavedComposite::kEinsum: return Load(in.einsum());
    case SavedComposite::kScaling: return Load(in.scaling());
    case SavedComposite::kOperandKey: return Load(in.operand_key());
    case SavedComposite::kFoldInKey: return Load(in.fold_in_key());
    case SavedComposite::kGroupEnds: return Load(in.group_ends());
    case SavedComposite::kNoise: return Load(in.noise());
    case SavedComposite::kQvalue: return Load(in.qvalue());
    case SavedComposite::kScale: return LoadScale(in.scale());
    case SavedComposite::kCalibrate: return LoadCalibrate(in.calibrate());
    case SavedComposite::kStaticScale: return LoadStaticScale(in.static_scale());
    case SavedComposite::kFp8Quantize: return internal::LoadFp8(in.fp8_quantize());
    case SavedComposite::kFp8Update: return internal::LoadFp8(in.fp8_update());
    case SavedComposite::kFp8Dot: return internal::LoadFp8(in.fp8_dot());
    case SavedComposite::kFp8Backward: return internal::LoadFp8(in.fp8_backward());
    case SavedComposite::kLowPrecisionSum: return Load(in.low_precision_sum());
    case SavedComposite::kXlaSum: return Load(in.xla_sum());
    case SavedComposite::KIND_NOT_SET: break;
  }
  return Corrupt("there is no configuration");
}

Made LoadComposite(absl::string_view bytes) {
  SavedComposite saved;
  if (bytes.size() > std::numeric_limits<int32_t>::max() ||
      !saved.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Corrupt("the configuration cannot be read");
  }
  saved.DiscardUnknownFields();
  if (saved.ByteSizeLong() != bytes.size()) {
    return absl::UnimplementedError("the configuration has fields that this version does not know");
  }
  Made op = LoadMessage(saved);
  // A file of this library never holds what the library refuses to make.
  if (absl::IsInvalidArgument(op.status())) return absl::DataLossError(op.status().message());
  return op;
}

// For the FP8 layers. aqt_pack and the operations that read its panels refuse by themselves.
absl::StatusOr<std::string> SavePanels(const Composite&) {
  return absl::UnimplementedError("an operand is packed for the kernels of this machine");
}

}  // namespace

namespace ops {

const CompositeCodecs& ProgramCodecs() {
  static const auto& codecs = *new CompositeCodecs([] {
    CompositeCodecs all;
    const auto add = [&](std::string name) { all[std::move(name)] = {SaveComposite, LoadComposite}; };
    for (const char* kind : {"aqt_dot_general", "aqt_conv", "aqt_ragged_dot", "conv", "ragged_dot"}) {
      for (const char* suffix : {"", "_fwd", "_bwd"}) add(absl::StrCat(kind, suffix));
    }
    for (const char* name : {"aqt_quantize",
                             "aqt_pack",
                             "einsum",
                             "aqt_operand_key",
                             "fold_in_key",
                             "ragged_group_ends",
                             "aqt_noise",
                             "aqt_qvalue",
                             "aqt_scale",
                             "aqt_calibrate",
                             "aqt_static_scale",
                             "set_scaling",
                             "stop_scaling",
                             "dynamic_rescale_max",
                             "dynamic_rescale_max_grad",
                             "dynamic_rescale_l1",
                             "dynamic_rescale_l1_grad",
                             "dynamic_rescale_l2",
                             "dynamic_rescale_l2_grad",
                             "reduce_precision_on_forward",
                             "reduce_precision_on_backward",
                             "cast_on_forward",
                             "cast_on_backward",
                             "get_data",
                             "get_scale",
                             "low_precision_sum",
                             "xla_sum",
                             "fp8_quantize",
                             "fp8_quantize_dequantize",
                             "fp8_update",
                             "fp8_dot",
                             "fp8_dot_fwd",
                             "fp8_dot_bwd"}) {
      add(name);
    }
    for (const char* name : {"fp8_pack", "fp8_packed_dot"}) all[name] = {SavePanels, LoadComposite};
    return all;
  }());
  return codecs;
}

}  // namespace ops
}  // namespace aqt
