#ifndef AQT_QUANT_TENSOR_GPTQ_H_
#define AQT_QUANT_TENSOR_GPTQ_H_

// GPTQ (Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
// Transformers", 2022): a weight is rounded feature by feature, and the features not yet rounded compensate for the
// error. It needs the inputs of the contraction on some calibration data, and no gradients.
//
//   HessianState state = HessianState::Zeros(features);
//   for (each batch) state = *UpdateHessian(state, x, /*contracting_axes=*/{1});
//   absl::StatusOr<GptqResult> result = GptqQuantize(quantizer, w, /*contracting_axes=*/{0}, *state.Hessian());
//
// For one row w of the weight (one output of the contraction; its elements are the features), H the Hessian of the
// squared error of the output, and q(.) rounding to the grid that the quantizer's calibration of the *original* weight
// gives:
//   H = 2/n sum over inputs of x x^T;  D = H + percdamp * mean(diag H) * I;  inverse(D) = U^T U, U upper
//   for j = 0, 1, ...:  e = (w_j - dequantized q(w_j)) / U_jj;  w_k = w_k - e * U_jk for k > j
// Everything is in f64 except q(.), which uses Quantize's arithmetic in the dtype of the weight. The bits depend
// neither on threads nor on the machine. It takes features^3 / 3 multiplications and additions for U, 1.5 * features^2
// per row for the rest, and memory for 3 * features^2 doubles.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/executor.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

// The statistics of the inputs, to be stored with other calibration state.
struct HessianState {
  Array sum = {};     // f64 [features, features]: sum of x x^T over the inputs so far
  int64_t count = 0;  // inputs so far

  static HessianState Zeros(int64_t features);
  // 2 / count * sum. FailedPrecondition without inputs.
  absl::StatusOr<Array> Hessian() const;
};

// Adds the inputs x (f32, bf16 or f16) to `state`. The features are `contracting_axes` of x, the first one slowest;
// each index of the other axes is one input. Inputs are added one by one, so any split into batches gives the same
// bits.
// Errors: InvalidArgument for other dtypes, axes or numbers of features, and for a NaN or an infinity.
absl::StatusOr<HessianState> UpdateHessian(const HessianState& state, const ArrayRef& x,
                                           absl::Span<const int64_t> contracting_axes, Executor* executor = nullptr);

// Options of GptqQuantize.
struct GptqOptions {
  double percdamp = 0.01;  // >= 0: fraction of the diagonal's mean that is added to the diagonal
  // Round the features with the largest inputs first (ties: in order). The grid stays that of the original weight.
  bool act_order = false;
  // GPTQ is greedy and can leave a row with a larger error than plain rounding. True: such a row is rounded plainly, so
  // no row gets worse. False: only GPTQ.
  bool keep_nearest_where_better = true;
  const TilingState* tiling = nullptr;  // sub-channel scales, as for Quantize
};

// The result of GptqQuantize.
struct GptqResult {
  // Quantize(quantizer, w, contracting_axes) with other qvalues: the same scales, shapes and dtypes.
  QTensor weight = {};
  int64_t rows = 0;                     // outputs of the contraction
  int64_t rows_kept_nearest = 0;        // by keep_nearest_where_better: plain rounding is at least as good
  double error = 0, nearest_error = 0;  // tr((W - Q) H (W - Q)^T) of the result, and of plain rounding
};

// `w`: f32, bf16 or f16, with the features on `contracting_axes`, in the order of those of x; `hessian`: f64 or f32
// [features, features]. Any numerics that round to nearest. A feature without inputs is rounded to nearest.
// Errors: InvalidArgument for what Quantize rejects, for numerics that do not quantize or that add noise, for a
// calibration with a bias, a NaN or an infinity in w or the Hessian, a Hessian that is not symmetric or has the wrong
// size, and a damping that leaves the Hessian not positive definite.
absl::StatusOr<GptqResult> GptqQuantize(const Quantizer& quantizer, const ArrayRef& w,
                                        absl::Span<const int64_t> contracting_axes, const ArrayRef& hessian,
                                        const GptqOptions& options = {}, const Semantics& semantics = {},
                                        Executor* executor = nullptr);

}  // namespace aqt

#endif  // AQT_QUANT_TENSOR_GPTQ_H_
