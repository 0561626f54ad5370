#ifndef AQT_TRANSFORMS_QUANTIZE_INJECT_TESTING_H_
#define AQT_TRANSFORMS_QUANTIZE_INJECT_TESTING_H_

// The model that the tests of inject.h quantize.

#include "aqt/transforms/quantize/inject.h"

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/quant/config/builders.h"

namespace aqt {

// (x [B,6], w1 [6,5], b1 [5], w2 [4,5]): the second weight is the lhs of its contraction. The model is written without
// quantization.
inline std::vector<Value> Model(absl::Span<const Value> in) {
  const NamedScope scope("mlp");
  Value hidden;
  {
    const NamedScope layer("fc1");
    hidden = ops::MatMul(in[0], in[1]) + in[2];
  }
  hidden = ops::Max(hidden, 0.0);
  const NamedScope layer("fc2");
  const DotDims dims = {.lhs_contracting = {1}, .rhs_contracting = {1}, .lhs_batch = {}, .rhs_batch = {}};
  return {ops::Transpose(ops::DotGeneral(in[3], hidden, dims), {1, 0})};
}

inline Slot Param(const char* path) { return {SlotKind::kParam, path}; }
inline const Slot kX{SlotKind::kData, "x"};
inline const Slot kKeySlot{SlotKind::kKey, "aqt"};

inline std::vector<Input> Inputs(int64_t batch) {
  return {{kX, {DType::kF32, {batch, 6}}},
          {Param("fc1/kernel"), {DType::kF32, {6, 5}}},
          {Param("fc1/bias"), {DType::kF32, {5}}},
          {Param("fc2/kernel"), {DType::kF32, {4, 5}}}};
}

inline Program Traced(int64_t batch) {
  return *Trace(Model, Inputs(batch), std::vector<Slot>{{SlotKind::kData, "logits"}});
}

// Forward in int8, gradients in float: no key.
inline DotGeneralConfig Int8() { return DotGeneralMake(8, 8); }

inline InjectConfig All(const DotGeneralConfig& config) {
  InjectConfig inject;
  inject.rules.push_back({.scope = "mlp/.*", .dot_general = config});
  return inject;
}

}  // namespace aqt

#endif  // AQT_TRANSFORMS_QUANTIZE_INJECT_TESTING_H_
