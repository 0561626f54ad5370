#include "aqt/runtime/executable.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>
#include <variant>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/memory_source.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/interpret.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/runtime/arena_pool.h"
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
  ArenaPool::Arena shared;      // the same, if it is from ExecutableOptions::arenas
  std::vector<void*> pointers;  // by variable, for roots
  std::vector<const void*> in;  // of one step
  std::vector<void*> out;
  std::vector<const void*> epilogue_in;
  std::vector<void*> epilogue_out;
  std::vector<Range> outputs;  // those with elements

  char* arena_at(int64_t offset) const { return static_cast<char*>(arena.get()) + offset; }
  // `in` and `out` of the step.
  void SetPointers(const PlannedStep& step) {
    for (size_t i = 0; i < step.in.size(); ++i) in[i] = pointers[step.in[i]];
    for (size_t i = 0; i < step.out.size(); ++i) out[i] = step.out[i] < 0 ? nullptr : pointers[step.out[i]];
  }
};

}  // namespace

struct Executable::Impl {
  class FrameOfCall;

  const Program program;  // as passed to Make
  const Plan plan;
  const EvalHooks hooks;
  const std::shared_ptr<ArenaPool> arenas;  // may be null
  const int64_t id = Profile::NewOwner();
  size_t most_in = 0, most_out = 0;  // of a step
  std::mutex mutex;
  std::vector<std::unique_ptr<Frame>> free_frames;  // guarded by mutex

  internal::BufferPool outputs;        // keeps a set of them
  mutable internal::ArrayPool arrays;  // that operations make which run as in Eval

  Impl(const Program& given, Plan made, const ExecutableOptions& options)
      : program(given),
        plan(std::move(made)),
        hooks(options.hooks),
        arenas(options.arenas),
        outputs(plan.output_bytes),
        arrays(plan.array_bytes) {
    for (const PlannedStep& step : plan.steps) {
      most_in = std::max(most_in, step.in.size());
      most_out = std::max(most_out, step.out.size());
    }
  }

  std::unique_ptr<Frame> NewFrame() const;
  void SetArena(std::shared_ptr<void> arena, Frame& frame) const;
  std::unique_ptr<Frame> TakeFreeFrame();
  std::unique_ptr<Frame> TakeFrame();
  void GiveFrame(std::unique_ptr<Frame> frame);

  // InvalidArgument if an output overlaps another output, or an argument that it may not update.
  absl::Status CheckMemory(absl::Span<const Array> args, absl::Span<const MutableArrayRef> outputs, Frame& frame) const;
  // Runs all steps; the frame has the memory of the outputs.
  absl::Status RunSteps(absl::Span<const Array> args, Frame& frame, Profile* profile) const;
  absl::Status RunStep(const PlannedStep& step, Frame& frame, Executor* executor) const;
  absl::Status RunKernel(const PlannedStep& step, const KernelCall& call) const;
  absl::Status RunWithEpilogue(const PlannedStep& step, Frame& frame, Executor* executor) const;
  std::vector<Profile::Step> ProfiledSteps() const;
  // An output of a call; `memory` is that of output number `primary`, which it is in.
  Array OutputOf(const Program::Port& port, absl::Span<const Array> args,
                 absl::Span<const std::shared_ptr<void>> memory) const;
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

void Executable::Impl::SetArena(std::shared_ptr<void> arena, Frame& frame) const {
  frame.arena = std::move(arena);
  for (size_t var = 0; var < plan.variables.size(); ++var) {
    const Variable& own = plan.variables[var];
    if (own.place == Place::kArena) frame.pointers[var] = frame.arena_at(own.offset);
  }
}

std::unique_ptr<Frame> Executable::Impl::NewFrame() const {
  auto frame = std::make_unique<Frame>();
  frame->pointers.resize(plan.variables.size());
  for (const auto& [var, array] : plan.program.consts) {
    frame->pointers[var] = const_cast<void*>(array.data());
  }
  frame->in.resize(most_in);
  frame->out.resize(most_out);
  frame->epilogue_in.resize(most_in + 1);  // a step's operands and the product
  frame->epilogue_out.resize(most_out);
  frame->outputs.reserve(plan.program.outputs.size());
  if (arenas == nullptr) SetArena(AllocateUninitialized(plan.arena_bytes), *frame);
  return frame;
}

std::unique_ptr<Frame> Executable::Impl::TakeFreeFrame() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (free_frames.empty()) return nullptr;
  std::unique_ptr<Frame> frame = std::move(free_frames.back());
  free_frames.pop_back();
  return frame;
}

