#ifndef AQT_KERNELS_REDUCE_REDUCTION_INL_H_
#define AQT_KERNELS_REDUCE_REDUCTION_INL_H_

// The initial value and the combining operation of each ReduceKind. For reduce.cc and reduce_window.cc.

#include "aqt/kernels/reduce/reduce_kind.h"
#include "aqt/kernels/simd/arithmetic-inl.h"

namespace aqt::kernels::internal {

template <class C>
struct Sum {
  static constexpr C kInitial = C{0};
  C operator()(C a, C b) const { return AddWrapping(a, b); }
};
template <class C>
struct Max {
  static constexpr C kInitial = Lowest<C>();
  C operator()(C a, C b) const { return Maximum(a, b); }
};
template <class C>
struct Min {
  static constexpr C kInitial = Highest<C>();
  C operator()(C a, C b) const { return Minimum(a, b); }
};
template <class C>
struct Prod {
  static constexpr C kInitial = C{1};
  C operator()(C a, C b) const { return MultiplyWrapping(a, b); }
};

// Calls f with the struct of a kind, for a compute type C.
template <class C, class F>
void VisitReduction(ReduceKind kind, F f) {
  switch (kind) {
    case ReduceKind::kSum: return f(Sum<C>());
    case ReduceKind::kMax: return f(Max<C>());
    case ReduceKind::kMin: return f(Min<C>());
    case ReduceKind::kProd: return f(Prod<C>());
  }
}

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_REDUCE_REDUCTION_INL_H_
