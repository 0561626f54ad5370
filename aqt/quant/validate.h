#ifndef AQT_QUANT_VALIDATE_H_
#define AQT_QUANT_VALIDATE_H_

// What is wrong with a configuration whatever the shapes are. Each function checks what its struct adds to its parts,
// and not the parts; Validate(const Quantizer&) is in quantizer.h. DotGeneralPlan::Make refuses the same and more.

#include "absl/status/status.h"
#include "aqt/quant/config.h"

namespace aqt {

// InvalidArgument for a pair of modes that does not go together, and for a bias without DEQUANT_MODE_THIS_INPUT.
absl::Status ValidateTensor(const Tensor& tensor);

// InvalidArgument for a dtype that is no accumulator's, and for s32 with an operand of the product that is no integer.
absl::Status ValidateAccumulator(const DotGeneralRaw& raw);

// The dtype in which an operand enters the product; null when that of the tensor or of its scaled value.
std::optional<DType> ProductDType(const Tensor& tensor);

// For use_fwd_quant, which takes the quantization of `forward`, an operand of fwd: InvalidArgument when that cannot be
// used backward.
absl::Status ValidateUseFwdQuant(const Tensor& forward);

}  // namespace aqt

#endif  // AQT_QUANT_VALIDATE_H_
