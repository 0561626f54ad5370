#ifndef AQT_TESTS_DIGEST_OTHER_CASES_H_
#define AQT_TESTS_DIGEST_OTHER_CASES_H_

// Cases that are not of a plan: the functions beside contractions, which share their arithmetic.

#include <cstdint>

namespace aqt::digest {

struct Case;

Case DrawQuantDot(uint64_t seed);  // QuantizeToBits, QuantDotGeneral
Case DrawGptq(uint64_t seed);      // UpdateHessian, GptqQuantize
Case DrawQuantize(uint64_t seed);  // Quantize or CalibrateWithState, Dequantize, QuantizeGradient

}  // namespace aqt::digest

#endif  // AQT_TESTS_DIGEST_OTHER_CASES_H_
