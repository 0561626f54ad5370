#ifndef TESTS_E2E_FP8_SHARDING_CHECK_H_
#define TESTS_E2E_FP8_SHARDING_CHECK_H_

// Checks the guarantees of an FP8 dense layer divided over a mesh (ops/fp8/fp8_sharded_dense.h), with any transport.

#include "absl/status/status.h"
#include "aqt/collective/collective.h"

namespace aqt::testing {

// Five steps by each of the seven rules of NVIDIA's partition tests, forward and backward, on a mesh of size / 2 x 2
// processes, with NaN and infinite inputs in some steps. Scales and histories have the bits of one process, and so do y
// and the gradients whose sums are not divided. The others are within their bounds. size() must be even.
absl::Status CheckFp8Sharding(Collective& collective);

}  // namespace aqt::testing

#endif  // TESTS_E2E_FP8_SHARDING_CHECK_H_
