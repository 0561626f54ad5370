#include "aqt/runtime/executable.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/block_epilogue.h"
#include "aqt/core/memory_source.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/eval_op.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/interpret.h"
#include "aqt/runtime/fusion/fused_program.h"
#include "aqt/runtime/memory/array_pool.h"
#include "aqt/runtime/memory/buffer_pool.h"
#include "aqt/runtime/plan.h"
#include "aqt/runtime/profile.h"
#include "aqt/transforms/simplify.h"

namespace aqt {
namespace {

using internal::Place;
using internal::Plan;
using internal::PlannedStep;
using internal::Variable;

// The memory of an output.
struct Range {
  const char *begin, *end;
  size_t output;
};

// The memory of one call.
struct Frame {
  std::shared_ptr<void> arena;
  std::vector<void*> pointers;  // by variable, for roots
  // The owners of elements outside the arena, by variable. Those of constants stay from call to call.
  std::vector<std::shared_ptr<const void>> holders;
  std::vector<const void*> in;  // of one step
  std::vector<void*> out;
  std::vector<const void*> epilogue_in;
  std::vector<void*> epilogue_out;
  std::vector<Array> operands;
  std::vector<Range> outputs;  // those with elements

  char* arena_at(int64_t offset) const { return static_cast<char*>(arena.get()) + offset; }
};

}  // namespace

struct Executable::Impl {
  class FrameOfCall;

  const Program program;  // as passed to Make
  const Plan plan;
  const EvalHooks hooks;
  const int64_t id = Profile::NewOwner();
  size_t most_in = 0, most_out = 0;  // of any step
  std::vector<VarId> held;           // variables whose holders change from call to call
  std::mutex mutex;
  std::vector<std::unique_ptr<Frame>> free_frames;  // guarded by mutex

  internal::BufferPool outputs;        // keeps one set of them
  mutable internal::ArrayPool arrays;  // for operations that allocate their results

  Impl(const Program& given, Plan made, EvalHooks given_hooks)
      : program(given),
        plan(std::move(made)),
        hooks(std::move(given_hooks)),
        outputs(plan.output_bytes),
        arrays(plan.array_bytes) {
    for (const PlannedStep& step : plan.steps) {
      most_in = std::max(most_in, step.in.size());
      most_out = std::max(most_out, step.out.size());
    }
    for (size_t var = 0; var < plan.variables.size(); ++var) {
      const Place place = plan.variables[var].place;
      if (place != Place::kNone && place != Place::kConstant && place != Place::kArena) {
        held.push_back(static_cast<VarId>(var));
      }
    }
  }

  std::unique_ptr<Frame> NewFrame() const;
  std::unique_ptr<Frame> TakeFrame();
  void GiveFrame(std::unique_ptr<Frame> frame);

  // InvalidArgument if an output overlaps another output, or an argument that it may not update.
  absl::Status CheckMemory(absl::Span<const Array> args, absl::Span<const MutableArrayRef> outputs, Frame& frame) const;
  // Runs all steps; the frame has the memory of the outputs.
  absl::Status RunSteps(absl::Span<const Array> args, Frame& frame, Profile* profile) const;
  absl::Status RunStep(const PlannedStep& step, Frame& frame, Executor* executor) const;
  // `memory` and `epilogue`: as in Composite::EvalInto; null without an epilogue.
  absl::Status RunByEval(const PlannedStep& step, Frame& frame, void* memory = nullptr,
                         BlockEpilogue* epilogue = nullptr) const;
  absl::Status RunWithEpilogue(const PlannedStep& step, Frame& frame, Executor* executor) const;
  // Skips inference: operands and outputs were inferred when the program was checked.
  absl::StatusOr<std::vector<Array>> EvalComposite(const Composite& composite, const Equation& eqn,
                                                   absl::Span<const Array> operands, absl::Span<const bool> needed,
                                                   void* memory, BlockEpilogue* epilogue) const;
  std::vector<Profile::Step> ProfiledSteps() const;
  // The elements of a variable. They have no owner if they are in the arena, so a cache that watches its operands'
  // owners treats them as dead.
  Array ArrayOf(const Frame& frame, VarId var) const {
    const VarId root = plan.variables[var].root;
    const std::shared_ptr<const void>& holder = frame.holders[root];
    const Aval& aval = plan.program.aval(var);
    return holder != nullptr ? Array(aval, holder) : Array::Unowned(aval, frame.pointers[root]);
  }
};

// A frame for one call.
class Executable::Impl::FrameOfCall {
 public:
  explicit FrameOfCall(Impl& impl) : impl_(impl), frame_(impl.TakeFrame()) {}
  ~FrameOfCall() { impl_.GiveFrame(std::move(frame_)); }
  FrameOfCall(const FrameOfCall&) = delete;
  FrameOfCall& operator=(const FrameOfCall&) = delete;
  Frame& operator*() { return *frame_; }
  Frame* operator->() { return frame_.get(); }

