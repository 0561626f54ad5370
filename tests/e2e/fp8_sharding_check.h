#ifndef TESTS_E2E_FP8_SHARDING_CHECK_H_
#define TESTS_E2E_FP8_SHARDING_CHECK_H_

// What an FP8 dense layer divided over a mesh promises (ops/fp8_sharded_dense.h), checked with any engine.

#include "absl/status/status.h"
#include "aqt/collective/collective.h"

namespace aqt::testing {

// Five steps by each of the seven rules of NVIDIA's partition tests, forward and backward, on a mesh of size / 2 x 2
// processes, with NaN and infinite inputs in some: scales and histories have the bits of one process, and so have y and
// the gradients whose sums are not divided; the others are within their bounds. size() must be even.
absl::Status CheckFp8Sharding(Collective& collective);

}  // namespace aqt::testing

#endif  // TESTS_E2E_FP8_SHARDING_CHECK_H_
