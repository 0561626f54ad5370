#include "aqt/nn/train/trainer.h"

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/collective/collective.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/name_key.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/ops/collective/collective_ops.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/runtime/executable.h"
#include "aqt/transforms/parallel/data_parallel.h"
#include "aqt/transforms/precision/loss_scale.h"
#include "aqt/transforms/precision/scaled_arrays.h"

namespace aqt::nn {
namespace {

constexpr char kSteps[] = "steps", kKeyHigh[] = "key_hi", kKeyLow[] = "key_lo";
constexpr char kSetting[] = "setting:";  // prefix of its name

// Checks that `state` has exactly the program's inputs of kinds param and stat.
absl::Status CheckState(const Program& step, const SlotValues& state) {
  for (const Program::Port& port : step.inputs) {
    if (port.slot.kind != SlotKind::kParam && port.slot.kind != SlotKind::kStat) continue;
    const auto it = state.find(port.slot);
    if (it == state.end()) return absl::NotFoundError(absl::StrCat("no value for ", port.slot.ToString()));
    if (it->second.aval() != step.aval(port.var)) {
      return absl::InvalidArgumentError(absl::StrCat(port.slot.ToString(), " is ", it->second.aval().ToString(),
                                                     ", expected ", step.aval(port.var).ToString()));
    }
  }
  absl::flat_hash_set<std::string> inputs;
  for (const Program::Port& port : step.inputs) inputs.insert(port.slot.ToString());
  for (const auto& [slot, array] : state) {
    if (slot.kind != SlotKind::kParam && slot.kind != SlotKind::kStat) {
      return absl::InvalidArgumentError(
          absl::StrCat(slot.ToString(), " is not part of a training's state, which has only the kinds param and stat"));
    }
    if (!inputs.contains(slot.ToString())) {
      return absl::InvalidArgumentError(absl::StrCat("the program has no input ", slot.ToString()));
    }
  }
  return absl::OkStatus();
}

// Checks that the next step can start from the state after a step, and that its keys are those that Step gives.
absl::Status CheckStep(const Program& step) {
  for (const Program::Port& in : step.inputs) {
    const Aval& aval = step.aval(in.var);
    if (in.slot.kind == SlotKind::kFrozen) {
      return absl::InvalidArgumentError(
          absl::StrCat(in.slot.ToString(), " is an input, and a training has no frozen tensors: train in mode TRAIN"));
    }
    if (in.slot.kind == SlotKind::kKey && aval != Aval{DType::kU32, {2}}) {
      return absl::InvalidArgumentError(absl::StrCat(in.slot.ToString(), " is ", aval.ToString(), ", expected u32[2]"));
    }
    for (const Program::Port& out : step.outputs) {
      if (out.slot == in.slot && step.aval(out.var) != aval) {
        return absl::InvalidArgumentError(absl::StrCat(in.slot.ToString(), " is read as ", aval.ToString(),
                                                       " and written as ", step.aval(out.var).ToString()));
      }
    }
  }
  return absl::OkStatus();
}

// Reads a number as Save writes it: decimal digits without a sign, leading zeros or spaces.
absl::StatusOr<int64_t> Number(const std::map<std::string, std::string>& metadata, const char* key, int64_t max,
                               absl::string_view path) {
  const auto it = metadata.find(key);
  int64_t number;
  if (it != metadata.end() && absl::SimpleAtoi(it->second, &number) && number >= 0 && number <= max &&
      it->second == absl::StrCat(number)) {
    return number;
  }
  return absl::DataLossError(
      absl::StrCat(path, ": metadata \"", key, "\" is ",
                   it == metadata.end() ? "missing" : absl::StrCat("\"", io::Printable(it->second), "\""),
                   ", expected a number from 0 to ", max));
}

// Describes how the values of a setting differ. Null: not given.
std::string DifferenceText(const std::string* was, const std::string* is) {
  constexpr size_t kShort = 40;
  for (const std::string* text : {was, is}) {
    if (text != nullptr && text->size() > kShort) return "is not the same text";
  }
  const auto quoted = [](const std::string* text) {
    return text == nullptr ? "not given" : absl::StrCat("\"", io::Printable(*text), "\"");
  };
  return absl::StrCat("was ", quoted(was), " and is ", quoted(is));
}

// FailedPrecondition, naming the first setting that differs.
absl::Status CheckSettings(const std::map<std::string, std::string>& metadata,
                           const std::map<std::string, std::string>& settings, absl::string_view path) {
  std::map<std::string, std::pair<const std::string*, const std::string*>> both;
  for (const auto& [key, text] : metadata) {
    absl::string_view name = key;
    if (absl::ConsumePrefix(&name, kSetting)) both[std::string(name)].first = &text;
  }
  for (const auto& [name, text] : settings) both[name].second = &text;
  for (const auto& [name, texts] : both) {
    const auto [was, is] = texts;
    if (was != nullptr && is != nullptr && *was == *is) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is the state of a training with other settings: ", io::Printable(name), " ",
                     DifferenceText(was, is), "; go on with those of the file, or train anew"));
  }
  return absl::OkStatus();
}

