#ifndef AQT_NN_SERVE_SERVE_H_
#define AQT_NN_SERVE_SERVE_H_

// From a trained model to one that answers:
//
//   AQT_ASSIGN_OR_RETURN(const PreparedProgram served, nn::Serve({model}, config, trainer.state()));
//   AQT_ASSIGN_OR_RETURN(const SlotValues out, served.Eval({{Slot{SlotKind::kData, "x"}, x}}));
//
// The parts are Freeze and ServeProgram (transforms/quantize/serve.h) and PreparedProgram (runtime/prepared_program.h).

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/graph/program.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::nn {

// The models, one for each shape of their data, quantized as `config` says and prepared with `state`: either the state
// of a training or a calibration, whose weights are quantized here (Freeze), or the values of an earlier Freeze, which
// have the tensors of kind frozen. The modes of `config` are not read. What is served has the bits of what was trained.
// InvalidArgument without a model; otherwise the errors of the parts.
absl::StatusOr<PreparedProgram> Serve(absl::Span<const Program> models, const InjectConfig& config,
                                      const SlotValues& state, const PrepareOptions& options = {});

// What Serve prepares: the values of an earlier Freeze as they are, and the state of a training frozen for `model`.
absl::StatusOr<SlotValues> Frozen(const Program& model, const InjectConfig& config, const SlotValues& state);

}  // namespace aqt::nn

#endif  // AQT_NN_SERVE_SERVE_H_
