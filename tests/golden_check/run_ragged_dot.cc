// Ragged contractions.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {

absl::StatusOr<Tensors> Run(const RaggedDotConfig& config, const Tensors& inputs, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const Array lhs, Input(inputs, "lhs"));
  AQT_ASSIGN_OR_RETURN(const Array rhs, Input(inputs, "rhs"));
  AQT_ASSIGN_OR_RETURN(const Array group_sizes, Input(inputs, "group_sizes"));
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
  const Array wide = Cast(group_sizes, DType::kS64);
  const std::vector<int64_t> sizes(wide.View<int64_t>().begin(), wide.View<int64_t>().end());
  const DotGeneralConfig dot_general{.fwd = config.config};
  AQT_ASSIGN_OR_RETURN(Array out, QuantizedRaggedDot(dot_general, lhs, rhs, sizes, context, {.semantics = semantics}));
  Recorder recorder;
  AQT_ASSIGN_OR_RETURN(const Array observed, QuantizedRaggedDot(dot_general, lhs, rhs, sizes, context,
                                                                {.semantics = semantics}, {.observer = &recorder}));
  return ForwardTensors(std::move(out), observed, std::move(recorder.tensors));
}

}  // namespace aqt::golden