 private:
  Impl& impl_;
  std::unique_ptr<Frame> frame_;
};

std::unique_ptr<Frame> Executable::Impl::NewFrame() const {
  auto frame = std::make_unique<Frame>();
  frame->arena = AllocateUninitialized(plan.arena_bytes);
  frame->pointers.resize(plan.variables.size());
  frame->holders.resize(plan.variables.size());
  for (size_t var = 0; var < plan.variables.size(); ++var) {
    const Variable& own = plan.variables[var];
    if (own.place == Place::kArena) frame->pointers[var] = frame->arena_at(own.offset);
  }
  for (const auto& [var, array] : plan.program.consts) {
    frame->holders[var] = array.buffer();
    frame->pointers[var] = const_cast<void*>(array.data());
  }
  frame->in.resize(most_in);
  frame->out.resize(most_out);
  frame->epilogue_in.resize(most_in + 1);  // a step's operands and the product
  frame->epilogue_out.resize(most_out);
  frame->operands.reserve(most_in);
  frame->outputs.reserve(plan.program.outputs.size());
  return frame;
}

std::unique_ptr<Frame> Executable::Impl::TakeFrame() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!free_frames.empty()) {
      std::unique_ptr<Frame> frame = std::move(free_frames.back());
      free_frames.pop_back();
      return frame;
    }
  }
  return NewFrame();
}

void Executable::Impl::GiveFrame(std::unique_ptr<Frame> frame) {
  for (const VarId var : held) frame->holders[var].reset();
  const std::lock_guard<std::mutex> lock(mutex);
  free_frames.push_back(std::move(frame));
}

absl::StatusOr<std::vector<Array>> Executable::Impl::EvalComposite(const Composite& composite, const Equation& eqn,
                                                                   absl::Span<const Array> operands,
                                                                   absl::Span<const bool> needed, void* memory,
                                                                   BlockEpilogue* epilogue) const {
  const SuspendTrace suspend;
  AQT_ASSIGN_OR_RETURN(std::vector<Array> out, memory != nullptr
                                                   ? composite.EvalInto(operands, needed, memory, epilogue)
                                                   : composite.Eval(operands, needed));
  bool fits = out.size() == eqn.out.size();
  for (size_t i = 0; fits && i < out.size(); ++i) {
    fits = !needed[i] || out[i].aval() == plan.program.aval(eqn.out[i]);
  }
  if (!fits) return absl::InternalError("evaluation gave other outputs than were inferred");
  return out;
}

