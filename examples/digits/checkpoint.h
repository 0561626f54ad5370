#ifndef EXAMPLES_DIGITS_CHECKPOINT_H_
#define EXAMPLES_DIGITS_CHECKPOINT_H_

// A digits classifier as a folder: config.json, and model.safetensors with layers.<i>.weight F32 [out, in] and
// layers.<i>.bias F32 [out].

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/digits/mlp.h"

namespace digits {

// AlreadyExists when `folder` exists and is not empty; the folder appears complete or not at all.
absl::Status WriteMlp(const Mlp& mlp, const std::string& folder);

// Reads what WriteMlp wrote or what `aqt convert` made of it: an I8 weight is multiplied by its layers.<i>.weight_scale
// [out, 1]. DataLoss when a tensor's type or shape does not fit.
absl::StatusOr<Mlp> ReadMlp(const std::string& folder);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_CHECKPOINT_H_