std::unique_ptr<Frame> Executable::Impl::TakeFrame() {
  std::unique_ptr<Frame> frame = TakeFreeFrame();
  if (frame == nullptr) frame = NewFrame();
  if (arenas != nullptr) {
    frame->shared = arenas->Take(plan.arena_bytes);
    SetArena(frame->shared.memory, *frame);
  }
  return frame;
}

void Executable::Impl::GiveFrame(std::unique_ptr<Frame> frame) {
  if (arenas != nullptr) {
    frame->arena = nullptr;
    arenas->Give(std::move(frame->shared));
  }
  const std::lock_guard<std::mutex> lock(mutex);
  free_frames.push_back(std::move(frame));
}

Array Executable::Impl::OutputOf(const Program::Port& port, absl::Span<const Array> args,
                                 absl::Span<const std::shared_ptr<void>> memory) const {
  const VarId root = plan.variables[port.var].root;
  const Variable& own = plan.variables[root];
  const Aval& aval = plan.program.aval(port.var);
  switch (own.place) {
    case Place::kArgument: return Array(aval, args[own.index].buffer());
    case Place::kConstant: return Array(aval, plan.program.consts.at(root).buffer());
    default: return Array(aval, memory[own.index]);
  }
}

absl::Status Executable::Impl::RunKernel(const PlannedStep& step, const KernelCall& call) const {
  absl::Status status;
  if (step.kernel.array_bytes == 0) {
    status = step.kernel.run(call);
  } else {
    const UseMemorySource use(&arrays);
    status = step.kernel.run(call);
  }
  return status.ok() ? status : DescribeError(status, plan.program, plan.program.eqns[step.eqns[0]]);
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
  frame.SetPointers(step);
  frame.out[0] = product;
  AQT_RETURN_IF_ERROR(RunKernel(step, {frame.in.data(), frame.out.data(), scratch, executor, &epilogue}));
  epilogue.Finish();
  return absl::OkStatus();
}

absl::Status Executable::Impl::RunStep(const PlannedStep& step, Frame& frame, Executor* executor) const {
  if (step.epilogue.has_value()) return RunWithEpilogue(step, frame, executor);
  frame.SetPointers(step);
  return RunKernel(step, {frame.in.data(), frame.out.data(), frame.arena_at(step.scratch_offset), executor});
}

absl::Status Executable::Impl::RunSteps(absl::Span<const Array> args, Frame& frame, Profile* profile) const {
  for (size_t i = 0; i < args.size(); ++i) {
    frame.pointers[plan.program.inputs[i].var] = const_cast<void*>(args[i].data());
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
  AQT_ASSIGN_OR_RETURN(Plan plan, internal::MakePlan(simple, options.fuse, options.epilogues));
  return Executable(std::make_shared<Impl>(program, std::move(plan), options));
}

absl::StatusOr<std::vector<Array>> Executable::Run(absl::Span<const Array> args, Profile* profile) const {
  if (impl_->hooks.any()) return Eval(impl_->program, args, impl_->hooks);
  AQT_RETURN_IF_ERROR(internal::ExpectArguments(impl_->plan.program, args));
  const Plan& plan = impl_->plan;
  const std::vector<Program::Port>& outputs = plan.program.outputs;
  Impl::FrameOfCall frame(*impl_);
  absl::InlinedVector<std::shared_ptr<void>, 4> memory(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (plan.primary[i] != static_cast<int>(i)) continue;
    const VarId root = plan.variables[outputs[i].var].root;
    memory[i] = impl_->outputs.Take(plan.variables[root].bytes);
    frame->pointers[root] = memory[i].get();
  }
  AQT_RETURN_IF_ERROR(impl_->RunSteps(args, *frame, profile));
  std::vector<Array> results;
  results.reserve(outputs.size());
  for (const Program::Port& port : outputs) results.push_back(impl_->OutputOf(port, args, memory));
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
