#include "aqt/kernels/small_floats/quantize_fp8.h"

#include <cstdint>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/small_floats/quantize_fp8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/quantize/quantize-inl.h"
#include "aqt/kernels/simd/convert-inl.h"
#include "aqt/kernels/simd/float8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A product of a subnormal number and a scale of at most this is zero in every format, flushed or not.
constexpr float kLargestPlainScale = 0x1p100f;

// From: the dtype of x. Product: the dtype of the scaled values. Fp8: the dtype of the result. kFlush: subnormal
// numbers count as zero.
template <class From, class Product, class Fp8, bool kFlush>
struct MultiplyToFp8 {
  template <class D>
  static HWY_INLINE FloatVec Scaled(D d, const From* in, const ScaleAndZero& s) {
    const FloatVec loaded = LoadFloat(d, in);
    const FloatVec x = kFlush ? Flush(d, loaded) : loaded;
    return RoundLanes<Product>::Apply(d, hn::Mul(x, s.scale));
  }
  template <class D>
  HWY_INLINE void Apply(D d, const From* in, const ScaleAndZero& s, uint8_t* q) const {
    StoreFloat8<Fp8>(d, Scaled(d, in, s), q);
  }
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  template <class D>
  HWY_INLINE void ApplyFour(D d, const From* in, const ScaleAndZero (&s)[4], uint8_t* q) const {
    constexpr int64_t kLanes = static_cast<int64_t>(kMaxLanes);
    StoreFloat8<Fp8>(d, Scaled(d, in, s[0]), Scaled(d, in + kLanes, s[1]), Scaled(d, in + 2 * kLanes, s[2]),
                     Scaled(d, in + 3 * kLanes, s[3]), q);
  }
#endif
};

template <class From, class Product, class Fp8>
void QuantizeFp8Of(const QuantizeFp8Args& args) {
  const FloatMatrix& x = args.x;
  const bool flush = args.subnormals_are_zero && !std::is_same_v<From, Float16>;
  ForEachRun<From, uint8_t>(x.rows, x.cols, {static_cast<const From*>(x.data), x.row_stride, x.col_stride},
                            {args.q, args.q_row_stride, args.q_col_stride}, args.grid,
                            x.row_stride == 1 && x.col_stride != 1,
                            /*flush=*/false, [=](const From* in, int64_t n, const auto& scales, uint8_t* out) {
                              if (flush && !scales.IsAtMost(kLargestPlainScale)) {
                                ForEachVector(in, n, scales, out, MultiplyToFp8<From, Product, Fp8, true>());
                              } else {
                                ForEachVector(in, n, scales, out, MultiplyToFp8<From, Product, Fp8, false>());
                              }
                            });
}

template <class From>
void QuantizeFp8From(const QuantizeFp8Args& args) {
  const bool e5m2 = args.q_dtype == DType::kE5M2;
  if (args.product_dtype == args.x.dtype) {
    return e5m2 ? QuantizeFp8Of<From, From, Float8E5M2>(args) : QuantizeFp8Of<From, From, Float8E4M3FN>(args);
  }
  AQT_DCHECK(args.product_dtype == DType::kF32);
  return e5m2 ? QuantizeFp8Of<From, float, Float8E5M2>(args) : QuantizeFp8Of<From, float, Float8E4M3FN>(args);
}

void QuantizeFp8Any(const QuantizeFp8Args& args) {
  switch (args.x.dtype) {
    case DType::kF32: return QuantizeFp8From<float>(args);
    case DType::kBF16: return QuantizeFp8From<BFloat16>(args);
    case DType::kF16: return QuantizeFp8From<Float16>(args);
    default: AQT_CHECK(!"QuantizeFp8: dtype is f32, bf16 or f16");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void QuantizeFp8(const QuantizeFp8Args& args, Target target) {
  AQT_DCHECK(args.q_dtype == DType::kE4M3FN || args.q_dtype == DType::kE5M2);
  AQT_DCHECK(args.grid.zero_point == nullptr);
  AQT_HWY_DISPATCH(target, QuantizeFp8Any)(args);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
