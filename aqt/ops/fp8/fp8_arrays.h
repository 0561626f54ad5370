#ifndef AQT_OPS_FP8_FP8_ARRAYS_H_
#define AQT_OPS_FP8_FP8_ARRAYS_H_

// The arithmetic of fp8_scaling.h and fp8_dot.h on memory, by the kernels. Internal. The expansions of the operations,
// made of basic operations, give the same bits.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/ops/fp8/fp8_scaling.h"
#include "aqt/quant/contraction/engine/contract.h"

namespace aqt::internal {

// The scale for a history whose largest number is `amax`.
float NextFp8Scale(float amax, float previous, double fp8_max, int margin, const Fp8Compat& compat);

// The state after a step on a tensor whose largest magnitude is `amax`. The histories do not overlap.
struct Fp8State {
  float scale;
  absl::Span<const float> amax_history;
};
void UpdateFp8State(float amax, const Fp8State& state, const Fp8ScaleRule& rule, float* next_scale,
                    float* next_history);

// The largest magnitude of a dense array.
float Fp8AmaxOf(const ArrayRef& x, Executor* executor);

// Writes the codes of x, both dense. Returns the largest magnitude of x if it is asked for (else 0): x is read once.
absl::StatusOr<float> QuantizeToFp8(const ArrayRef& x, float scale, DType dtype, std::optional<DType> compute_dtype,
                                    bool with_amax, void* codes, Executor* executor);
// The codes in basic operations.
Value QuantizeToFp8(const Value& x, const Value& scale, DType dtype, std::optional<DType> compute_dtype);

// The product of the dequantized operands in `dtype`, to which the scales are rounded first. If both scales are powers
// of two: (sum over the contracting axes of the codes * lhs_scale) * rhs_scale, rounded to `dtype`, where the sum is
// that of bf16 operands in f32 (kernels/gemm/table.h).
class Fp8Product {
 public:
  Fp8Product(const Aval& lhs, const Aval& rhs, const DotDims& dims, DType dtype);
  const Aval& out() const { return out_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }

  // Dense codes with their scales.
  struct Operand {
    const void* codes;
    float scale;
  };
  // `scratch` has scratch_bytes; `rhs_panels` is null, or the rhs packed by PackFp8.
  absl::Status Run(const Operand& lhs, const Operand& rhs, void* out, void* scratch, Executor* executor,
                   const void* rhs_panels = nullptr) const;

 private:
  const Aval lhs_, rhs_, out_;
  const Contraction contraction_;
  const int64_t scratch_bytes_;
};
// The same in basic operations.
Value MultiplyFp8(const Value& lhs, const Value& lhs_scale, const Value& rhs, const Value& rhs_scale,
                  const DotDims& dims, DType dtype);

// [m, k] x [k, n].
const DotDims& Fp8ForwardDims();

// The codes of a kernel [k, n] packed for the products with codes of x [m, k], by Fp8ForwardDims: the `rhs_panels` of
// Fp8Product. Not of empty shapes.
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
