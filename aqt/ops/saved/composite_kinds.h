#ifndef AQT_OPS_SAVED_COMPOSITE_KINDS_H_
#define AQT_OPS_SAVED_COMPOSITE_KINDS_H_

// The kinds of composites that saved programs hold. Internal (composite_proto.h).

#include <string>
#include <tuple>
#include <vector>

#include "aqt/ops/attention/attention_op.h"
#include "aqt/ops/contraction/aqt_dot_fields.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/expand/opaque_fields.h"
#include "aqt/ops/fp8/fp8_dot_fields.h"
#include "aqt/ops/fp8/fp8_scaling_fields.h"
#include "aqt/ops/scaling/low_precision.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/ops/xla_sum.h"

namespace aqt::internal {

// The composites with the fields F (graph/composite_fields.h), which MakeComposite(F) makes.
template <class F>
struct CompositeKind {
  const char* field;               // of SavedComposite: a message with the fields of F, by name
  std::vector<std::string> names;  // Composite::Name()
};

// To save another composite, add a line here and its message in composite.proto.
inline const auto& CompositeKinds() {
  static const auto& kinds = *new std::tuple(
      CompositeKind<DotForwardFields>{
          "forward",
          {"aqt_dot_general", "aqt_conv", "aqt_ragged_dot", "conv", "ragged_dot", "aqt_dot_general_fwd", "aqt_conv_fwd",
           "aqt_ragged_dot_fwd", "conv_fwd", "ragged_dot_fwd"}},
      CompositeKind<DotBackwardFields>{
          "backward", {"aqt_dot_general_bwd", "aqt_conv_bwd", "aqt_ragged_dot_bwd", "conv_bwd", "ragged_dot_bwd"}},
      CompositeKind<DotQuantizeFields>{"quantize", {"aqt_quantize"}}, CompositeKind<EinsumFields>{"einsum", {"einsum"}},
      CompositeKind<ScalingStep>{
          "scaling",
          {"set_scaling", "stop_scaling", "dynamic_rescale_max", "dynamic_rescale_max_grad", "dynamic_rescale_l1",
           "dynamic_rescale_l1_grad", "dynamic_rescale_l2", "dynamic_rescale_l2_grad", "reduce_precision_on_forward",
           "reduce_precision_on_backward", "cast_on_forward", "cast_on_backward", "get_data", "get_scale"}},
      CompositeKind<OperandKeyFields>{"operand_key", {"aqt_operand_key"}},
      CompositeKind<FoldInKeyFields>{"fold_in_key", {"fold_in_key"}},
      CompositeKind<GroupEndsFields>{"group_ends", {"ragged_group_ends"}},
      CompositeKind<NoiseFields>{"noise", {"aqt_noise"}}, CompositeKind<QvalueFields>{"qvalue", {"aqt_qvalue"}},
      CompositeKind<ScaleFields>{"scale", {"aqt_scale"}},
      CompositeKind<CalibrateFields>{"calibrate", {"aqt_calibrate"}},
      CompositeKind<StaticScaleFields>{"static_scale", {"aqt_static_scale"}},
      CompositeKind<Fp8QuantizeFields>{"fp8_quantize", {"fp8_quantize", "fp8_quantize_dequantize"}},
      CompositeKind<Fp8ScaleRule>{"fp8_update", {"fp8_update"}},
      CompositeKind<Fp8ForwardFields>{"fp8_dot", {"fp8_dot", "fp8_dot_fwd"}},
      CompositeKind<Fp8BackwardFields>{"fp8_backward", {"fp8_dot_bwd"}},
      CompositeKind<SmallFloat>{"low_precision_sum", {"low_precision_sum"}},
      CompositeKind<XlaSumFields>{"xla_sum", {"xla_sum"}}, CompositeKind<AttentionFields>{"attention", {"attention"}});
  return kinds;
}

}  // namespace aqt::internal

#endif  // AQT_OPS_SAVED_COMPOSITE_KINDS_H_