// The key for an input in the step whose key is `key`.
Key KeyFor(const Slot& slot, Key key) { return slot.path == kSharedKeySlot ? key : FoldInName(key, slot.ToString()); }

// FailedPrecondition, naming the first rank that differs from rank 0, unless all processes have the same state, numbers
// and text.
absl::Status CheckAlike(Collective* collective, const SlotValues& state, Key key, int64_t steps,
                        absl::string_view text) {
  if (collective == nullptr) return absl::OkStatus();
  std::string all = absl::StrCat(text, " key ", key.hi, " ", key.lo, " steps ", steps);
  for (const auto& [slot, array] : state) {
    absl::StrAppend(&all, " ", slot.ToString(), array.aval().ToString(), ContentsText(array));
  }
  const uint32_t hash = HashOfName(all);
  std::vector<uint32_t> hashes(collective->size());
  AQT_RETURN_IF_ERROR(collective->AllGather(&hash, sizeof(hash), hashes.data()));
  for (int rank = 1; rank < collective->size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "process ", rank,
        " has another program, state, key, number of steps or other options than process 0; all must be the same"));
  }
  return absl::OkStatus();
}

// The options that affect the bits of a training or the messages between processes, besides those in the program.
std::string OptionsText(const TrainOptions& options) {
  std::string text = absl::StrCat(" redo_on_nan ", options.redo_on_nan, " float_sums ",
                                  static_cast<int>(options.data_parallel.float_sums));
  for (const std::string& path : options.data_parallel.whole) absl::StrAppend(&text, " whole ", path);
  for (const auto& [name, value] : options.settings) absl::StrAppend(&text, " setting ", name, " ", value);
  return text;
}

// A collective that remembers the error of a call. All processes then know it.
class Watched final : public Collective {
 public:
  explicit Watched(Collective& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    return Seen(group_.AllGather(in, bytes, out));
  }
  absl::Status AllToAll(const void* in, int64_t bytes, void* out) override {
    return Seen(group_.AllToAll(in, bytes, out));
  }
  absl::Status Broadcast(void* data, int64_t bytes, int root) override {
    return Seen(group_.Broadcast(data, bytes, root));
  }
  absl::StatusOr<std::unique_ptr<Collective>> Split(int color) override { return group_.Split(color); }
  absl::Status Fail(const absl::Status& error) override { return Seen(group_.Fail(error)); }

  // An error of this process becomes an error of all. It succeeds only if all processes do.
  absl::Status Finish(const absl::Status& own) {
    if (!failed_.ok()) return failed_;
    if (own.ok()) return group_.AllGather(nullptr, 0, nullptr);
    Fail(own).IgnoreError();  // returns Aborted
    return Annotate(own, absl::StrCat("process ", rank()));
  }

 private:
  absl::Status Seen(absl::Status status) {
    failed_.Update(status);
    return status;
  }

