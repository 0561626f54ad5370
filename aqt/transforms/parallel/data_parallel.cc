#include "aqt/transforms/parallel/data_parallel.h"

#include <algorithm>
#include <optional>
#include <source_location>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/interpret.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/attention/attention_op.h"
#include "aqt/ops/contraction/aqt_dot_cut.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/parallel/partition.h"

namespace aqt {
namespace {

using internal::Part;
using internal::Partition;

absl::Status CheckOptions(const Program& program, int rank, int processes, const DataParallelOptions& options) {
  if (processes < 1 || rank < 0 || rank >= processes) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of ", processes, " processes"));
  }
  for (const std::string& path : options.whole) {
    const Slot slot{SlotKind::kData, path};
    if (std::none_of(program.inputs.begin(), program.inputs.end(), [&](const auto& in) { return in.slot == slot; })) {
      return absl::InvalidArgumentError(absl::StrCat("`whole` names ", slot.ToString(), ", which is no input"));
    }
  }
  for (const Equation& eqn : program.eqns) {
    const std::string name = OpName(eqn.op);
    if (!absl::StartsWith(name, "all_reduce_") && name != "all_gather" && name != "sum_gradient" &&
        name != "fp8_sharded_dot") {
      continue;
    }
    return DescribeError(absl::InvalidArgumentError("the program exchanges already"), program, eqn);
  }
  return absl::OkStatus();
}

// Whether each input is divided.
absl::StatusOr<std::vector<bool>> DividedInputs(const Program& program, int processes,
                                                const DataParallelOptions& options) {
  std::vector<bool> divided;
  for (const Program::Port& port : program.inputs) {
    const Aval& aval = program.aval(port.var);
    const bool whole = std::find(options.whole.begin(), options.whole.end(), port.slot.path) != options.whole.end();
    divided.push_back(port.slot.kind == SlotKind::kData && aval.shape.rank() > 0 && !whole);
    if (!divided.back() || aval.shape[0] % processes == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(port.slot.ToString(), " is ", aval.ToString(), ", whose ",
                                                   aval.shape[0], " rows ", processes,
                                                   " processes cannot divide equally; change the batch, or name the "
                                                   "input in DataParallelOptions::whole"));
  }
  return divided;
}

bool IsAttention(const Op& op) { return FieldsOf<internal::AttentionFields>(op).has_value(); }

// Expands all composites except quantized contractions and attention, whose rows need no expansion.
absl::StatusOr<Program> ExpandOthers(Program program) {
  while (true) {
    std::vector<std::string> names;
    for (const Equation& eqn : program.eqns) {
      const auto* composite = std::get_if<CompositeOp>(&eqn.op);
      const bool expands = composite != nullptr && composite->impl->has_expansion();
      if (expands && !internal::IsQuantizedContraction(eqn.op) && !IsAttention(eqn.op))
        names.push_back(composite->impl->Name());
    }
    if (names.empty()) return program;
    AQT_ASSIGN_OR_RETURN(program, Expand(program, names));
  }
}

absl::StatusOr<std::vector<Part>> RunParts(const Program& program, const Partition& partition,
                                           absl::Span<const Part> args);

// Runs a contraction in basic operations.
absl::StatusOr<std::vector<Part>> ApplyExpanded(const Composite& composite, const Partition& partition,
                                                absl::Span<const Part> in) {
  std::vector<Input> inputs;
  for (const Part& part : in) {
    inputs.push_back({{SlotKind::kData, absl::StrCat("operand ", inputs.size())}, part.whole});
  }
  AQT_ASSIGN_OR_RETURN(const Program traced,
                       Trace([&](absl::Span<const Value> values) { return composite.Expand(values); }, inputs));
  AQT_ASSIGN_OR_RETURN(const Program expanded, Expand(traced));
  return RunParts(expanded, partition, in);
}

// Runs the rows of a process as far as they do not depend on other rows; the rest runs in basic operations.
absl::StatusOr<std::vector<Part>> ApplyContraction(const CompositeOp& op, const Partition& partition,
                                                   absl::Span<const Part> in, absl::Span<const Aval> out) {
  std::vector<std::optional<int64_t>> divided;
  std::vector<Value> values;
  for (const Part& part : in) {
    divided.push_back(part.axis);
    values.push_back(part.value);
  }
  const std::optional<internal::ContractionOfRows> rows = internal::OfRows(op, divided, partition.processes());
  const bool all_valid =
      rows.has_value() && std::find(rows->valid.begin(), rows->valid.end(), false) == rows->valid.end();
  std::vector<Part> parts(out.size());
  if (!all_valid) {
    AQT_ASSIGN_OR_RETURN(parts, ApplyExpanded(*op.impl, partition, in));
  }
  if (!rows.has_value()) return parts;
  const std::vector<Value> results = Bind(rows->op, values, std::source_location::current());
  for (size_t i = 0; i < out.size(); ++i) {
    if (rows->valid[i]) parts[i] = {results[i], out[i], rows->axes[i]};
  }
  return parts;
}

absl::StatusOr<std::vector<Part>> RunParts(const Program& program, const Partition& partition,
                                           absl::Span<const Part> args) {
  const auto whole = [](const Array& constant) { return Part{Value(constant), constant.aval()}; };
  const auto apply = [&](const Equation& eqn, absl::Span<const Part> in) -> absl::StatusOr<std::vector<Part>> {
    const Provenance provenance(program.scope(eqn), eqn.where);
    std::vector<Aval> out;
    for (const VarId var : eqn.out) out.push_back(program.aval(var));
    const auto* composite = std::get_if<CompositeOp>(&eqn.op);
    const bool expands = composite != nullptr && composite->impl->has_expansion() && !IsAttention(eqn.op);
    return expands ? ApplyContraction(*composite, partition, in, out) : partition.Apply(eqn.op, in, out);
  };
  return Interpret<Part>(program, args, whole, apply);
}

absl::StatusOr<std::vector<Value>> Outputs(const Program& program, const Partition& partition,
                                           absl::Span<const Part> args) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Part> outputs, RunParts(program, partition, args));
  std::vector<Value> values;
  for (const Part& output : outputs) values.push_back(partition.Whole(output));
  return values;
}

}  // namespace

