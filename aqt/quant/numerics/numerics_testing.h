#ifndef AQT_QUANT_NUMERICS_NUMERICS_TESTING_H_
#define AQT_QUANT_NUMERICS_NUMERICS_TESTING_H_

// Shared by the tests of numerics.h.

#include "aqt/quant/numerics/numerics.h"

#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/config.h"

namespace aqt {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline const float kNaN = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> Forward(const Numerics& numerics, const std::vector<float>& y, const Context& context = {}) {
  const absl::StatusOr<Array> q =
      NumericsForward(numerics, ArrayRef(y.data(), {static_cast<int64_t>(y.size())}), context);
  EXPECT_TRUE(q.ok()) << q.status();
  const Array f32 = Cast(*q, DType::kF32);
  return {f32.View<float>().begin(), f32.View<float>().end()};
}

inline std::vector<float> Backward(const Numerics& numerics, const std::vector<float>& y, const std::vector<float>& g) {
  const int64_t n = static_cast<int64_t>(y.size());
  const absl::StatusOr<Array> r = NumericsBackward(numerics, ArrayRef(y.data(), {n}), ArrayRef(g.data(), {n}));
  EXPECT_TRUE(r.ok()) << r.status();
  return {r->View<float>().begin(), r->View<float>().end()};
}

}  // namespace aqt

#endif  // AQT_QUANT_NUMERICS_NUMERICS_TESTING_H_