  Collective& group_;
  absl::Status failed_;
};

}  // namespace

absl::StatusOr<Trainer> Trainer::Make(const Program& loss, const Optimizer& optimizer, const SlotValues& params,
                                      Key key, const TrainOptions& options) {
  if (options.redo_on_nan < 0 || (options.redo_on_nan > 0 && !options.step.scaler.has_value())) {
    return absl::InvalidArgumentError(absl::StrCat("trainer: redo_on_nan = ", options.redo_on_nan,
                                                   "; expected 0 or more, and a scaler, without which each time is the "
                                                   "same"));
  }
  AQT_ASSIGN_OR_RETURN(Program step, TrainStep(loss, optimizer, options.step));
  if (options.transform) {
    AQT_ASSIGN_OR_RETURN(step, options.transform(step));
  }
  AQT_RETURN_IF_ERROR(Annotate(CheckStep(step), "trainer"));
  SlotValues state = params;
  if (options.step.scaler.has_value()) {
    for (auto& [slot, array] : InitialScalerState(*options.step.scaler)) state.try_emplace(slot, std::move(array));
  }
  AddMissingStats(step, state);
  AQT_RETURN_IF_ERROR(Annotate(CheckState(step, state), "trainer"));
  if (Collective* const group = options.collective; group != nullptr) {
    AQT_RETURN_IF_ERROR(
        Annotate(CheckAlike(group, state, key, 0, absl::StrCat(ToText(step), OptionsText(options))), "trainer"));
    AQT_ASSIGN_OR_RETURN(step, DataParallel(step, group->rank(), group->size(), options.data_parallel));
  }
  AQT_ASSIGN_OR_RETURN(Executable executable, Executable::Make(step, {.hooks = options.hooks}));
  return Trainer(std::move(executable), std::move(state), key, options);
}

absl::StatusOr<std::vector<Array>> Trainer::RunStep(std::vector<Array> args) const {
  const Program& step = program();
  const Slot finite{SlotKind::kData, kFiniteOutput};
  for (int repeats = 0;; ++repeats) {
    AQT_ASSIGN_OR_RETURN(std::vector<Array> outputs, executable_.Run(args));
    if (repeats == options_.redo_on_nan) return outputs;
    SlotValues scaler;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Slot& slot = step.outputs[i].slot;
      if (slot == finite && outputs[i].View<bool>()[0]) return outputs;
      if (IsScalerState(slot)) scaler.emplace(slot, outputs[i]);
    }
    for (size_t i = 0; i < args.size(); ++i) {
      if (const auto it = scaler.find(step.inputs[i].slot); it != scaler.end()) args[i] = it->second;
    }
  }
}

absl::StatusOr<std::vector<Array>> Trainer::Outputs(const SlotValues& batch) const {
  if (steps_ >= kMaxSteps) {
    return absl::OutOfRangeError(
        absl::StrCat("trainer: ", steps_, " steps are done, and after ", kMaxSteps, " their keys repeat"));
  }
  for (const auto& [slot, array] : batch) {
    if (slot.kind != SlotKind::kData) {
      return absl::InvalidArgumentError(
          absl::StrCat("trainer: the batch has ", slot.ToString(), "; expected only values of kind data"));
    }
  }
  const Program& step = program();
  const Key key = FoldIn(key_, static_cast<uint32_t>(steps_));
  std::vector<Array> args;
  args.reserve(step.inputs.size());
  for (const Program::Port& port : step.inputs) {
    if (port.slot.kind == SlotKind::kKey) {
      const Key own = KeyFor(port.slot, key);
      args.push_back(Array::Of<uint32_t>({own.hi, own.lo}, {2}));
      continue;
    }
    const SlotValues& values = port.slot.kind == SlotKind::kData ? batch : state_;
    const auto it = values.find(port.slot);
    if (it == values.end()) {
      return absl::NotFoundError(
          absl::StrCat("trainer: no value for input ", port.slot.ToString(), ", ", step.aval(port.var).ToString()));
    }
    args.push_back(it->second);
  }
  return RunStep(std::move(args));
}

