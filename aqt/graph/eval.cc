#include "aqt/graph/eval.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/eval_op.h"
#include "aqt/graph/interpret.h"

namespace aqt {
namespace {

bool AllFinite(absl::Span<const Array> arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const Array& array) {
    if (!IsFloat(array.dtype())) return true;
    const Array numbers = Cast(array, DType::kF64);
    const absl::Span<const double> view = numbers.View<double>();
    return std::all_of(view.begin(), view.end(), [](double x) { return std::isfinite(x); });
  });
}

}  // namespace

absl::StatusOr<std::vector<Array>> Eval(const Program& program, absl::Span<const Array> args, const EvalHooks& hooks) {
  AQT_RETURN_IF_ERROR(internal::ExpectArguments(program, args));
  const std::vector<int> last_use = internal::LastUses(program);
  return Interpret<Array>(
      program, args, [](const Array& constant) { return constant; },
      [&](const Equation& eqn, absl::Span<const Array> in) -> absl::StatusOr<std::vector<Array>> {
        absl::InlinedVector<bool, 4> needed;
        for (VarId var : eqn.out) needed.push_back(last_use[var] >= 0);
        AQT_ASSIGN_OR_RETURN(std::vector<Array> out, EvalOp(eqn.op, in, needed));
        if (hooks.on_outputs) hooks.on_outputs(eqn, out);
        if (hooks.stop_at_nonfinite && !AllFinite(out) && AllFinite(in)) {
          return absl::OutOfRangeError("a NaN or an infinity appears");
        }
        return out;
      });
}

absl::StatusOr<SlotValues> EvalSlots(const Program& program, const SlotValues& values, const EvalHooks& hooks) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> args, internal::ArgumentsOf(program, values));
  AQT_ASSIGN_OR_RETURN(std::vector<Array> outputs, Eval(program, args, hooks));
  return internal::OutputsByName(program, std::move(outputs));
}

}  // namespace aqt
