#include "aqt/kernels/small_floats/e4m3.h"

#include <cstdint>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/small_floats/e4m3.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/quantize/quantize-inl.h"
#include "aqt/kernels/simd/convert-inl.h"
#include "aqt/kernels/simd/float8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Exact, including subnormals.
template <class D>
hn::Vec<D> LoadE4M3(D d, const Float8E4M3FN* q) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> d8;
  const auto code = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(q)));
  const auto magnitude = hn::And(code, hn::Set(di, 0x7f));
  const auto normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(di, 120 << 23)));
  const auto small = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-9f));
  const auto finite = hn::IfThenElse(hn::RebindMask(d, hn::Lt(magnitude, hn::Set(di, 8))), small, normal);
  const auto nan = hn::BitCast(d, hn::Set(di, 0x7fc00000));
  const auto value = hn::IfThenElse(hn::RebindMask(d, hn::Eq(magnitude, hn::Set(di, 0x7f))), nan, finite);
  return hn::Or(value, hn::BitCast(d, hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)))));
}

template <class T>
struct DivideToE4M3 {
  template <class D>
  HWY_INLINE void Apply(D d, const T* in, const ScaleAndZero& s, Float8E4M3FN* q) const {
    const auto y = hn::Add(RoundLanes<T>::Apply(d, hn::Div(LoadFloat(d, in), s.scale)), hn::Zero(d));  // +0, not -0
    StoreFloat8<Float8E4M3FN>(d, y, reinterpret_cast<uint8_t*>(q));
  }
};

template <class T>
struct MultiplyE4M3 {
  template <class D>
  void Apply(D d, const Float8E4M3FN* q, const ScaleAndZero& s, T* out) const {
    StoreFloat(d, RoundLanes<T>::Apply(d, hn::Mul(LoadE4M3(d, q), s.scale)), out);
  }
};

template <class T>
void QuantizeE4M3Of(const QuantizeE4M3Args& args) {
  const FloatMatrix& x = args.x;
  ForEachRun<T, Float8E4M3FN>(x.rows, x.cols, {static_cast<const T*>(x.data), x.row_stride, x.col_stride},
                              {args.q, args.q_row_stride, args.q_col_stride}, args.grid,
                              x.row_stride == 1 && x.col_stride != 1, /*flush=*/false,
                              [](const T* in, int64_t n, const auto& scales, Float8E4M3FN* out) {
                                ForEachVector(in, n, scales, out, DivideToE4M3<T>{});
                              });
}

template <class T>
void DequantizeE4M3Of(const DequantizeE4M3Args& args) {
  ForEachRun<Float8E4M3FN, T>(args.rows, args.cols, {args.q, args.q_row_stride, args.q_col_stride},
                              {static_cast<T*>(args.x), args.row_stride, args.col_stride}, args.grid,
                              args.row_stride == 1 && args.col_stride != 1, /*flush=*/false,
                              [](const Float8E4M3FN* in, int64_t n, const auto& scales, T* out) {
                                ForEachVector(in, n, scales, out, MultiplyE4M3<T>{});
                              });
}

void QuantizeE4M3Any(const QuantizeE4M3Args& args) {
  switch (args.x.dtype) {
    case DType::kF32: return QuantizeE4M3Of<float>(args);
    case DType::kBF16: return QuantizeE4M3Of<BFloat16>(args);
    case DType::kF16: return QuantizeE4M3Of<Float16>(args);
    default: AQT_CHECK(!"QuantizeE4M3: dtype is f32, bf16 or f16");
  }
}

void DequantizeE4M3Any(const DequantizeE4M3Args& args) {
  switch (args.dtype) {
    case DType::kF32: return DequantizeE4M3Of<float>(args);
    case DType::kBF16: return DequantizeE4M3Of<BFloat16>(args);
    case DType::kF16: return DequantizeE4M3Of<Float16>(args);
    default: AQT_CHECK(!"DequantizeE4M3: dtype is f32, bf16 or f16");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void QuantizeE4M3(const QuantizeE4M3Args& args, Target target) {
  AQT_DCHECK(args.grid.zero_point == nullptr);
  AQT_HWY_DISPATCH(target, QuantizeE4M3Any)(args);
}

void DequantizeE4M3(const DequantizeE4M3Args& args, Target target) {
  AQT_DCHECK(args.grid.zero_point == nullptr);
  AQT_HWY_DISPATCH(target, DequantizeE4M3Any)(args);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
