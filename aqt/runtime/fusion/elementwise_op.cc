#include "aqt/runtime/fusion/elementwise_op.h"

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "aqt/core/subnormals.h"
#include "aqt/kernels/elementwise/convert.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/kernels/simd/arithmetic-inl.h"

namespace aqt::internal {
namespace {

bool HaveDType(absl::Span<const Aval> in, DType dtype) {
  for (const Aval& aval : in) {
    if (aval.dtype != dtype) return false;
  }
  return true;
}

// ---- one f32 number: computes what the kernels compute, without their overhead

template <class T>
T At(const void* const* x, int i) {
  return *static_cast<const T*>(x[i]);
}

template <class F>
ElementwiseFn OfOne(F f) {
  return [f](const void* const* x, int64_t, void* to) { *static_cast<float*>(to) = f(At<float>(x, 0)); };
}
template <class Out, class F>
ElementwiseFn OfTwo(F f) {
  return [f](const void* const* x, int64_t, void* to) { *static_cast<Out*>(to) = f(At<float>(x, 0), At<float>(x, 1)); };
}

ElementwiseFn NumberFn(const UnaryOp& op) {
  switch (op.kind) {
    case kernels::UnaryKind::kNeg: return OfOne([](float v) { return -v; });
    case kernels::UnaryKind::kAbs: return OfOne([](float v) { return std::fabs(v); });
    case kernels::UnaryKind::kSqrt: return OfOne([](float v) { return std::sqrt(v); });
    case kernels::UnaryKind::kFlush: return OfOne([](float v) { return FlushSubnormal(v); });
    default: return nullptr;
  }
}

ElementwiseFn NumberFn(const BinaryOp& op) {
  ElementwiseFn fn;
  kernels::internal::VisitBinary<float>(op.kind, [&](auto f) { fn = OfTwo<float>(f); });
  return fn;
}

ElementwiseFn NumberFn(const CompareOp& op) {
  ElementwiseFn fn;
  kernels::internal::VisitCompare<float>(op.kind, [&](auto f) { fn = OfTwo<bool>(f); });
  return fn;
}

ElementwiseFn NumberFn(const SelectOp&) {
  return [](const void* const* x, int64_t, void* to) {
    *static_cast<uint32_t*>(to) = At<uint32_t>(x, At<bool>(x, 0) ? 1 : 2);
  };
}

ElementwiseFn NumberFn(const IsFiniteOp&) {
  return [](const void* const* x, int64_t, void* to) {
    *static_cast<bool*>(to) = (At<uint32_t>(x, 0) & 0x7f800000u) != 0x7f800000u;
  };
}

template <class O>
ElementwiseFn NumberFn(const O&) {
  return nullptr;
}

}  // namespace

absl::InlinedVector<Aval, 3> OperandAvals(const Program& program, const Equation& eqn) {
  absl::InlinedVector<Aval, 3> avals;
  for (const VarId var : eqn.in) avals.push_back(program.aval(var));
  return avals;
}

ElementwiseFn ElementwiseOf(const Op& op, absl::Span<const Aval> in, const Aval& out) {
  if (out.shape.num_elements() == 1 && !in.empty() && in.back().dtype == DType::kF32) {
    if (ElementwiseFn fn = std::visit([](const auto& o) { return NumberFn(o); }, op)) return fn;
  }
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
            kernels::Convert(from, x[0], dtype, n, to);
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