absl::StatusOr<std::vector<Array>> Trainer::OutputsOfAll(const SlotValues& batch) const {
  if (options_.collective == nullptr) return Outputs(batch);
  Watched group(*options_.collective);
  const UseCollective exchanges(&group);
  absl::StatusOr<std::vector<Array>> outputs = Outputs(batch);
  AQT_RETURN_IF_ERROR(group.Finish(outputs.status()));
  return outputs;
}

absl::StatusOr<SlotValues> Trainer::Step(const SlotValues& batch) {
  AQT_ASSIGN_OR_RETURN(std::vector<Array> outputs, OutputsOfAll(batch));
  const Program& step = program();
  SlotValues results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Slot& slot = step.outputs[i].slot;
    const auto it = state_.find(slot);
    (it == state_.end() ? results[slot] : it->second) = std::move(outputs[i]);
  }
  ++steps_;
  return results;
}

SlotValues Trainer::params() const {
  SlotValues params;
  for (const auto& [slot, array] : state_) {
    if (slot.kind == SlotKind::kParam) params.emplace(slot, array);
  }
  return params;
}

absl::StatusOr<SlotValues> Trainer::ema_params() const {
  if (!options_.step.ema.has_value()) {
    return absl::FailedPreconditionError(
        "trainer: this training keeps no moving average of its parameters; set StepOptions::ema");
  }
  AQT_ASSIGN_OR_RETURN(const SlotValues plain, AsArrays(state_));
  return EmaParams(*options_.step.ema, plain);
}

absl::Status Trainer::Save(const io::FileSystem& fs, absl::string_view path) const {
  StateFile file{state_, {}};
  file.metadata[kSteps] = absl::StrCat(steps_);
  file.metadata[kKeyHigh] = absl::StrCat(key_.hi);
  file.metadata[kKeyLow] = absl::StrCat(key_.lo);
  for (const auto& [name, text] : options_.settings) file.metadata[absl::StrCat(kSetting, name)] = text;
  Collective* const group = options_.collective;
  if (group == nullptr) return SaveState(fs, path, file);
  return AgreeOn(*group, group->rank() == 0 ? SaveState(fs, path, file) : absl::OkStatus());
}

absl::StatusOr<Trainer::Saved> Trainer::ReadSaved(const io::FileSystem& fs, absl::string_view path) const {
  AQT_ASSIGN_OR_RETURN(StateFile file, LoadState(fs, path));
  if (const absl::Status status = CheckState(program(), file.state); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is the state of another program: ", status.message()));
  }
  AQT_RETURN_IF_ERROR(CheckSettings(file.metadata, options_.settings, path));
  constexpr int64_t kMaxWord = std::numeric_limits<uint32_t>::max();
  AQT_ASSIGN_OR_RETURN(const int64_t steps, Number(file.metadata, kSteps, kMaxSteps, path));
  AQT_ASSIGN_OR_RETURN(const int64_t high, Number(file.metadata, kKeyHigh, kMaxWord, path));
  AQT_ASSIGN_OR_RETURN(const int64_t low, Number(file.metadata, kKeyLow, kMaxWord, path));
  return Saved{std::move(file.state), {static_cast<uint32_t>(high), static_cast<uint32_t>(low)}, steps};
}

absl::Status Trainer::Restore(const io::FileSystem& fs, absl::string_view path) {
  absl::StatusOr<Saved> saved = ReadSaved(fs, path);
  if (Collective* const group = options_.collective; group != nullptr) {
    AQT_RETURN_IF_ERROR(AgreeOn(*group, saved.status()));
    AQT_RETURN_IF_ERROR(Annotate(CheckAlike(group, saved->state, saved->key, saved->steps, ""), path));
  }
  if (!saved.ok()) return saved.status();
  state_ = std::move(saved->state);
  steps_ = saved->steps;
  key_ = saved->key;
  return absl::OkStatus();
}

}  // namespace aqt::nn
