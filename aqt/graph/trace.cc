#include "aqt/graph/trace.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/eval_op.h"

namespace aqt {
namespace internal {

// Builds the program of one trace.
class Recorder {
 public:
  Recorder() : id_(NextId()) {}

  // Refuses poisoned values and values of other traces.
  absl::StatusOr<VarId> VarOf(const Value& value) {
    if (const Value::TracedVar* traced = value.traced()) {
      if (traced->trace == id_) return traced->var;
      return absl::FailedPreconditionError(
          absl::StrCat("a traced ", value.aval().ToString(),
                       " is used outside of the trace that made it: pass it as an input, or return it as an output"));
    }
    const Array* array = value.array();
    if (array == nullptr) return value.status();
    const VarId var = NewVar(array->aval());
    program_.consts.emplace(var, *array);
    return var;
  }

  std::vector<Value> Record(const Op& op, absl::InlinedVector<VarId, 3> in, std::vector<Aval> out,
                            absl::string_view scope, const SourceLine& where) {
    Equation eqn{op, std::move(in), {}, program_.scopes.Intern(scope), where};
    std::vector<Value> values;
    for (Aval& aval : out) {
      eqn.out.push_back(NewVar(aval));
      values.push_back(Value::Traced(std::move(aval), {id_, eqn.out.back()}));
    }
    program_.eqns.push_back(std::move(eqn));
    return values;
  }

  absl::StatusOr<Value> Input(const Slot& slot, const Aval& aval) {
    AQT_RETURN_IF_ERROR(Annotate(CheckShape(aval.shape), absl::StrCat("input ", slot.ToString())));
    const auto [it, inserted] = input_of_slot_.try_emplace(slot.ToString(), program_.inputs.size());
    if (inserted) program_.inputs.push_back({NewVar(aval), slot});
    const VarId var = program_.inputs[it->second].var;
    if (program_.aval(var) != aval) {
      return absl::InvalidArgumentError(absl::StrCat("input ", slot.ToString(), " is ", program_.aval(var).ToString(),
                                                     " and wanted as ", aval.ToString()));
    }
    return Value::Traced(aval, {id_, var});
  }

  bool HasInput(const Slot& slot) const { return input_of_slot_.contains(slot.ToString()); }

  // Marks the current inputs as the caller's.
  void EndGivenInputs() { num_given_ = static_cast<int64_t>(program_.inputs.size()); }

  absl::Status AddWritten(const Slot& slot, const Value& value) {
    AQT_ASSIGN_OR_RETURN(const VarId var, VarOf(value));
    for (const Program::Port& port : written_) {
      if (port.slot == slot) {
        return absl::AlreadyExistsError(absl::StrCat(
            "output ", slot.ToString(), " is written twice: a named scope around each use tells them apart"));
      }
    }
    written_.push_back({var, slot});
    return absl::OkStatus();
  }

  bool TakeName(absl::string_view name) { return taken_names_.insert(std::string(name)).second; }
  bool IsNameTaken(absl::string_view name) const { return taken_names_.contains(name); }

  absl::StatusOr<Program> Finish(absl::Span<const Value> outputs, absl::Span<const Slot> slots) {
    if (!slots.empty() && slots.size() != outputs.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("trace: the function returned ", outputs.size(), " values for ", slots.size(), " output slots"));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      absl::StatusOr<VarId> var = VarOf(outputs[i]);
      if (!var.ok()) return Annotate(var.status(), absl::StrCat("trace: output ", i));
      program_.outputs.push_back({*var, slots.empty() ? Slot{SlotKind::kData, absl::StrCat(i)} : slots[i]});
    }
    for (Program::Port& port : written_) program_.outputs.push_back(std::move(port));
    // Inputs that the function added are sorted by kind: the order of kinds does not depend on which was used first.
    std::stable_sort(program_.inputs.begin() + num_given_, program_.inputs.end(),
                     [](const Program::Port& a, const Program::Port& b) { return a.slot.kind < b.slot.kind; });
    absl::flat_hash_set<std::string> names;
    for (const Program::Port& port : program_.outputs) {
      if (!names.insert(port.slot.ToString()).second) {
        return absl::AlreadyExistsError(absl::StrCat("trace: two outputs are named ", port.slot.ToString()));
      }
    }
    AQT_RETURN_IF_ERROR(Check(program_));
    return std::move(program_);
  }

  absl::Status error;

 private:
  static uint64_t NextId() {
    static std::atomic<uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
  }

  VarId NewVar(Aval aval) {
    program_.vars.push_back(std::move(aval));
    return static_cast<VarId>(program_.vars.size() - 1);
  }

  const uint64_t id_;
  Program program_;
  absl::flat_hash_map<std::string, size_t> input_of_slot_;
  absl::flat_hash_set<std::string> taken_names_;
  std::vector<Program::Port> written_;
  int64_t num_given_ = 0;
};

}  // namespace internal

