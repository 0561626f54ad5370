#include "aqt/graph/interpret/eval.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/eval_op.h"
#include "aqt/graph/interpret/interpret.h"

namespace aqt {
namespace {

// The float elements that are NaN or, unless `only_nan`, infinite.
struct Bad {
  int64_t count = 0;
  int64_t first = 0;  // row-major index
  double value = 0;
};

Bad FindBad(const Array& array, bool only_nan) {
  Bad bad;
  if (!IsFloat(array.dtype())) return bad;
  const Array numbers = Cast(array, DType::kF64);
  const absl::Span<const double> view = numbers.View<double>();
  for (size_t i = 0; i < view.size(); ++i) {
    if (only_nan ? !std::isnan(view[i]) : std::isfinite(view[i])) continue;
    if (bad.count++ == 0) bad = {1, static_cast<int64_t>(i), view[i]};
  }
  return bad;
}

// "[1,0]"
std::string IndexText(int64_t number, const Shape& shape) {
  Axes index(shape.rank());
  for (int64_t axis = shape.rank() - 1; axis >= 0; number /= shape[axis--]) index[axis] = number % shape[axis];
  return absl::StrCat("[", absl::StrJoin(index, ","), "]");
}

// OutOfRange if `out` has a bad element and `in` has none.
absl::Status Watch(absl::Span<const Array> in, absl::Span<const Array> out, bool only_nan) {
  for (size_t i = 0; i < out.size(); ++i) {
    const Bad bad = FindBad(out[i], only_nan);
    if (bad.count == 0) continue;
    const bool inherited =
        std::any_of(in.begin(), in.end(), [&](const Array& x) { return FindBad(x, only_nan).count > 0; });
    if (inherited) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrCat(
        std::isnan(bad.value) ? "a NaN" : "an infinity", " appears, from operands without one: ", bad.count, " of ",
        out[i].num_elements(), " elements of output ", i, ", ", out[i].aval().ToString(), ", are ",
        only_nan ? "NaN" : "not finite", "; the first is ",
        std::isnan(bad.value) ? "nan"
        : bad.value > 0       ? "inf"
                              : "-inf",
        " at ", IndexText(bad.first, out[i].shape())));
  }
  return absl::OkStatus();
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
        if (hooks.stop_at_nonfinite) AQT_RETURN_IF_ERROR(Watch(in, out, /*only_nan=*/false));
        if (hooks.stop_at_nan) AQT_RETURN_IF_ERROR(Watch(in, out, /*only_nan=*/true));
        return out;
      });
}

absl::StatusOr<SlotValues> EvalSlots(const Program& program, const SlotValues& values, const EvalHooks& hooks) {
  AQT_ASSIGN_OR_RETURN(const std::vector<Array> args, internal::ArgumentsOf(program, values));
  AQT_ASSIGN_OR_RETURN(std::vector<Array> outputs, Eval(program, args, hooks));
  return internal::OutputsByName(program, std::move(outputs));
}

}  // namespace aqt
