#ifndef AQT_CORE_CEIL_DIV_H_
#define AQT_CORE_CEIL_DIV_H_

#include <cstdint>

namespace aqt {

// a / b rounded up, for a >= 0 and b > 0.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
// The smallest multiple of b that is at least a.
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace aqt

#endif  // AQT_CORE_CEIL_DIV_H_
