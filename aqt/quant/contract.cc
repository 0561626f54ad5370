#include "aqt/quant/contract.h"

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "aqt/core/check.h"
#include "aqt/quant/arith.h"
#include "aqt/quant/row_ops.h"

namespace aqt::internal {
namespace {

// Writes the operand in the order [batch, free, contract] as elements of type T (float, or int8_t for integers).
template <class T>
void Gather(const ArrayRef& x, const LoopNest& batch, const LoopNest& free, const LoopNest& contract, bool is_lhs, T* out) {
  Shape shape;
  Strides strides;
  for (const LoopNest* nest : {&batch, &free, &contract}) {
    for (const LoopAxis& axis : *nest) {
      shape.push_back(axis.extent);
      strides.push_back(is_lhs ? axis.a_stride : axis.b_stride);
    }
  }
  const StridesSpan spans[] = {strides};
  const int64_t inner = InnerStride(strides);
  ForEachPiece(shape, spans, [&](const int64_t* offsets, int64_t n, int64_t linear) {
    if constexpr (std::is_same_v<T, float>) {
      LoadRow(x.dtype, x.data, offsets[0], inner, n, out + linear);
    } else {  // s2, s4 and s8 are one byte each
      const int8_t* in = static_cast<const int8_t*>(x.data) + offsets[0];
      for (int64_t i = 0; i < n; ++i) out[linear + i] = in[i * inner];
    }
  });
}

int32_t Dot(const int8_t* a, const int8_t* b, int64_t k) {
  uint32_t sum = 0;  // wraps without undefined behaviour
  for (int64_t i = 0; i < k; ++i) sum += static_cast<uint32_t>(int32_t{a[i]} * int32_t{b[i]});
  return static_cast<int32_t>(sum);
}

float Dot(const float* a, const float* b, int64_t k) {
  float sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += a[i] * b[i];
  return FlushF32(sum);
}

template <class T, class Sum>
void Multiply(const ArrayRef& lhs, const ArrayRef& rhs, const DotNormalForm& form, Workspace& workspace, Sum* sums) {
  const int64_t batch = NumIterations(form.batch), m = NumIterations(form.lhs_free), n = NumIterations(form.rhs_free);
  const int64_t k = NumIterations(form.contract);
  T* a = static_cast<T*>(workspace.Get(Workspace::kLhsPacked, batch * m * k * sizeof(T)));
  T* b = static_cast<T*>(workspace.Get(Workspace::kRhsPacked, batch * n * k * sizeof(T)));
  Gather(lhs, form.batch, form.lhs_free, form.contract, true, a);
  Gather(rhs, form.batch, form.rhs_free, form.contract, false, b);
  for (int64_t i = 0; i < batch; ++i) {
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t column = 0; column < n; ++column) {
        *sums++ = Dot(a + (i * m + row) * k, b + (i * n + column) * k, k);
      }
    }
  }
}

bool IsByteInteger(DType dtype) { return dtype == DType::kS2 || dtype == DType::kS4 || dtype == DType::kS8; }

}  // namespace

void Contract(const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims, const MutableArrayRef& out,
              Workspace& workspace, const Runtime&) {
  AQT_DCHECK(out.IsDense());
  const DotNormalForm form = MakeDotNormalForm(dims, lhs.shape, lhs.strides, rhs.shape, rhs.strides);
  const int64_t n = out.shape.num_elements();
  if (out.dtype == DType::kS32) {
    Multiply<int8_t>(lhs, rhs, form, workspace, static_cast<int32_t*>(out.data));
    return;
  }
  // Sums of four bytes each, then narrowed in place or into `out`.
  void* sums = out.dtype == DType::kF32 ? out.data : workspace.Get(Workspace::kSums, n * 4);
  if (IsByteInteger(out.dtype)) {
    Multiply<int8_t>(lhs, rhs, form, workspace, static_cast<int32_t*>(sums));
    const int unused_bits = 32 - BitWidth(out.dtype);
    int8_t* narrow = static_cast<int8_t*>(out.data);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t sum = static_cast<uint32_t>(static_cast<int32_t*>(sums)[i]);
      narrow[i] = static_cast<int8_t>(static_cast<int32_t>(sum << unused_bits) >> unused_bits);
    }
    return;
  }
  Multiply<float>(lhs, rhs, form, workspace, static_cast<float*>(sums));
  if (sums != out.data) StoreRow(out.dtype, static_cast<const float*>(sums), n, out.data, 0, 1);
}

}  // namespace aqt::internal
