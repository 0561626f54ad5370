#ifndef AQT_QUANT_REFERENCE_REFERENCE_VALUE_H_
#define AQT_QUANT_REFERENCE_REFERENCE_VALUE_H_

// Tensors as the references hold them, and their scalar operations.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"

namespace aqt::reference {

using Index = std::vector<int64_t>;

// A dense tensor whose elements are floats (or sums), held exactly in doubles.
struct Value {
  DType dtype = DType::kF32;
  Index shape;
  std::vector<double> data;

  Value() = default;
  Value(DType dtype_in, Index shape_in) : dtype(dtype_in), shape(std::move(shape_in)) {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    data.resize(n);
  }
  // An axis of extent 1 accepts any index.
  size_t Position(const Index& index) const {
    AQT_CHECK(index.size() == shape.size());
    int64_t position = 0;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      position = position * shape[axis] + (shape[axis] == 1 ? 0 : index[axis]);
    }
    return position;
  }
  double& operator[](const Index& index) { return data[Position(index)]; }
  float operator()(const Index& index) const { return static_cast<float>(data[Position(index)]); }
};

template <class F>
void ForEach(const Index& shape, F f) {
  Index index(shape.size(), 0);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  while (true) {
    f(index);
    size_t axis = shape.size();
    while (axis > 0 && ++index[axis - 1] == shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

Value FromArray(const ArrayRef& x);
Array ToArray(const Value& value);

// ---- scalar operations in a dtype known at run time

float Times(DType dtype, float a, float b);
float Plus(DType dtype, float a, float b);
float Minus(DType dtype, float a, float b);
float Over(DType dtype, float a, float b);
float Flush(DType dtype, float a);
float Round(DType dtype, float a);
double Store(DType dtype, float v);  // the conversion to a container

}  // namespace aqt::reference

#endif  // AQT_QUANT_REFERENCE_REFERENCE_VALUE_H_
