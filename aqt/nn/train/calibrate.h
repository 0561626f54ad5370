#ifndef AQT_NN_TRAIN_CALIBRATE_H_
#define AQT_NN_TRAIN_CALIBRATE_H_

// Calibrates the ranges of activations from data, for quantizing a trained model.
//
//   AQT_ASSIGN_OR_RETURN(SlotValues known, nn::Calibrate(model, config, params, batches));
//   AQT_ASSIGN_OR_RETURN(SlotValues frozen, Freeze(model, config, known));

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/graph/program.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::nn {

// `known` with the statistics of the calibrations of `config` after all batches, in their order. `known` has the
// parameters of `model` and its other statistics. A statistic that it already has continues from its value. A batch has
// the inputs of kind data, with the shapes that `model` was traced for, and keys where forward noise needs them. The
// modes of `config` are not read. A model whose calibrations have no state is not run: the result is `known`. Errors:
// those of Inject; InvalidArgument if there is state but no batch; those of Executable, with the number of the batch.
absl::StatusOr<SlotValues> Calibrate(const Program& model, InjectConfig config, SlotValues known,
                                     absl::Span<const SlotValues> batches);

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_CALIBRATE_H_
