#include "aqt/kernels/contraction.h"

#include <cstdint>
#include <type_traits>

#include "absl/types/span.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt::kernels {
namespace {

// A dense copy as C with the axes of three groups in order, and the number of elements in each group.
struct Gathered {
  Array array;
  int64_t size[3] = {1, 1, 1};
};

Gathered Gather(const ArrayRef& x, DType dtype, const Axes& first, const Axes& second, const Axes& third) {
  Gathered out;
  ArrayRef view = x;
  view.shape = Shape();
  view.strides.clear();
  int group = 0;
  for (const Axes* axes : {&first, &second, &third}) {
    for (int64_t axis : *axes) {
      view.shape.push_back(x.shape[axis]);
      view.strides.push_back(x.strides[axis]);
      out.size[group] *= x.shape[axis];
    }
    ++group;
  }
  out.array = Cast(view, dtype);
  return out;
}

// [B,M,K] x [B,K,N] -> [B,M,N], row by row, so that the inner loop is over neighbours.
template <class C>
void MatMul(const C* lhs, const C* rhs, int64_t batch, int64_t m, int64_t n, int64_t k, C* out) {
  for (int64_t b = 0; b < batch; ++b, rhs += k * n) {
    for (int64_t i = 0; i < m; ++i, lhs += k, out += n) {
      for (int64_t kk = 0; kk < k; ++kk) {
        const C a = lhs[kk];
        const C* row = rhs + kk * n;
        for (int64_t j = 0; j < n; ++j) {
          if constexpr (std::is_integral_v<C>) {
            out[j] = static_cast<C>(static_cast<uint32_t>(out[j]) + static_cast<uint32_t>(a) * static_cast<uint32_t>(row[j]));
          } else {
            out[j] += a * row[j];
          }
        }
      }
    }
  }
}

}  // namespace

void Contract(const DotDims& dims, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out) {
  const DType dtype = !IsFloat(lhs.dtype)          ? DType::kS32
                      : lhs.dtype == DType::kF64 ? DType::kF64
                                                   : DType::kF32;
  const Gathered a = Gather(lhs, dtype, dims.lhs_batch, RemainingAxes(lhs.shape.rank(), dims.lhs_contracting, dims.lhs_batch),
                            dims.lhs_contracting);
  const Gathered b = Gather(rhs, dtype, dims.rhs_batch, dims.rhs_contracting,
                            RemainingAxes(rhs.shape.rank(), dims.rhs_contracting, dims.rhs_batch));
  ArrayBuilder sums(dtype, out.shape);
  const auto run = [&]<class C>() {
    MatMul<C>(a.array.View<C>().data(), b.array.View<C>().data(), a.size[0], a.size[1], b.size[2], a.size[2],
              sums.Mutable<C>().data());
  };
  if (dtype == DType::kS32) run.template operator()<int32_t>();
  else if (dtype == DType::kF64) run.template operator()<double>();
  else run.template operator()<float>();
  AQT_CHECK(CastArray(sums.ref(), out).ok());
}

}  // namespace aqt::kernels
