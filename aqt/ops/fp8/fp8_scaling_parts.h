#ifndef AQT_OPS_FP8_FP8_SCALING_PARTS_H_
#define AQT_OPS_FP8_FP8_SCALING_PARTS_H_

// The parts that define the operations of fp8_scaling.h, for serialization. Internal.

#include <memory>
#include <optional>
#include <variant>

#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/composite.h"
#include "aqt/ops/fp8/fp8_scaling.h"

namespace aqt::internal {

// fp8_quantize, or fp8_quantize_dequantize: the arguments of ops::Fp8Quantize.
struct Fp8QuantizeParts {
  DType dtype = DType::kE4M3FN;
  std::optional<DType> compute_dtype = std::nullopt;
  bool dequantizes = false;
};

// Fp8ScaleRule defines fp8_update.
using Fp8ScalingParts = std::variant<Fp8QuantizeParts, Fp8ScaleRule>;

// The parts of `op`; null for any other operation.
std::optional<Fp8ScalingParts> Fp8ScalingPartsOf(const Composite& op);

// The operation. InvalidArgument for a dtype or a margin that no fp8 op accepts.
absl::StatusOr<std::shared_ptr<const Composite>> MakeFp8ScalingOp(const Fp8ScalingParts& parts);

}  // namespace aqt::internal

#endif  // AQT_OPS_FP8_FP8_SCALING_PARTS_H_
