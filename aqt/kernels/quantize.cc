#include "aqt/kernels/quantize.h"

#include <cstdint>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/quantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/convert-inl.h"
#include "aqt/kernels/quantize-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// round(clamp(y, lo, hi)), with NaN giving 0, for 8-bit integers lo and hi.
struct Clamp {
  float lo, hi;

  template <class D, class V>
  void RoundAndStore(D d, V y, int8_t* q) const {
    y = hn::IfThenElseZero(hn::Eq(y, y), y);
    y = hn::Min(hn::Max(y, hn::Set(d, lo)), hn::Set(d, hi));
    // Adding 1.5 * 2^23 makes the sum's last bit worth 1, so that the addition rounds to nearest even and its low byte
    // is q in two's complement. Unlike Highway's NearestInt this is right on every target (its SCALAR version rounds
    // 0.49999997 up).
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, hn::Add(y, hn::Set(d, 0x1.8p23f)));
    const hn::Rebind<uint8_t, D> d8;
    hn::StoreU(hn::U8FromU32(hn::And(bits, hn::Set(du, 0xffu))), d8, reinterpret_cast<uint8_t*>(q));
  }
};

template <class T, bool kFlush>
struct MultiplyByInverse {
  Clamp clamp;

  template <class D>
  void Apply(D d, const T* in, const ScaleAndZero& s, int8_t* q) const {
    FloatVec x = LoadFloat(d, in);
    if constexpr (kFlush) x = Flush(d, x);
    clamp.RoundAndStore(d, RoundLanes<T>::Apply(d, hn::Mul(x, s.scale)), q);
  }
};

template <class T>
struct DivideByScale {
  Clamp clamp;

  template <class D>
  void Apply(D d, const T* in, const ScaleAndZero& s, int8_t* q) const {
    const FloatVec y = RoundLanes<T>::Apply(d, hn::Div(LoadFloat(d, in), s.scale));
    clamp.RoundAndStore(d, RoundLanes<T>::Apply(d, hn::Add(y, s.zero)), q);
  }
};

template <class T>
struct MultiplyByScale {
  template <class D>
  void Apply(D d, const int8_t* q, const ScaleAndZero& s, T* out) const {
    const FloatVec difference = RoundLanes<T>::Apply(d, hn::Sub(LoadInts(d, q), s.zero));
    StoreFloat(d, RoundLanes<T>::Apply(d, hn::Mul(difference, s.scale)), out);
  }
};

template <class T>
void QuantizeOf(const QuantizeMatrixArgs& args) {
  const FloatMatrix& x = args.x;
  const Clamp clamp = {args.lo, args.hi};
  const bool divide = args.rule == QuantizeRule::kDivideByScale;
  const bool flush = args.flush_subnormals && !std::is_same_v<T, Float16>;
  // By value: a store of an int8_t might change what a reference leads to.
  const auto run = [=](const T* in, int64_t n, const auto& scales, int8_t* out) {
    if (divide) ForEachVector(in, n, scales, out, DivideByScale<T>{clamp});
    else if (flush && scales.SubnormalsMatter()) ForEachVector(in, n, scales, out, MultiplyByInverse<T, true>{clamp});
    else ForEachVector(in, n, scales, out, MultiplyByInverse<T, false>{clamp});
  };
  ForEachRun<T, int8_t>(x.rows, x.cols, {static_cast<const T*>(x.data), x.row_stride, x.col_stride},
                        {args.q, args.q_row_stride, args.q_col_stride}, args.grid,
                        x.row_stride == 1 && x.col_stride != 1, flush, run);
}

template <class T>
void DequantizeOf(const DequantizeMatrixArgs& args) {
  const bool flush = args.flush_subnormals && !std::is_same_v<T, Float16>;
  ForEachRun<int8_t, T>(args.rows, args.cols, {args.q, args.q_row_stride, args.q_col_stride},
                        {static_cast<T*>(args.x), args.row_stride, args.col_stride}, args.grid,
                        args.row_stride == 1 && args.col_stride != 1, flush,
                        [](const int8_t* in, int64_t n, const auto& scales, T* out) {
                          ForEachVector(in, n, scales, out, MultiplyByScale<T>{});
                        });
}

void QuantizeAny(const QuantizeMatrixArgs& args) {
  switch (args.x.dtype) {
    case DType::kF32: return QuantizeOf<float>(args);
    case DType::kBF16: return QuantizeOf<BFloat16>(args);
    case DType::kF16: return QuantizeOf<Float16>(args);
    default: AQT_CHECK(!"QuantizeMatrix: dtype is f32, bf16 or f16");
  }
}

void DequantizeAny(const DequantizeMatrixArgs& args) {
  switch (args.dtype) {
    case DType::kF32: return DequantizeOf<float>(args);
    case DType::kBF16: return DequantizeOf<BFloat16>(args);
    case DType::kF16: return DequantizeOf<Float16>(args);
    default: AQT_CHECK(!"DequantizeMatrix: dtype is f32, bf16 or f16");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void QuantizeMatrix(const QuantizeMatrixArgs& args, Target target) {
  AQT_DCHECK(-128 <= args.lo && args.lo <= args.hi && args.hi <= 127);
  AQT_DCHECK(args.rule == QuantizeRule::kDivideByScale || args.grid.zero_point == nullptr);
  AQT_HWY_DISPATCH(target, QuantizeAny)(args);
}

void DequantizeMatrix(const DequantizeMatrixArgs& args, Target target) {
  AQT_HWY_DISPATCH(target, DequantizeAny)(args);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
