#ifndef EXAMPLES_DIGITS_CHECKPOINT_H_
#define EXAMPLES_DIGITS_CHECKPOINT_H_

// A digits classifier as a folder: config.json, and model.safetensors with layers.<i>.weight F32 [out, in] and
// layers.<i>.bias F32 [out].

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/digits/mlp.h"

namespace digits {

// Writes the folder atomically. AlreadyExists if `folder` exists and is not empty.
absl::Status WriteMlp(const Mlp& mlp, const std::string& folder);

// Reads the output of WriteMlp, or of `aqt convert` applied to it: an I8 weight is multiplied by its
// layers.<i>.weight_scale [out, 1]. DataLoss if a tensor's type or shape does not fit.
absl::StatusOr<Mlp> ReadMlp(const std::string& folder);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_CHECKPOINT_H_
