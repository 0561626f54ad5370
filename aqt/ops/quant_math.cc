#include "aqt/ops/quant_math.h"

#include <limits>

#include "aqt/graph/basic_ops.h"

namespace aqt::internal {
namespace {

template <class F>
Value Apply(DType dtype, const Value& a, const Value& b, F f) {
  return RoundTo(dtype, FlushTo(dtype, f(FlushTo(dtype, a), FlushTo(dtype, b))));
}

}  // namespace

Value ToF32(const Value& x) { return ops::Cast(x, DType::kF32); }

Value FromF32(const Value& v, DType dtype) { return ops::Cast(v, dtype); }

Value RoundTo(DType dtype, const Value& v) {
  return dtype == DType::kF32 ? v : ops::Cast(ops::Cast(v, dtype), DType::kF32);
}

Value FlushTo(DType dtype, const Value& v) { return dtype == DType::kF16 ? v : ops::Flush(v); }

Value MulIn(DType dtype, const Value& a, const Value& b) {
  return Apply(dtype, a, b, [](const Value& x, const Value& y) { return x * y; });
}
Value AddIn(DType dtype, const Value& a, const Value& b) {
  return Apply(dtype, a, b, [](const Value& x, const Value& y) { return x + y; });
}
Value SubIn(DType dtype, const Value& a, const Value& b) {
  return Apply(dtype, a, b, [](const Value& x, const Value& y) { return x - y; });
}
Value DivIn(DType dtype, const Value& a, const Value& b) {
  return Apply(dtype, a, b, [](const Value& x, const Value& y) { return x / y; });
}

Value InverseScaleIn(DType dtype, const Value& s) {
  const Value inverse = DivIn(dtype, Value(Array::Scalar(1.0f)), s);
  return ops::Select(ops::Equal(ops::Abs(inverse), std::numeric_limits<double>::infinity()), 1.0, inverse);
}

}  // namespace aqt::internal
