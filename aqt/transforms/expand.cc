#include "aqt/transforms/expand.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/interpret/rewrite.h"

namespace aqt {

absl::StatusOr<Program> Expand(const Program& program, const std::vector<std::string>& names) {
  constexpr int kMaxDepth = 100;
  const auto expandable = [&](const Equation& eqn) -> const Composite* {
    const CompositeOp* op = std::get_if<CompositeOp>(&eqn.op);
    if (op == nullptr || !op->impl->has_expansion()) return nullptr;
    const bool named = names.empty() || std::find(names.begin(), names.end(), op->impl->Name()) != names.end();
    return named ? op->impl.get() : nullptr;
  };
  Program out = program;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    if (std::none_of(out.eqns.begin(), out.eqns.end(), expandable)) return out;
    AQT_ASSIGN_OR_RETURN(out, Rewrite(out, [&](const Equation& eqn, absl::Span<const Value> operands) {
                           const Composite* composite = expandable(eqn);
                           return composite != nullptr ? composite->Expand(operands) : BindAgain(eqn, operands);
                         }));
  }
  return absl::InvalidArgumentError(absl::StrCat("expand: expansions are nested more than ", kMaxDepth, " deep"));
}

}  // namespace aqt
