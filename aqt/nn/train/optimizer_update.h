#ifndef AQT_NN_TRAIN_OPTIMIZER_UPDATE_H_
#define AQT_NN_TRAIN_OPTIMIZER_UPDATE_H_

// The operations of an optimizer. Internal.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/graph/program.h"
#include "aqt/graph/value.h"
#include "aqt/nn/train/optimizer.h"
#include "aqt/nn/train/step_state.h"

namespace aqt::nn::internal {

// Whether the weights of each of these parameters decay. InvalidArgument, naming the field, for an invalid regular
// expression and for one that matches none of them.
absl::StatusOr<std::vector<bool>> DecayMask(const Optimizer& optimizer, absl::Span<const std::string> paths);

struct TrainedParam {
  Slot slot;
  Value value;
  Value gradient;  // f16, bf16, f32 or f64
};

// Binds the operations of an update and writes its state and the new parameters. Returns the new parameters as they are
// when the step is not skipped. Preconditions: a trace; Validate(optimizer); a mask by DecayMask.
std::vector<Value> Update(const Optimizer& optimizer, const std::vector<bool>& decays,
                          absl::Span<const TrainedParam> params, StepState& state);

}  // namespace aqt::nn::internal

#endif  // AQT_NN_TRAIN_OPTIMIZER_UPDATE_H_
