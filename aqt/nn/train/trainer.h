#ifndef AQT_NN_TRAIN_TRAINER_H_
#define AQT_NN_TRAIN_TRAINER_H_

// A training loop: runs a step program repeatedly on its own outputs.
//
//   AQT_ASSIGN_OR_RETURN(Trainer trainer, Trainer::Make(loss, Sgd{}, params, MakeKey(0)));
//   for (const SlotValues& batch : batches) {
//     AQT_ASSIGN_OR_RETURN(SlotValues out, trainer.Step(batch));
//     ...
//   }
//   AQT_RETURN_IF_ERROR(trainer.Save(io::LocalFileSystem(), "digits.safetensors"));
//
// The state is the parameters, the optimizer's state, the statistics, the number of steps and the key. A training that
// is saved and resumed gives the same bits as an uninterrupted one.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/collective/collective.h"
#include "aqt/core/rng.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/runtime/executable.h"
#include "aqt/transforms/parallel/data_parallel.h"

namespace aqt::nn {

// The options of Trainer.
struct TrainOptions {
  StepOptions step = {};
  // Applied to the step program before it is compiled; null: nothing. In scaled arithmetic
  // (transforms/precision/scalify.h) the scales of parameters and statistics are part of the state, too: `params` has
  // those that are not 0 (AsScaledArrays, transforms/precision/scaled_arrays.h). They are saved as they are.
  std::function<absl::StatusOr<Program>(const Program& step)> transform = nullptr;
  // With a scaler: the number of times a step whose results are not finite is repeated with a smaller scaler.
  int redo_on_nan = 0;
  // Other settings that affect the bits of a training, as texts by name, such as {"batch", "32"}: Save writes them, and
  // Restore refuses a file with others. Leave out settings that may change when a training continues.
  std::map<std::string, std::string> settings = {};
  // If any hook is set, steps run equation by equation, to find the first NaN or to inspect values. A scaler learns
  // from overflows: watch for NaN only, or leave the scaler out.
  EvalHooks hooks = {};
  // The processes that train together, each in a Trainer of the same program, parameters, key and options. A step is
  // that of DataParallel (transforms/parallel/data_parallel.h), for the loss's batch. Null: one process. Must outlive
  // the trainer.
  Collective* collective = nullptr;
  DataParallelOptions data_parallel = {};
};

// Holds the state of a training and runs its steps.
class Trainer {
 public:
  // For `loss` see TrainStep. `params` has a value for each of its parameters (NotFound otherwise; InvalidArgument for
  // another dtype or shape, and for values that are not inputs of kind param or stat). AddMissingStats adds the
  // statistics that it lacks. `params` may have the scaler's state, which otherwise is its initial one.
  // InvalidArgument, naming the slot, if a key is not u32[2], if there is an input of kind frozen, or if the step
  // writes a parameter or statistic with another dtype or shape than it reads. Also the errors of
  // TrainOptions::transform.
  //
  // Keys: let k = FoldIn(key, step number). The input of kind key with path kSharedKeySlot is k; one with another path
  // is FoldInName(k, Slot::ToString()), e.g. for `key "noise"`. Layers with their own keys draw different noise.
  //
  // With a collective also the errors of DataParallel, and FailedPrecondition, naming the first rank that differs from
  // rank 0, if the processes do not start alike.
  static absl::StatusOr<Trainer> Make(const Program& loss, const Optimizer& optimizer, const SlotValues& params,
                                      Key key, const TrainOptions& options = {});

  // The number of steps with distinct keys.
  static constexpr int64_t kMaxSteps = int64_t{1} << 32;

  // Runs one step on `batch`, values for the inputs of kind data (InvalidArgument for a value of another kind). With a
  // collective, `batch` is this process's rows of the full batch (ShareOf in batch_order.h). Returns the outputs that
  // are not the new state, such as the loss before the step. After an error the state is unchanged. With a collective,
  // an error of one process is an error of all: "process N: ..." is prepended there, and the others get Aborted with N
  // and its message. No process has done the step, and all may continue with another batch. OutOfRange after kMaxSteps,
  // because the keys would repeat.
  absl::StatusOr<SlotValues> Step(const SlotValues& batch);

  const Program& program() const { return executable_.program(); }
  const Executable& executable() const { return executable_; }
  int64_t steps() const { return steps_; }
  // The inputs of kind param or stat.
  const SlotValues& state() const { return state_; }
  SlotValues params() const;
  // The moving average of the parameters (EmaParams), without scales. FailedPrecondition if the training has none.
  absl::StatusOr<SlotValues> ema_params() const;

  // Save and resume. FailedPrecondition, naming the slot or the setting, if the file is the state of another program or
  // of a training with other settings; DataLoss, naming the field, if the number of steps or the key is missing or
  // wrong; the errors of SaveState and LoadState. After an error the trainer is unchanged. With a collective all
  // processes call them: rank 0 writes the file, and all read it. An error of one process is Aborted in the others
  // (AgreeOn), and files that differ are FailedPrecondition.
  absl::Status Save(const io::FileSystem& fs, absl::string_view path) const;
  absl::Status Restore(const io::FileSystem& fs, absl::string_view path);

 private:
  Trainer(Executable executable, SlotValues state, Key key, const TrainOptions& options)
      : executable_(std::move(executable)), state_(std::move(state)), key_(key), options_(options) {}
  // The contents of a saved file.
  struct Saved {
    SlotValues state;
    Key key;
    int64_t steps;
  };
  absl::StatusOr<Saved> ReadSaved(const io::FileSystem& fs, absl::string_view path) const;
  // The outputs of the step program for this batch; the same for all processes, or an error in all.
  absl::StatusOr<std::vector<Array>> Outputs(const SlotValues& batch) const;
  absl::StatusOr<std::vector<Array>> OutputsOfAll(const SlotValues& batch) const;
  // Runs the step, and repeats it while its results are not finite.
  absl::StatusOr<std::vector<Array>> RunStep(std::vector<Array> args) const;

  Executable executable_;
  SlotValues state_;
  Key key_;
  TrainOptions options_;
  int64_t steps_ = 0;
};

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_TRAINER_H_
