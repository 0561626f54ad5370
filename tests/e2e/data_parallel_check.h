#ifndef TESTS_E2E_DATA_PARALLEL_CHECK_H_
#define TESTS_E2E_DATA_PARALLEL_CHECK_H_

// What training on several processes promises (docs/training.md), checked with any engine: data_parallel_test runs it
// on threads, data_parallel_mpi_test under MPI. Each process also trains alone on the whole batch, and compares.

#include <string>

#include "absl/status/status.h"
#include "aqt/collective/collective.h"

namespace aqt::testing {

// Twenty int8 steps with AQT's noise: parameters, momentum and statistics have the bits of one process after every
// step, and the loss is within its bound; with calibration by column, over the tensor, and by powers of two.
absl::Status CheckInt8Training(Collective& collective);

// The same for everything, loss included, of a model with biases, norms, dropout, Adam and clipping, and of a
// convolution, with FloatSums::kGather.
absl::Status CheckGatheredTraining(Collective& collective);

// The gradients of biases and of float kernels are within their bounds.
absl::Status CheckFloatGradients(Collective& collective);

// Histories and scales of sharded tensors, and those of FP8 layers in training, have the bits of one process.
absl::Status CheckFp8(Collective& collective);

// A step that fails in the last process, before its program runs and within it, is an error in all processes that names
// the last; then they go on with the bits of one process.
absl::Status CheckFailures(Collective& collective);

// A training that process 0 saves in `folder`, and all resume, has the bytes of one that went on. Processes that start
// differently are errors in all of them.
absl::Status CheckResume(Collective& collective, const std::string& folder);

}  // namespace aqt::testing

#endif  // TESTS_E2E_DATA_PARALLEL_CHECK_H_
