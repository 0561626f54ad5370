#ifndef AQT_SERVING_FORMATS_QUANTIZED_ALREADY_H_
#define AQT_SERVING_FORMATS_QUANTIZED_ALREADY_H_

#include "absl/status/status.h"
#include "aqt/io/checkpoint.h"
#include "serving/formats/quantization_config.h"

namespace aqt::serving {

// Unimplemented, naming the evidence and the remedy, if the checkpoint is quantized already. The evidence is in
// config.json, in a file beside it (GPTQ, AWQ, ModelOpt), or in the tensors: scales, zero points and packed values with
// the names that known methods use, or a weight of an integer or 8-bit float type. Reads headers only.
absl::Status CheckNotQuantized(const io::Checkpoint& checkpoint, const ModelConfig& model);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_QUANTIZED_ALREADY_H_
