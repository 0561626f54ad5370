#ifndef AQT_SERVING_FORMATS_QUANTIZED_ALREADY_H_
#define AQT_SERVING_FORMATS_QUANTIZED_ALREADY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aqt/io/tensors/tensor_source.h"
#include "serving/formats/quantization_config.h"

namespace aqt::serving {

// The file among `files`, those beside the tensors, in which another method describes its quantization (GPTQ, AWQ,
// ModelOpt), or an empty text.
std::string FindQuantizationFile(const std::vector<std::string>& files);

// The evidence that a model is quantized already, for a message, or an empty text. It is in config.json, in a file
// beside it, or in the tensors: scales, zero points and packed values with the names that known methods use, or a
// weight of an integer or 8-bit float type. Reads only headers.
std::string QuantizationEvidence(const io::TensorSource& source, const ModelConfig& model);
// Unimplemented, naming the evidence and the remedy, if there is such evidence.
absl::Status CheckNotQuantized(const io::TensorSource& source, const ModelConfig& model);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_QUANTIZED_ALREADY_H_
