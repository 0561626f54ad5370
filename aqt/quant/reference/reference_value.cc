#include "aqt/quant/reference/reference_value.h"

#include "aqt/core/array_ops.h"
#include "aqt/core/shape.h"
#include "aqt/quant/numerics/arith.h"

namespace aqt::reference {

Value FromArray(const ArrayRef& x) {
  Value value(x.dtype, Index(x.shape.begin(), x.shape.end()));
  const Array dense = Cast(x, DType::kF64);
  for (size_t i = 0; i < value.data.size(); ++i) value.data[i] = dense.View<double>()[i];
  return value;
}

Array ToArray(const Value& value) { return Cast(Array::FromSpan<double>(value.data, Shape(value.shape)), value.dtype); }

float Times(DType dtype, float a, float b) {
  return internal::VisitFloat(dtype, [&]<class T>() { return internal::Mul<T>(a, b); });
}
float Plus(DType dtype, float a, float b) {
  return internal::VisitFloat(dtype, [&]<class T>() { return internal::Add<T>(a, b); });
}
float Minus(DType dtype, float a, float b) {
  return internal::VisitFloat(dtype, [&]<class T>() { return internal::Sub<T>(a, b); });
}
float Over(DType dtype, float a, float b) {
  return internal::VisitFloat(dtype, [&]<class T>() { return internal::Div<T>(a, b); });
}
float Flush(DType dtype, float a) {
  return internal::VisitFloat(dtype, [&]<class T>() { return internal::Arith<T>::Flush(a); });
}
float Round(DType dtype, float a) {
  return internal::VisitFloat(dtype, [&]<class T>() { return internal::Arith<T>::Round(a); });
}

double Store(DType dtype, float v) {
  return VisitDType(dtype, [&]<class T>() { return ConvertElement<double>(ConvertElement<T>(v)); });
}

}  // namespace aqt::reference
