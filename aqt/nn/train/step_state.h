#ifndef AQT_NN_TRAIN_STEP_STATE_H_
#define AQT_NN_TRAIN_STEP_STATE_H_

// The state of a training step while it is traced. Internal.

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/program.h"
#include "aqt/graph/value.h"

namespace aqt::nn::internal {

// Statistics that the step itself adds: each is read once and written once.
class StepState {
 public:
  // `taken`: the slots of the program without the step's own.
  explicit StepState(std::set<Slot> taken) : taken_(std::move(taken)) {}

  // The statistic before the step. `what` describes it, e.g. `the momentum of param "w"`.
  Value Read(absl::string_view path, const Aval& aval, absl::string_view what);

  // From here on, Write keeps the previous value where `keep`, a bool scalar, is true. Without a value, Write always
  // takes the new one.
  void set_keep(std::optional<Value> keep) { keep_ = std::move(keep); }
  void Write(const Slot& slot, const Value& before, const Value& after) const;
  void Write(absl::string_view path, const Value& before, const Value& after) const;

  // InvalidArgument, naming the slot, if the program itself has a statistic that was read.
  const absl::Status& status() const { return status_; }

 private:
  std::set<Slot> taken_;
  std::optional<Value> keep_;
  absl::Status status_;
};

// The number of updates, s32. It saturates at 2^31 - 1.
struct UpdateCount {
  Value before, after;
};
// Reads the count and writes it, increased by one.
UpdateCount CountUpdate(absl::string_view path, StepState& state);

// The dtype of an update's arithmetic: f64 for parameters of f64, otherwise f32.
DType UpdateDType(DType param);

// 1 - decay^count: the total weight of the values in a moving average that starts at 0.
Value BiasCorrection(double decay, const Value& count, DType dtype);

}  // namespace aqt::nn::internal

#endif  // AQT_NN_TRAIN_STEP_STATE_H_