absl::StatusOr<Program> DataParallel(const Program& given, int rank, int processes,
                                     const DataParallelOptions& options) {
  AQT_RETURN_IF_ERROR(Annotate(CheckOptions(given, rank, processes, options), "data_parallel"));
  absl::StatusOr<std::vector<bool>> divided = DividedInputs(given, processes, options);
  if (!divided.ok()) return Annotate(divided.status(), "data_parallel");
  AQT_ASSIGN_OR_RETURN(Program program, ExpandOthers(Dce(given)));
  program = Dce(program);
  const Partition partition(rank, processes, options.float_sums);
  std::vector<Input> inputs = InputsOf(program);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if ((*divided)[i]) inputs[i].aval = partition.AvalOfPart(inputs[i].aval, 0);
  }
  AQT_ASSIGN_OR_RETURN(const Program result, Trace(
                                                 [&](absl::Span<const Value> in) {
                                                   std::vector<Part> args;
                                                   for (size_t i = 0; i < in.size(); ++i) {
                                                     args.push_back({in[i], program.aval(program.inputs[i].var)});
                                                     if ((*divided)[i]) args.back().axis = 0;
                                                   }
                                                   absl::StatusOr<std::vector<Value>> out =
                                                       Outputs(program, partition, args);
                                                   if (out.ok()) return *std::move(out);
                                                   internal::ReportError(out.status());
                                                   return std::vector<Value>();
                                                 },
                                                 inputs, OutputSlotsOf(program)));
  return Dce(result);
}

}  // namespace aqt
