#ifndef AQT_OPS_FP8_FP8_ARRAYS_H_
#define AQT_OPS_FP8_FP8_ARRAYS_H_

// The arithmetic of fp8_scaling.h and fp8_dot.h on arrays, by the kernels. Internal. The expansions of the operations
// into basic operations give the same bits.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/ops/fp8/fp8_scaling.h"

namespace aqt::internal {

// The scale for a history whose largest number is `amax`.
float NextFp8Scale(float amax, float previous, double fp8_max, int margin, const Fp8Compat& compat);

// The state after a step on a tensor whose largest magnitude is `amax`.
struct Fp8StateArrays {
  Array scale, amax_history;
};
Fp8StateArrays UpdatedFp8State(float amax, const Array& scale, const Array& history, const Fp8ScaleRule& rule);

float Fp8AmaxOf(const Array& x);

// Codes, and on request the largest magnitude of x; x is read once.
struct Fp8Codes {
  Array codes;
  float amax = 0;
};
absl::StatusOr<Fp8Codes> QuantizeToFp8(const Array& x, const Array& scale, DType dtype,
                                       std::optional<DType> compute_dtype, bool with_amax);
// The codes in basic operations.
Value QuantizeToFp8(const Value& x, const Value& scale, DType dtype, std::optional<DType> compute_dtype);

// The product of the dequantized operands in `dtype`, to which the scales are rounded first. If both scales are powers
// of two: (sum over the contracting axes of the codes * lhs_scale) * rhs_scale, rounded to `dtype`, where the sum is
// that of bf16 operands in f32 (kernels/gemm_table.h).
absl::StatusOr<Array> MultiplyFp8(const Array& lhs, const Array& lhs_scale, const Array& rhs, const Array& rhs_scale,
                                  const DotDims& dims, DType dtype, const void* rhs_panels = nullptr);
// The same in basic operations.
Value MultiplyFp8(const Value& lhs, const Value& lhs_scale, const Value& rhs, const Value& rhs_scale,
                  const DotDims& dims, DType dtype);

// [m, k] x [k, n].
const DotDims& Fp8ForwardDims();

// The codes of a kernel [k, n] packed for products with codes of x [m, k], by Fp8ForwardDims: the `rhs_panels` of
// MultiplyFp8. Not for empty shapes.
struct Fp8Panels {
  int64_t rows = 0;  // m
  int64_t bytes = 0;
  std::string format;  // equal for equal panels
};
Fp8Panels Fp8PanelsOf(const Shape& x, const Shape& kernel);
Array PackFp8(const Array& codes, const Fp8Panels& panels);

// ---- checks, with messages that name the operand

absl::Status CheckFp8DType(DType dtype);
absl::Status CheckFp8ComputeDType(std::optional<DType> compute_dtype);
absl::Status CheckFp8Computes(absl::string_view name, const Aval& x, std::optional<DType> compute_dtype);
absl::Status CheckFp8Scale(absl::string_view name, const Aval& scale);
absl::Status CheckFp8History(absl::string_view name, const Aval& history);
absl::Status CheckFp8Margin(int margin);

// ", compat=all_zero_amax_flips_scale+...", for attributes of operations.
std::string Fp8CompatText(const Fp8Compat& compat);

}  // namespace aqt::internal

#endif  // AQT_OPS_FP8_FP8_ARRAYS_H_