absl::Status Executable::Impl::RunByEval(const PlannedStep& step, Frame& frame, void* memory,
                                         BlockEpilogue* epilogue) const {
  const Equation& eqn = plan.program.eqns[step.eqns[0]];
  frame.operands.clear();
  for (const VarId var : eqn.in) frame.operands.push_back(ArrayOf(frame, var));
  const auto* composite = std::get_if<CompositeOp>(&eqn.op);
  const UseMemorySource use(&arrays);
  absl::StatusOr<std::vector<Array>> results =
      composite != nullptr ? EvalComposite(*composite->impl, eqn, frame.operands, step.needed, memory, epilogue)
                           : EvalOp(eqn.op, frame.operands, step.needed);
  frame.operands.clear();
  if (!results.ok()) return DescribeError(results.status(), plan.program, eqn);
  for (size_t i = memory != nullptr ? 1 : 0; i < eqn.out.size(); ++i) {
    const VarId var = step.out[i];
    if (var < 0) continue;
    Array result = std::move((*results)[i]);
    // An operation may return an operand; its memory in the arena will be overwritten.
    const char* const data = static_cast<const char*>(result.data());
    if (data >= frame.arena_at(0) && data < frame.arena_at(plan.arena_bytes)) result = Array::CopyOf(result);
    frame.holders[var] = result.buffer();
    frame.pointers[var] = const_cast<void*>(result.data());
  }
  return absl::OkStatus();
}

// The epilogue runs on blocks of the product as they are computed; or after the product, if that does not run it.
absl::Status Executable::Impl::RunWithEpilogue(const PlannedStep& step, Frame& frame, Executor* executor) const {
  const internal::StepEpilogue& own = *step.epilogue;
  void* const product = frame.pointers[own.memory];
  char* const scratch = frame.arena_at(step.scratch_offset);
  for (size_t i = 0; i < own.in.size(); ++i) {
    frame.epilogue_in[i] = own.in[i] == own.product ? product : frame.pointers[own.in[i]];
  }
  for (size_t i = 0; i < own.out.size(); ++i) frame.epilogue_out[i] = frame.pointers[own.out[i]];
  internal::FusedEpilogue epilogue(
      *own.fused, {frame.epilogue_in.data(), frame.epilogue_out.data(), scratch + own.scratch_at, executor});
  if (step.kernel.has_value()) {
    for (size_t i = 0; i < step.in.size(); ++i) frame.in[i] = frame.pointers[step.in[i]];
    frame.out[0] = product;
    step.kernel->run({frame.in.data(), frame.out.data(), scratch, executor, &epilogue});
  } else {
    AQT_RETURN_IF_ERROR(RunByEval(step, frame, product, &epilogue));
  }
  epilogue.Finish();
  return absl::OkStatus();
}

absl::Status Executable::Impl::RunStep(const PlannedStep& step, Frame& frame, Executor* executor) const {
  if (step.epilogue.has_value()) return RunWithEpilogue(step, frame, executor);
  if (!step.kernel.has_value()) return RunByEval(step, frame);
  for (size_t i = 0; i < step.in.size(); ++i) frame.in[i] = frame.pointers[step.in[i]];
  for (size_t i = 0; i < step.out.size(); ++i) {
    frame.out[i] = step.out[i] < 0 ? nullptr : frame.pointers[step.out[i]];
  }
  step.kernel->run({frame.in.data(), frame.out.data(), frame.arena_at(step.scratch_offset), executor});
  return absl::OkStatus();
}

absl::Status Executable::Impl::RunSteps(absl::Span<const Array> args, Frame& frame, Profile* profile) const {
  for (size_t i = 0; i < args.size(); ++i) {
    const VarId var = plan.program.inputs[i].var;
    frame.holders[var] = args[i].buffer();
    frame.pointers[var] = const_cast<void*>(args[i].data());
  }
  Executor* const executor = CurrentExecutor();
  if (profile == nullptr) profile = Profile::OfProcess();
  const int first = profile == nullptr ? 0 : profile->Register(id, ProfiledSteps());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const PlannedStep& step = plan.steps[i];
    if (profile == nullptr) {
      AQT_RETURN_IF_ERROR(RunStep(step, frame, executor));
    } else {
      const Profile::Clock::time_point start = Profile::Clock::now();
      AQT_RETURN_IF_ERROR(RunStep(step, frame, executor));
      profile->Add(first + static_cast<int>(i), start, Profile::Clock::now());
    }
    for (const VarId var : step.ends) frame.holders[var].reset();
  }
  return absl::OkStatus();
}

