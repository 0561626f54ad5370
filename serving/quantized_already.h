#ifndef AQT_SERVING_QUANTIZED_ALREADY_H_
#define AQT_SERVING_QUANTIZED_ALREADY_H_

#include "absl/status/status.h"
#include "aqt/io/checkpoint.h"
#include "serving/quantization_config.h"

namespace aqt::serving {

// Unimplemented, naming what shows it and the remedy, when the checkpoint is quantized already: config.json says so;
// a file beside it does (GPTQ, AWQ, ModelOpt); or its tensors do: scales, zero points and packed values as the known
// methods name them, or a weight of an integer or 8-bit float type. From headers only.
absl::Status CheckNotQuantized(const io::Checkpoint& checkpoint, const ModelConfig& model);

}  // namespace aqt::serving

#endif  // AQT_SERVING_QUANTIZED_ALREADY_H_
