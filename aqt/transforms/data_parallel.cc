#include "aqt/transforms/data_parallel.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret.h"
#include "aqt/graph/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/partition.h"

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
    if (!absl::StartsWith(name, "all_reduce_") && name != "all_gather") continue;
    return DescribeError(absl::InvalidArgumentError("the program exchanges already"), program, eqn);
  }
  return absl::OkStatus();
}

// For each input, whether it is divided.
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

absl::StatusOr<std::vector<Value>> Outputs(const Program& program, const Partition& partition,
                                           absl::Span<const Part> args) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Part> outputs,
                       Interpret<Part>(
                           program, args,
                           [](const Array& constant) {
                             return Part{Value(constant), constant.aval()};
                           },
                           [&](const Equation& eqn, absl::Span<const Part> in) -> absl::StatusOr<std::vector<Part>> {
                             const Provenance provenance(program.scope(eqn), eqn.where);
                             std::vector<Aval> out;
                             for (const VarId var : eqn.out) out.push_back(program.aval(var));
                             return partition.Apply(eqn.op, in, out);
                           }));
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
  AQT_ASSIGN_OR_RETURN(Program program, Expand(Dce(given)));
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
