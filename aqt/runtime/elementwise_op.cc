#include "aqt/runtime/elementwise_op.h"

#include <type_traits>
#include <variant>

#include "aqt/core/check.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/elementwise.h"

namespace aqt::internal {
namespace {

bool HaveDType(absl::Span<const Aval> in, DType dtype) {
  for (const Aval& aval : in) {
    if (aval.dtype != dtype) return false;
  }
  return true;
}

}  // namespace

absl::InlinedVector<Aval, 3> OperandAvals(const Program& program, const Equation& eqn) {
  absl::InlinedVector<Aval, 3> avals;
  for (const VarId var : eqn.in) avals.push_back(program.aval(var));
  return avals;
}

ElementwiseFn ElementwiseOf(const Op& op, absl::Span<const Aval> in, const Aval& out) {
  return std::visit(
      [&]<class O>(const O& o) -> ElementwiseFn {
        const DType dtype = out.dtype;
        if constexpr (std::is_same_v<O, UnaryOp>) {
          if (!HaveDType(in, dtype)) return nullptr;
          return [kind = o.kind, dtype](const void* const* x, int64_t n, void* to) {
            kernels::Unary(kind, dtype, x[0], n, to);
          };
        } else if constexpr (std::is_same_v<O, BinaryOp>) {
          if (!HaveDType(in, dtype)) return nullptr;
          return [kind = o.kind, dtype](const void* const* x, int64_t n, void* to) {
            kernels::Binary(kind, dtype, x[0], x[1], n, to);
          };
        } else if constexpr (std::is_same_v<O, CompareOp>) {
          return [kind = o.kind, from = in[0].dtype](const void* const* x, int64_t n, void* to) {
            kernels::Compare(kind, from, x[0], x[1], n, static_cast<bool*>(to));
          };
        } else if constexpr (std::is_same_v<O, SelectOp>) {
          return [dtype](const void* const* x, int64_t n, void* to) {
            kernels::Select(dtype, static_cast<const bool*>(x[0]), x[1], x[2], n, to);
          };
        } else if constexpr (std::is_same_v<O, CastOp>) {
          return [from = in[0].dtype, dtype](const void* const* x, int64_t n, void* to) {
            AQT_CHECK(CastArray(ArrayRef(from, Shape{n}, x[0]), MutableArrayRef(dtype, Shape{n}, to)).ok());
          };
        } else if constexpr (std::is_same_v<O, ClampOp>) {
          return [dtype](const void* const* x, int64_t n, void* to) { kernels::Clamp(dtype, x[0], x[1], x[2], n, to); };
        } else if constexpr (std::is_same_v<O, IsFiniteOp>) {
          return [from = in[0].dtype](const void* const* x, int64_t n, void* to) {
            kernels::IsFinite(from, x[0], n, static_cast<bool*>(to));
          };
        } else if constexpr (std::is_same_v<O, IntegerPowOp>) {
          return [exponent = o.exponent, dtype](const void* const* x, int64_t n, void* to) {
            kernels::IntegerPow(dtype, exponent, x[0], n, to);
          };
        } else if constexpr (std::is_same_v<O, ReducePrecisionOp>) {
          return [precision = o.precision, dtype](const void* const* x, int64_t n, void* to) {
            kernels::ReducePrecision(dtype, precision, x[0], n, to);
          };
        } else {
          return nullptr;
        }
      },
      op);
}

}  // namespace aqt::internal