std::vector<Profile::Step> Executable::Impl::ProfiledSteps() const {
  const Program& program = plan.program;
  std::vector<Profile::Step> steps;
  for (const PlannedStep& step : plan.steps) {
    const Equation& main = program.eqns[step.epilogue.has_value() ? step.eqns.front() : step.eqns.back()];
    Profile::Step profiled{OpName(main.op), OpName(main.op), program.scope(main), 0};
    if (step.eqns.size() > 1) {
      std::vector<std::string> names;  // without broadcasts, which are parts of other equations
      for (size_t i = step.epilogue.has_value() ? 1 : 0; i < step.eqns.size(); ++i) {
        const Op& op = program.eqns[step.eqns[i]].op;
        if (!std::holds_alternative<BroadcastOp>(op)) names.push_back(OpName(op));
      }
      const size_t shown = std::min<size_t>(names.size(), 8);
      const std::string fused =
          absl::StrCat("fused: ", absl::StrJoin(names.begin(), names.begin() + shown, ", "),
                       names.size() > shown ? absl::StrCat(" and ", names.size() - shown, " more") : "");
      if (step.epilogue.has_value()) {
        profiled.name = absl::StrCat(profiled.name, ", ", fused);
      } else {
        profiled.name = fused;
        profiled.kind = "fused";
      }
    }
    for (const VarId var : step.in) profiled.bytes += program.aval(var).num_bytes();
    for (const VarId var : step.out) profiled.bytes += var < 0 ? 0 : program.aval(var).num_bytes();
    steps.push_back(std::move(profiled));
  }
  return steps;
}

