#include "aqt/ops/saved/fp8_composite_proto.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/fp8/fp8_dot_parts.h"
#include "aqt/ops/fp8/fp8_scaling.h"
#include "aqt/ops/fp8/fp8_scaling_parts.h"

namespace aqt::internal {
namespace {

void Save(const Fp8Compat& compat, saved::SavedFp8Compat& out) {
  out.set_all_zero_amax_flips_scale(compat.all_zero_amax_flips_scale);
  out.set_nan_amax_flips_scale(compat.nan_amax_flips_scale);
  out.set_tiny_scale_is_zero(compat.tiny_scale_is_zero);
}
Fp8Compat Load(const saved::SavedFp8Compat& in) {
  return {.all_zero_amax_flips_scale = in.all_zero_amax_flips_scale(),
          .nan_amax_flips_scale = in.nan_amax_flips_scale(),
          .tiny_scale_is_zero = in.tiny_scale_is_zero()};
}

void Save(const Fp8StateAvals& state, saved::SavedFp8State& out) {
  internal::Save(state.scale, out.mutable_scale());
  internal::Save(state.amax_history, out.mutable_amax_history());
}
absl::StatusOr<Fp8StateAvals> Load(const saved::SavedFp8State& in) {
  Fp8StateAvals state;
  AQT_ASSIGN_OR_RETURN(state.scale, LoadAval(in.scale()));
  AQT_ASSIGN_OR_RETURN(state.amax_history, LoadAval(in.amax_history()));
  return state;
}

// For SavedFp8Dot and SavedFp8Backward.
template <class Message>
void Save(const Fp8DotOptions& options, Message& out) {
  out.set_name(options.name);
  out.set_compute_dtype(SavedDType(options.compute_dtype));
  Save(options.compat, *out.mutable_compat());
}
template <class Message>
absl::StatusOr<Fp8DotOptions> LoadOptions(const Message& in) {
  Fp8DotOptions options{.name = in.name(), .compat = Load(in.compat())};
  AQT_ASSIGN_OR_RETURN(options.compute_dtype, LoadOptionalDType(in.compute_dtype()));
  return options;
}

void Save(const Fp8QuantizeParts& parts, saved::SavedComposite& out) {
  saved::SavedFp8Quantize& m = *out.mutable_fp8_quantize();
  m.set_dtype(SavedDType(parts.dtype));
  m.set_compute_dtype(SavedDType(parts.compute_dtype));
  m.set_dequantizes(parts.dequantizes);
}
void Save(const Fp8ScaleRule& rule, saved::SavedComposite& out) {
  saved::SavedFp8Update& m = *out.mutable_fp8_update();
  m.set_dtype(SavedDType(rule.dtype));
  m.set_margin(rule.margin);
  Save(rule.compat, *m.mutable_compat());
}
void Save(const Fp8ForwardParts& parts, saved::SavedComposite& out) {
  saved::SavedFp8Dot& m = *out.mutable_fp8_dot();
  Save(parts.options, m);
  m.set_with_gradient(parts.with_gradient);
  Save(parts.state[0], *m.mutable_input());
  Save(parts.state[1], *m.mutable_kernel());
  Save(parts.state[2], *m.mutable_output_grad());
}
void Save(const Fp8BackwardParts& parts, saved::SavedComposite& out) {
  saved::SavedFp8Backward& m = *out.mutable_fp8_backward();
  Save(parts.options, m);
  Save(parts.output_grad, *m.mutable_output_grad());
}

}  // namespace

bool SaveFp8(const Composite& op, saved::SavedComposite& out) {
  const auto save = [&](const auto& parts) { Save(parts, out); };
  if (const std::optional<Fp8ScalingParts> scaling = Fp8ScalingPartsOf(op)) std::visit(save, *scaling);
  else if (const std::optional<Fp8DotParts> dot = Fp8DotPartsOf(op)) std::visit(save, *dot);
  else return false;
  return true;
}

MadeComposite LoadFp8(const saved::SavedFp8Quantize& in) {
  Fp8QuantizeParts parts{.dequantizes = in.dequantizes()};
  AQT_ASSIGN_OR_RETURN(parts.dtype, LoadDType(in.dtype()));
  AQT_ASSIGN_OR_RETURN(parts.compute_dtype, LoadOptionalDType(in.compute_dtype()));
  return MakeFp8ScalingOp(parts);
}

MadeComposite LoadFp8(const saved::SavedFp8Update& in) {
  Fp8ScaleRule rule{.margin = in.margin(), .compat = Load(in.compat())};
  AQT_ASSIGN_OR_RETURN(rule.dtype, LoadDType(in.dtype()));
  return MakeFp8ScalingOp(rule);
}

MadeComposite LoadFp8(const saved::SavedFp8Dot& in) {
  Fp8ForwardParts parts{.options = {}, .with_gradient = in.with_gradient(), .state = {}};
  AQT_ASSIGN_OR_RETURN(parts.options, LoadOptions(in));
  AQT_ASSIGN_OR_RETURN(parts.state[0], Load(in.input()));
  AQT_ASSIGN_OR_RETURN(parts.state[1], Load(in.kernel()));
  AQT_ASSIGN_OR_RETURN(parts.state[2], Load(in.output_grad()));
  return MakeFp8DotOp(parts);
}

MadeComposite LoadFp8(const saved::SavedFp8Backward& in) {
  Fp8BackwardParts parts;
  AQT_ASSIGN_OR_RETURN(parts.options, LoadOptions(in));
  AQT_ASSIGN_OR_RETURN(parts.output_grad, Load(in.output_grad()));
  return MakeFp8DotOp(parts);
}

}  // namespace aqt::internal
