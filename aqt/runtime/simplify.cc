#include "aqt/runtime/simplify.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/graph/op.h"

namespace aqt::internal {
namespace {

// Whether [batch, rows, columns] becomes [batch, columns, rows].
bool ExchangesOperands(const TransposeOp& op, int64_t batch, int64_t rows, int64_t columns) {
  if (rows == 0 || columns == 0) return false;
  for (int64_t i = 0; i < batch + rows + columns; ++i) {
    const int64_t from = i < batch ? i : i < batch + columns ? i + rows : i - columns;
    if (op.permutation[i] != from) return false;
  }
  return true;
}

}  // namespace

Program WithoutTransposedProducts(const Program& program) {
  Program result = program;
  std::vector<int> producer(program.vars.size(), -1), uses(program.vars.size(), 0);
  for (const Equation& eqn : program.eqns) {
    for (const VarId var : eqn.in) ++uses[var];
  }
  for (const Program::Port& port : program.outputs) ++uses[port.var];
  for (size_t i = 0; i < program.eqns.size(); ++i) {
    const Equation& eqn = program.eqns[i];
    for (const VarId var : eqn.out) producer[var] = static_cast<int>(i);
    const auto* transpose = std::get_if<TransposeOp>(&eqn.op);
    if (transpose == nullptr || producer[eqn.in[0]] < 0 || uses[eqn.in[0]] != 1) continue;
    const Equation& made = program.eqns[producer[eqn.in[0]]];
    const auto* dot = std::get_if<DotGeneralOp>(&made.op);
    if (dot == nullptr) continue;
    const Aval &lhs = program.aval(made.in[0]), &rhs = program.aval(made.in[1]);
    const int64_t batch = static_cast<int64_t>(dot->dims.lhs_batch.size());
    const int64_t contracting = static_cast<int64_t>(dot->dims.lhs_contracting.size());
    const int64_t rows = lhs.shape.rank() - batch - contracting, columns = rhs.shape.rank() - batch - contracting;
    if (lhs.dtype != rhs.dtype || !ExchangesOperands(*transpose, batch, rows, columns)) continue;
    DotDims dims = dot->dims;
    std::swap(dims.lhs_contracting, dims.rhs_contracting);
    std::swap(dims.lhs_batch, dims.rhs_batch);
    result.eqns[i].op = DotGeneralOp{dims, dot->out};
    result.eqns[i].in = {made.in[1], made.in[0]};
  }
  return result;
}

}  // namespace aqt::internal
