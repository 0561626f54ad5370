#ifndef AQT_KERNELS_REDUCE_REDUCTION_INL_H_
#define AQT_KERNELS_REDUCE_REDUCTION_INL_H_

// The initial value and the combining operation of each ReduceKind. For reduce.cc and reduce_window.cc.

#include "aqt/kernels/reduce/reduce_kind.h"
#include "aqt/kernels/simd/arithmetic-inl.h"

namespace aqt::kernels::internal {

// Calls f(initial value, combine) for a compute type C.
template <class C, class F>
void VisitReduction(ReduceKind kind, F f) {
  switch (kind) {
    case ReduceKind::kSum: return f(C{0}, [](C a, C b) { return AddWrapping(a, b); });
    case ReduceKind::kMax: return f(Lowest<C>(), [](C a, C b) { return Maximum(a, b); });
    case ReduceKind::kMin: return f(Highest<C>(), [](C a, C b) { return Minimum(a, b); });
    case ReduceKind::kProd: return f(C{1}, [](C a, C b) { return MultiplyWrapping(a, b); });
  }
}

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_REDUCE_REDUCTION_INL_H_
