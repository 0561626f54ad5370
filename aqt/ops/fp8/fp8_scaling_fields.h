#ifndef AQT_OPS_FP8_FP8_SCALING_FIELDS_H_
#define AQT_OPS_FP8_FP8_SCALING_FIELDS_H_

// The fields of the operations of fp8_scaling.h (graph/composite_fields.h), and the operations. Internal.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/composite.h"
#include "aqt/ops/fp8/fp8_scaling.h"

namespace aqt::internal {

// fp8_quantize, or fp8_quantize_dequantize: the arguments of ops::Fp8Quantize.
struct Fp8QuantizeFields {
  DType dtype = DType::kE4M3FN;
  std::optional<DType> compute_dtype = std::nullopt;
  bool dequantizes = false;
  static constexpr const char* kFieldNames[] = {"dtype", "compute_dtype", "dequantizes"};
  bool operator==(const Fp8QuantizeFields&) const = default;
};

// The operation; for a rule, fp8_update. InvalidArgument for a dtype or a margin that no fp8 op accepts.
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const Fp8QuantizeFields& fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const Fp8ScaleRule& rule);

}  // namespace aqt::internal

#endif  // AQT_OPS_FP8_FP8_SCALING_FIELDS_H_
