#include "aqt/transforms/simplify.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/graph/op.h"
#include "aqt/kernels/elementwise/elementwise.h"

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

// The producer of each variable, -1 for none, and its number of uses.
struct Links {
  explicit Links(const Program& program) : producer(program.vars.size(), -1), uses(program.vars.size(), 0) {
    for (size_t i = 0; i < program.eqns.size(); ++i) {
      for (const VarId var : program.eqns[i].in) ++uses[var];
      for (const VarId var : program.eqns[i].out) producer[var] = static_cast<int>(i);
    }
    for (const Program::Port& port : program.outputs) ++uses[port.var];
  }
  std::vector<int> producer, uses;
};

// For an elementwise operation of one array, or of an array and broadcast numbers: which operand is the array.
std::optional<size_t> OnlyArray(const Program& program, const Links& links, const Equation& eqn) {
  if (std::holds_alternative<UnaryOp>(eqn.op) || std::holds_alternative<CastOp>(eqn.op)) return 0;
  if (!std::holds_alternative<BinaryOp>(eqn.op)) return std::nullopt;
  const auto is_number = [&](VarId var) {
    const int made = links.producer[var];
    return made >= 0 && std::holds_alternative<BroadcastOp>(program.eqns[made].op) &&
           program.aval(program.eqns[made].in[0]).shape.rank() == 0;
  };
  for (const size_t i : {0, 1}) {
    if (is_number(eqn.in[1 - i])) return i;
  }
  return std::nullopt;
}

// The program with each transpose after a dot_general and elementwise operations moved between the two.
Program WithEarlyTransposes(const Program& program) {
  Program result = program;
  const Links links(program);
  std::vector<std::vector<Equation>> made(program.eqns.size());  // replaces each equation
  for (size_t i = 0; i < program.eqns.size(); ++i) {
    const Equation& transpose = program.eqns[i];
    made[i] = {transpose};
    const auto* op = std::get_if<TransposeOp>(&transpose.op);
    if (op == nullptr) continue;
    struct Link {
      size_t eqn, array;
    };
    std::vector<Link> chain;  // from the transpose back to the product
    VarId x = transpose.in[0];
    const auto producer_of = [&](VarId var) { return links.uses[var] == 1 ? links.producer[var] : -1; };
    for (int at = producer_of(x); at >= 0; at = producer_of(x)) {
      const std::optional<size_t> array = OnlyArray(program, links, program.eqns[at]);
      if (!array.has_value()) break;
      chain.push_back({static_cast<size_t>(at), *array});
      x = program.eqns[at].in[*array];
    }
    const int source = producer_of(x);
    if (chain.empty() || source < 0 || !std::holds_alternative<DotGeneralOp>(program.eqns[source].op)) continue;
    // The variables between are now the transposed ones: each equation writes the variable that its successor wrote
    // before.
    const Shape& shape = program.aval(transpose.out[0]).shape;
    const VarId first = program.eqns[chain.back().eqn].out[0];
    result.vars[first] = {program.aval(x).dtype, shape};
    made[i] = {transpose};
    made[i][0].in = {x};
    made[i][0].out = {first};
    VarId current = first;
    for (size_t k = chain.size(); k-- > 0;) {
      Equation next = program.eqns[chain[k].eqn];
      const VarId old = next.out[0];
      const VarId out = k == 0 ? transpose.out[0] : program.eqns[chain[k - 1].eqn].out[0];
      result.vars[out] = {program.aval(old).dtype, shape};
      for (size_t operand = 0; operand < next.in.size(); ++operand) {
        if (operand == chain[k].array) continue;
        Equation broadcast = program.eqns[links.producer[next.in[operand]]];
        broadcast.op = BroadcastOp{shape, {}};
        broadcast.out = {static_cast<VarId>(result.vars.size())};
        result.vars.push_back({program.aval(next.in[operand]).dtype, shape});
        next.in[operand] = broadcast.out[0];
        made[i].push_back(std::move(broadcast));
      }
      next.in[chain[k].array] = current;
      next.out = {out};
      current = out;
      made[i].push_back(std::move(next));
      made[chain[k].eqn].clear();
    }
  }
  result.eqns.clear();
  for (std::vector<Equation>& eqns : made) {
    for (Equation& eqn : eqns) result.eqns.push_back(std::move(eqn));
  }
  return result;
}

// Whether all elements are +0.
bool IsZero(const Program& program, const Links& links, VarId var) {
  if (const auto it = program.consts.find(var); it != program.consts.end()) {
    const Array& array = it->second;
    const auto* bytes = static_cast<const char*>(array.data());
    return std::all_of(bytes, bytes + array.num_bytes(), [](char byte) { return byte == 0; });
  }
  const int made = links.producer[var];
  return made >= 0 && std::holds_alternative<BroadcastOp>(program.eqns[made].op) &&
         IsZero(program, links, program.eqns[made].in[0]);
}

// The equation max(x, 0) that produces the variable, through any number of stop_gradient; null for any other variable.
const Equation* MaximumWithZero(const Program& program, const Links& links, VarId var, VarId x) {
  const int made = links.producer[var];
  if (made < 0) return nullptr;
  const Equation& eqn = program.eqns[made];
  if (std::holds_alternative<StopGradientOp>(eqn.op)) return MaximumWithZero(program, links, eqn.in[0], x);
  const auto* op = std::get_if<BinaryOp>(&eqn.op);
  const bool is_it = op != nullptr && op->kind == kernels::BinaryKind::kMax && eqn.in[0] == x;
  return is_it && IsZero(program, links, eqn.in[1]) ? &eqn : nullptr;
}

}  // namespace

Program WithRelusAsMaxima(const Program& program) {
  Program result = program;
  const Links links(program);
  for (size_t i = 0; i < program.eqns.size(); ++i) {
    const Equation& select = program.eqns[i];
    if (!std::holds_alternative<SelectOp>(select.op) || links.producer[select.in[0]] < 0) continue;
    const Equation& test = program.eqns[links.producer[select.in[0]]];
    const auto* compare = std::get_if<CompareOp>(&test.op);
    const VarId x = select.in[1];
    if (compare == nullptr || compare->kind != kernels::CompareKind::kGt || test.in[0] != x) continue;
    if (!IsZero(program, links, test.in[1])) continue;
    if (const Equation* maximum = MaximumWithZero(program, links, select.in[2], x); maximum != nullptr) {
      result.eqns[i].op = maximum->op;
      result.eqns[i].in = maximum->in;
    }
  }
  return result;
}

Program WithoutTransposedProducts(const Program& original) {
  const Program program = WithEarlyTransposes(original);
  Program result = program;
  const Links links(program);
  for (size_t i = 0; i < program.eqns.size(); ++i) {
    const Equation& eqn = program.eqns[i];
    const auto* transpose = std::get_if<TransposeOp>(&eqn.op);
    if (transpose == nullptr || links.producer[eqn.in[0]] < 0 || links.uses[eqn.in[0]] != 1) continue;
    const Equation& made = program.eqns[links.producer[eqn.in[0]]];
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
