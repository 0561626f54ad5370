#ifndef AQT_SERVING_CONVERT_FLOAT_INPUT_H_
#define AQT_SERVING_CONVERT_FLOAT_INPUT_H_

// An input that is quantized already, read in floating point.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/stored/dequantized_source.h"
#include "serving/convert/carried_files.h"
#include "serving/formats/quantization_config.h"

namespace aqt::serving {

// Null if nothing shows that the input is quantized; otherwise its weights in `dtype`. The errors of
// stored::DequantizedSource::Open; Unimplemented if the method is not known. `input` must outlive the result.
absl::StatusOr<std::unique_ptr<stored::DequantizedSource>> OpenQuantized(const io::FileSystem& fs,
                                                                         const io::Checkpoint& input,
                                                                         const ModelConfig& model, DType dtype);

// Without what describes the quantization of the input.
ModelConfig WithoutQuantization(ModelConfig model);
// Removes the files that describe a quantization from those that are copied.
void LeaveOutQuantizationFiles(CarriedFiles& files);

// For the user: what is lost when such an input is quantized again.
std::string RequantizeWarning(const stored::DequantizedSource& source);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_FLOAT_INPUT_H_
