#ifndef AQT_QUANT_TENSOR_QUANTIZER_TESTING_H_
#define AQT_QUANT_TENSOR_QUANTIZER_TESTING_H_

// Shared by the tests of quantizer.h.

#include <optional>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/config.h"

namespace aqt {

inline Quantizer AbsMaxInt(int bits, std::optional<DType> container = DType::kS8) {
  return {.numerics = IntSymmetric{.bits = bits, .dtype = container}, .calibration = AbsMax{}};
}

inline std::vector<float> Floats(const Array& x) {
  const Array f32 = Cast(x, DType::kF32);
  return {f32.View<float>().begin(), f32.View<float>().end()};
}

}  // namespace aqt

#endif  // AQT_QUANT_TENSOR_QUANTIZER_TESTING_H_
