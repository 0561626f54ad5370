// Convolutions.

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/strip.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/testing/same_bits.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {

absl::StatusOr<Tensors> ForwardTensors(Array out, const Array& observed, Tensors intermediate) {
  if (!SameBits(out, observed)) return absl::InternalError("out has other bits with an observer than without");
  Tensors tensors{{"out", std::move(out)}};
  for (auto& [name, value] : intermediate) {
    tensors.emplace(std::string(absl::StripPrefix(name, "fwd.")), std::move(value));
  }
  return tensors;
}

absl::StatusOr<Tensors> Run(const ConvGeneralConfig& config, const Tensors& inputs, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const Array lhs, Input(inputs, "lhs"));
  AQT_ASSIGN_OR_RETURN(const Array rhs, Input(inputs, "rhs"));
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
  AQT_ASSIGN_OR_RETURN(Array out,
                       QuantizedConvGeneral(config.config, lhs, rhs, config.dims, context, {.semantics = semantics}));
  Recorder recorder;
  AQT_ASSIGN_OR_RETURN(const Array observed, QuantizedConvGeneral(config.config, lhs, rhs, config.dims, context,
                                                                  {.semantics = semantics}, {.observer = &recorder}));
  return ForwardTensors(std::move(out), observed, std::move(recorder.tensors));
}

}  // namespace aqt::golden
