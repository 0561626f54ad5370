#include "aqt/testing/programs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/testing/random.h"

namespace aqt::testing {

std::vector<Input> DataInputs(absl::Span<const Array> args) {
  std::vector<Input> inputs;
  for (size_t i = 0; i < args.size(); ++i) inputs.push_back({{SlotKind::kData, absl::StrCat(i)}, args[i].aval()});
  return inputs;
}

absl::StatusOr<Program> TraceWith(TracedFunction fn, absl::Span<const Array> args) {
  return Trace(fn, DataInputs(args));
}

absl::StatusOr<std::vector<Array>> RunEagerly(TracedFunction fn, absl::Span<const Array> args) {
  std::vector<Value> values;
  for (const Array& arg : args) values.emplace_back(arg);
  std::vector<Array> results;
  for (const Value& value : fn(values)) {
    AQT_ASSIGN_OR_RETURN(Array result, value.ToArray());
    results.push_back(std::move(result));
  }
  return results;
}

absl::StatusOr<std::vector<Array>> RunBothWays(TracedFunction fn, absl::Span<const Array> args) {
  AQT_ASSIGN_OR_RETURN(std::vector<Array> eager, RunEagerly(fn, args));
  AQT_ASSIGN_OR_RETURN(const Program program, TraceWith(fn, args));
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> traced, Eval(program, args));
  if (traced.size() != eager.size()) return absl::InternalError("eager and traced differ in the number of outputs");
  for (size_t i = 0; i < traced.size(); ++i) {
    if (!BitEqual(eager[i], traced[i]))
      return absl::InternalError(absl::StrCat("eager and traced differ in output ", i));
  }
  return eager;
}

absl::Status CheckGradients(TracedFunction fn, absl::Span<const Array> args, double tolerance) {
  constexpr double kStep = 1e-5;
  const auto loss = [&](absl::Span<const Value> in) {
    Value total = ValueOrNumber(0.0).As(DType::kF64);
    uint64_t seed = 1000;
    for (const Value& out : fn(in)) {
      total = total + ops::ReduceSum(out * Value(RandomArray(out.aval(), seed++, 0.5, 1.5)));
    }
    return std::vector<Value>{total};
  };
  AQT_ASSIGN_OR_RETURN(const Program program, TraceWith(loss, args));
  std::vector<int> wrt(args.size());
  std::iota(wrt.begin(), wrt.end(), 0);
  AQT_ASSIGN_OR_RETURN(const Program gradient, Grad(program, wrt));
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> got, Eval(gradient, args));
  for (size_t i = 0; i < args.size(); ++i) {
    for (int64_t j = 0; j < args[i].num_elements(); ++j) {
      double at[2];
      for (int side = 0; side < 2; ++side) {
        std::vector<double> moved(args[i].View<double>().begin(), args[i].View<double>().end());
        moved[j] += side == 0 ? -kStep : kStep;
        std::vector<Array> moved_args(args.begin(), args.end());
        moved_args[i] = Array::FromSpan<double>(moved, args[i].shape());
        AQT_ASSIGN_OR_RETURN(const std::vector<Array> out, Eval(program, moved_args));
        at[side] = out[0].View<double>()[0];
      }
      const double want = (at[1] - at[0]) / (2 * kStep), have = got[i].View<double>()[j];
      if (!(std::fabs(want - have) <= tolerance * (1 + std::max(std::fabs(want), std::fabs(have))))) {
        return absl::InvalidArgumentError(absl::StrCat("argument ", i, ", element ", j, ": gradient ", have,
                                                       ", difference quotient ", want, "\n", ToText(gradient)));
      }
    }
  }
  return absl::OkStatus();
}

int CountOps(const Program& program, absl::string_view name) {
  return static_cast<int>(std::count_if(program.eqns.begin(), program.eqns.end(),
                                        [&](const Equation& eqn) { return OpName(eqn.op) == name; }));
}

}  // namespace aqt::testing
