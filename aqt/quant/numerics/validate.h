#ifndef AQT_QUANT_NUMERICS_VALIDATE_H_
#define AQT_QUANT_NUMERICS_VALIDATE_H_

// Checks of a configuration that do not depend on shapes. Each function checks only what its struct adds to its parts;
// Validate(const Quantizer&) is in quantizer.h. DotGeneralPlan::Make rejects the same configurations and more.

#include <optional>

#include "absl/status/status.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/config/config.h"

namespace aqt {

// InvalidArgument for per_tensor together with axes.
absl::Status ValidateSharedAxes(const SharedAxes& shared);

// InvalidArgument for a bias without DEQUANT_MODE_THIS_INPUT.
absl::Status ValidateTensor(const TensorConfig& tensor);

// For a side of fwd: InvalidArgument for OUTPUT with REMAINING_AXIS, and for OTHER_INPUT with CONTRACTING_AXIS. In dlhs
// and drhs these are legal if the scale's shape allows them: with calib_shared_axes, or axes of extent 1.
absl::Status ValidateForwardModes(const TensorConfig& tensor);

// InvalidArgument for a dtype that accumulators cannot have, and for s32 if an operand enters as a non-integer.
absl::Status ValidateAccumulator(const DotGeneralRawConfig& raw);

// The dtype in which an operand enters the product; null: the dtype of the tensor or of its scaled value.
std::optional<DType> ProductDType(const TensorConfig& tensor);

// InvalidArgument for an alpha that is not finite, and for alphas with CALIBRATION_MODE_REMAINING_AXIS on a side.
absl::Status ValidateMidAlphas(const DotGeneralRawConfig& raw);

// InvalidArgument for a block that is not a power of two from 2 to 4096, and for a hadamard together with mid alphas or
// without a quantized operand.
absl::Status ValidateHadamard(const DotGeneralRawConfig& raw);

// InvalidArgument when a field is missing, not positive, or does not belong to the rule.
absl::Status ValidateLocalAqt(const LocalAqt& config);

// For an operand of a contraction with local_aqt: InvalidArgument when it has calib_shared_axes.
absl::Status ValidateTensorOfLocalAqt(const TensorConfig& tensor);

// For use_fwd_quant, which reuses the quantization of one side of `fwd`: InvalidArgument when it cannot be used in the
// backward pass.
absl::Status ValidateUseFwdQuant(const DotGeneralRawConfig& fwd, Side side);

}  // namespace aqt

#endif  // AQT_QUANT_NUMERICS_VALIDATE_H_