namespace {

using internal::CurrentContext;
using internal::Recorder;

std::vector<Aval> AvalsOf(absl::Span<const Value> values) {
  std::vector<Aval> avals;
  avals.reserve(values.size());
  for (const Value& value : values) avals.push_back(value.aval());
  return avals;
}

// The line of the equation that is being recorded again, or the caller's.
SourceLine LineOf(const SourceLine& where) { return CurrentContext().where.value_or(where); }

absl::Status Report(const absl::Status& status, absl::string_view op, absl::Span<const Aval> operands,
                    const SourceLine& where) {
  absl::Status error = DescribeError(status, op, CurrentScope(), operands, LineOf(where));
  internal::ReportError(error);
  return error;
}

std::vector<Value> PoisonedOutputs(const Op& op, absl::Span<const Aval> operands, const absl::Status& status) {
  // The first operand's aval is a good guess for most operations; results computed from it are discarded.
  const Aval guess = operands.empty() ? Aval{} : operands[0];
  return std::vector<Value>(NumOutputs(op), Value::Poisoned(guess, status));
}

// The operands' data; an error for traced and poisoned ones.
absl::StatusOr<std::vector<Array>> DataOf(absl::Span<const Value> operands) {
  std::vector<Array> arrays;
  arrays.reserve(operands.size());
  for (const Value& operand : operands) {
    if (operand.array() == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "a traced ", operand.aval().ToString(),
          " is used, but no trace is active: return it from the traced function, and evaluate the program"));
    }
    arrays.push_back(*operand.array());
  }
  return arrays;
}

absl::StatusOr<std::vector<Value>> RunNow(const Op& op, absl::Span<const Value> operands) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> arrays, DataOf(operands));
  AQT_ASSIGN_OR_RETURN(std::vector<Array> results, EvalOp(op, arrays));
  std::vector<Value> values;
  values.reserve(results.size());
  for (Array& result : results) values.emplace_back(std::move(result));
  return values;
}

absl::StatusOr<std::vector<Value>> RecordNow(Recorder& recorder, const Op& op, absl::Span<const Value> operands,
                                             absl::Span<const Aval> avals, const SourceLine& where) {
  AQT_ASSIGN_OR_RETURN(std::vector<Aval> out, InferOp(op, avals));
  absl::InlinedVector<VarId, 3> in;
  for (const Value& operand : operands) {
    AQT_ASSIGN_OR_RETURN(const VarId var, recorder.VarOf(operand));
    in.push_back(var);
  }
  return recorder.Record(op, std::move(in), std::move(out), CurrentScope(), where);
}

}  // namespace

bool IsTracing() { return CurrentContext().recorder != nullptr; }

std::vector<Value> Bind(const Op& op, absl::Span<const Value> operands, const SourceLine& where) {
  const std::vector<Aval> avals = AvalsOf(operands);
  for (const Value& operand : operands) {
    if (absl::Status status = operand.status(); !status.ok()) {
      internal::ReportError(status);
      return PoisonedOutputs(op, avals, status);
    }
  }
  Recorder* recorder = CurrentContext().recorder;
  absl::StatusOr<std::vector<Value>> out =
      recorder == nullptr ? RunNow(op, operands) : RecordNow(*recorder, op, operands, avals, LineOf(where));
  if (!out.ok()) return PoisonedOutputs(op, avals, Report(out.status(), OpName(op), avals, where));
  return *std::move(out);
}

Value Refuse(const absl::Status& status, absl::string_view op, absl::Span<const Value> operands,
             const SourceLine& where) {
  const std::vector<Aval> avals = AvalsOf(operands);
  return Value::Poisoned(avals.empty() ? Aval{} : avals[0], Report(status, op, avals, where));
}

Value InputSlot(const Slot& slot, const Aval& aval, const std::source_location& where) {
  Recorder* recorder = CurrentContext().recorder;
  absl::StatusOr<Value> value =
      recorder != nullptr
          ? recorder->Input(slot, aval)
          : absl::FailedPreconditionError(absl::StrCat("input ", slot.ToString(), ": no trace is active"));
  if (value.ok()) return *std::move(value);
  // An impossible shape must not become the guess.
  const Aval guess = CheckShape(aval.shape).ok() ? aval : Aval{};
  return Value::Poisoned(guess, Report(value.status(), "input_slot", {}, where));
}

void WriteSlot(const Slot& slot, const Value& value, const std::source_location& where) {
  Recorder* recorder = CurrentContext().recorder;
  if (recorder == nullptr) return;
  if (!value.status().ok()) return internal::ReportError(value.status());
  absl::Status status = recorder->AddWritten(slot, value);
  if (!status.ok()) Report(status, "write_slot", {value.aval()}, where).IgnoreError();
}

bool TakeName(absl::string_view name) {
  Recorder* recorder = CurrentContext().recorder;
  return recorder == nullptr || recorder->TakeName(name);
}

bool IsNameTaken(absl::string_view name) {
  const Recorder* recorder = CurrentContext().recorder;
  return recorder != nullptr && recorder->IsNameTaken(name);
}

absl::StatusOr<Program> Trace(TracedFunction fn, absl::Span<const Input> inputs, absl::Span<const Slot> output_slots) {
  const internal::SaveContext saved;
  Recorder recorder;
  internal::TraceContext& context = CurrentContext();
  context = {.recorder = &recorder,
             .error = &recorder.error,
             .scope = "",
             .where = std::nullopt,
             .executor = context.executor};
  std::vector<Value> values;
  for (const Input& input : inputs) {
    if (recorder.HasInput(input.slot)) {
      return absl::InvalidArgumentError(absl::StrCat("trace: two inputs are named ", input.slot.ToString()));
    }
    AQT_ASSIGN_OR_RETURN(Value value, recorder.Input(input.slot, input.aval));
    values.push_back(std::move(value));
  }
  recorder.EndGivenInputs();
  const std::vector<Value> outputs = fn(values);
  AQT_RETURN_IF_ERROR(recorder.error);
  return recorder.Finish(outputs, output_slots);
}

}  // namespace aqt
