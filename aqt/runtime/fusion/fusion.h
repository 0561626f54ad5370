#ifndef AQT_RUNTIME_FUSION_FUSION_H_
#define AQT_RUNTIME_FUSION_FUSION_H_

// Which equations of a program run together. Internal.

#include <vector>

#include "absl/types/span.h"
#include "aqt/graph/program.h"
#include "aqt/runtime/fusion/fused_kernel.h"

namespace aqt::internal {

// The groups to run, in an executable order. Elementwise operations on equal numbers of elements join the group of an
// operand. So do reductions of rows, of columns and of everything, and equations that read the reductions of rows.
// Groups stay convex: no path between two members leaves the group. A broadcast is computed wherever it is read, and
// has its own group only if other groups read it, too. Equations that cannot be fused are groups of one. `roots` has
// for each variable the one whose elements it shares, itself if it has its own. Equations for which `runs` is false are
// left out.
std::vector<FusedGroup> FuseEquations(const Program& program, absl::Span<const VarId> roots,
                                      const std::vector<bool>& runs);

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_FUSION_FUSION_H_
