#ifndef TESTS_E2E_DATA_PARALLEL_CHECK_H_
#define TESTS_E2E_DATA_PARALLEL_CHECK_H_

// Checks the guarantees of training on several processes (docs/training.md), with any transport: data_parallel_test
// uses threads, data_parallel_mpi_test MPI. Each process also trains alone on the complete batch, and compares.

#include <string>

#include "absl/status/status.h"
#include "aqt/collective/collective.h"

namespace aqt::testing {

// Twenty int8 steps with AQT's noise: after every step, parameters, momentum and statistics have the bits of one
// process, and the loss is within its bound. Calibration is per column, per tensor, and with powers of two.
absl::Status CheckInt8Training(Collective& collective);

// With FloatSums::kGather, everything including the loss has the bits of one process, for a model with biases, norms,
// dropout, Adam and clipping, and for a convolution.
absl::Status CheckGatheredTraining(Collective& collective);

// The gradients of biases and of float kernels are within their bounds.
absl::Status CheckFloatGradients(Collective& collective);

// Histories and scales of sharded tensors, and those of FP8 layers in training, have the bits of one process.
absl::Status CheckFp8(Collective& collective);

// A step that fails in the last process, before or while its program runs, is an error in all processes that names the
// last one. They then continue with the bits of one process.
absl::Status CheckFailures(Collective& collective);

// A training that process 0 saves in `folder` and that all resume has the bytes of an uninterrupted one. If processes
// start differently, all report an error.
absl::Status CheckResume(Collective& collective, const std::string& folder);

}  // namespace aqt::testing

#endif  // TESTS_E2E_DATA_PARALLEL_CHECK_H_