absl::Status Executable::Impl::CheckMemory(absl::Span<const Array> args, absl::Span<const MutableArrayRef> outputs,
                                           Frame& frame) const {
  const auto output = [&](size_t i) {
    return absl::StrCat("eval: the memory of output ", program.outputs[i].slot.ToString());
  };
  std::vector<Range>& ranges = frame.outputs;
  ranges.clear();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const char* const begin = static_cast<const char*>(outputs[i].data);
    const int64_t bytes = program.aval(program.outputs[i].var).num_bytes();
    if (bytes > 0) ranges.push_back({begin, begin + bytes, i});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].end <= ranges[i].begin) continue;
    const auto [first, second] = std::minmax(ranges[i - 1].output, ranges[i].output);
    return absl::InvalidArgumentError(absl::StrCat(output(second), " overlaps that of output ",
                                                   program.outputs[first].slot.ToString(),
                                                   "; use separate memory for each"));
  }
  for (size_t arg = 0; arg < args.size(); ++arg) {
    const char* const begin = static_cast<const char*>(args[arg].data());
    const char* const end = begin + args[arg].num_bytes();
    if (begin == end) continue;
    auto range = std::partition_point(ranges.begin(), ranges.end(), [&](const Range& r) { return r.end <= begin; });
    for (; range != ranges.end() && range->begin < end; ++range) {
      const bool same = range->begin == begin && range->end == end;
      const bool may_update = plan.MayUpdate(arg, range->output);
      if (same && may_update && !args[arg].owns_memory()) continue;
      const absl::string_view why = !same         ? "but is not the same"
                                    : !may_update ? "which is still needed when the output is written"
                                                  : "an array that must not change; pass it as Array::Unowned";
      return absl::InvalidArgumentError(absl::StrCat(output(range->output), " overlaps that of argument ",
                                                     program.inputs[arg].slot.ToString(), ", ", why,
                                                     "; otherwise use separate memory for the output"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Executable> Executable::Make(const Program& program, const ExecutableOptions& options) {
  AQT_RETURN_IF_ERROR(Check(program));
  const Program simple = internal::WithoutTransposedProducts(internal::WithRelusAsMaxima(program));
  return Executable(
      std::make_shared<Impl>(program, internal::MakePlan(simple, options.fuse, options.epilogues), options.hooks));
}

absl::StatusOr<std::vector<Array>> Executable::Run(absl::Span<const Array> args, Profile* profile) const {
  if (impl_->hooks.any()) return Eval(impl_->program, args, impl_->hooks);
  AQT_RETURN_IF_ERROR(internal::ExpectArguments(impl_->plan.program, args));
  const Plan& plan = impl_->plan;
  const std::vector<Program::Port>& outputs = plan.program.outputs;
  Impl::FrameOfCall frame(*impl_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (plan.primary[i] != static_cast<int>(i)) continue;
    const VarId root = plan.variables[outputs[i].var].root;
    const std::shared_ptr<void> memory = impl_->outputs.Take(plan.variables[root].bytes);
    frame->holders[root] = memory;
    frame->pointers[root] = memory.get();
  }
  AQT_RETURN_IF_ERROR(impl_->RunSteps(args, *frame, profile));
  std::vector<Array> results;
  results.reserve(outputs.size());
  for (const Program::Port& port : outputs) results.push_back(impl_->ArrayOf(*frame, port.var));
  return results;
}

absl::Status Executable::RunInto(absl::Span<const Array> args, absl::Span<const MutableArrayRef> outputs,
                                 Profile* profile) const {
  AQT_RETURN_IF_ERROR(internal::ExpectArguments(impl_->plan.program, args));
  const Plan& plan = impl_->plan;
  const std::vector<Program::Port>& ports = plan.program.outputs;
  if (outputs.size() != ports.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("eval: the program has ", ports.size(), " outputs, got memory for ", outputs.size()));
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    const Aval& aval = plan.program.aval(ports[i].var);
    if (outputs[i].dtype != aval.dtype || outputs[i].shape != aval.shape || !outputs[i].IsDense()) {
      return absl::InvalidArgumentError(absl::StrCat("eval: output ", ports[i].slot.ToString(), " is ", aval.ToString(),
                                                     ", got ", outputs[i].IsDense() ? "" : "strided ", "memory for ",
                                                     outputs[i].aval().ToString()));
    }
  }
  Impl::FrameOfCall frame(*impl_);
  AQT_RETURN_IF_ERROR(impl_->CheckMemory(args, outputs, *frame));
  if (impl_->hooks.any()) {
    AQT_ASSIGN_OR_RETURN(const std::vector<Array> results, Eval(impl_->program, args, impl_->hooks));
    for (size_t i = 0; i < ports.size(); ++i) AQT_RETURN_IF_ERROR(CopyArray(results[i], outputs[i]));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    if (plan.primary[i] != static_cast<int>(i)) continue;
    const VarId root = plan.variables[ports[i].var].root;
    frame->pointers[root] = outputs[i].data;
  }
  AQT_RETURN_IF_ERROR(impl_->RunSteps(args, *frame, profile));
  for (size_t i = 0; i < ports.size(); ++i) {
    if (plan.primary[i] == static_cast<int>(i)) continue;
    const size_t bytes = plan.program.aval(ports[i].var).num_bytes();
    if (bytes > 0) std::memcpy(outputs[i].data, frame->pointers[plan.variables[ports[i].var].root], bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<SlotValues> Executable::RunSlots(const SlotValues& values) const {
  const Program& program = impl_->plan.program;
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> args, internal::ArgumentsOf(program, values));
  AQT_ASSIGN_OR_RETURN(std::vector<Array> outputs, Run(args));
  return internal::OutputsByName(program, std::move(outputs));
}

bool Executable::MayUpdate(size_t argument, size_t output) const { return impl_->plan.MayUpdate(argument, output); }
const Program& Executable::program() const { return impl_->program; }
int64_t Executable::arena_bytes() const { return impl_->plan.arena_bytes; }
int64_t Executable::peak_bytes() const {
  return impl_->plan.arena_bytes + impl_->plan.output_bytes + impl_->plan.array_bytes;
}
std::string Executable::ToString() const { return impl_->plan.ToString(); }

}  // namespace aqt
