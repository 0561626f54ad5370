#include "serving/convert/float_input.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/stored/stored_config.h"
#include "serving/formats/quantized_already.h"

namespace aqt::serving {

absl::StatusOr<std::unique_ptr<stored::DequantizedSource>> OpenQuantized(const io::FileSystem& fs,
                                                                         const io::Checkpoint& input,
                                                                         const ModelConfig& model, DType dtype) {
  const absl::Status not_quantized = CheckNotQuantized(input, model);
  if (not_quantized.ok()) return std::unique_ptr<stored::DequantizedSource>();
  AQT_ASSIGN_OR_RETURN(const stored::StoredConfig config, stored::ReadStoredConfig(fs, input));
  absl::StatusOr<std::unique_ptr<stored::DequantizedSource>> source =
      stored::DequantizedSource::Open(input, config, dtype);
  // No format that can be read, though something shows that the input is quantized.
  if (absl::IsFailedPrecondition(source.status())) {
    return absl::UnimplementedError(absl::StrCat(not_quantized.message(), ". It cannot be dequantized: ",
                                                 "the method is not one that can be read; start from the floating ",
                                                 "point original"));
  }
  return source;
}

ModelConfig WithoutQuantization(ModelConfig model) {
  model.quantization_config.reset();
  model.quant_method.clear();
  model.quantization_file.clear();
  return model;
}

void LeaveOutQuantizationFiles(CarriedFiles& files) {
  std::erase_if(files.copied, [](const std::string& name) { return !FindQuantizationFile({name}).empty(); });
}

std::string RequantizeWarning(const stored::DequantizedSource& source) {
  return absl::StrCat("the input is quantized already (", source.Description(), "): its ", source.num_dequantized(),
                      " weights are dequantized and rounded again, so that the errors of both roundings are in the ",
                      "output; start from the floating point original if you can");
}

}  // namespace aqt::serving
