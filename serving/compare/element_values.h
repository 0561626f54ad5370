#ifndef AQT_SERVING_COMPARE_ELEMENT_VALUES_H_
#define AQT_SERVING_COMPARE_ELEMENT_VALUES_H_

// The elements of a tensor of any file type as numbers.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/io/tensors/tensor_spec.h"

namespace aqt::serving {

// Numbers per element: 2 for C64, the real and the imaginary part; otherwise 1.
int NumbersPerElement(io::FileDType dtype);
bool IsFloatDType(io::FileDType dtype);

// values[i] = number i in `bytes`, exactly. Elements of 4 and 6 bits are stored least significant bits first. `bytes`
// hold values.size() numbers. T is long double or, unless the type is I64 or U64, double.
template <class T>
void ElementValues(io::FileDType dtype, absl::Span<const uint8_t> bytes, absl::Span<T> values);

extern template void ElementValues(io::FileDType, absl::Span<const uint8_t>, absl::Span<double>);
extern template void ElementValues(io::FileDType, absl::Span<const uint8_t>, absl::Span<long double>);

}  // namespace aqt::serving

#endif  // AQT_SERVING_COMPARE_ELEMENT_VALUES_H_
