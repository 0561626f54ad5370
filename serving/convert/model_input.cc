#include "serving/convert/model_input.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/stored/stored_config.h"
#include "serving/formats/quantized_already.h"
#include "serving/plan/plan.h"

namespace aqt::serving {

absl::StatusOr<ModelInput> ModelInput::Open(const io::FileSystem& fs, const io::Checkpoint& checkpoint,
                                            const InputOptions& options) {
  AQT_ASSIGN_OR_RETURN(ModelConfig model, ReadModelConfig(fs, checkpoint));
  ModelInput input(checkpoint, std::move(model));
  if (options.dequantize) AQT_RETURN_IF_ERROR(input.Dequantize(fs, options.dtype));
  return input;
}

absl::Status ModelInput::Dequantize(const io::FileSystem& fs, DType dtype) {
  const absl::Status not_quantized = CheckNotQuantized(*checkpoint_, model_);
  if (not_quantized.ok()) return absl::OkStatus();
  AQT_ASSIGN_OR_RETURN(const stored::StoredConfig config, stored::ReadStoredConfig(fs, *checkpoint_));
  absl::StatusOr<std::unique_ptr<stored::DequantizedSource>> source =
      stored::DequantizedSource::Open(*checkpoint_, config, dtype);
  // No format that can be read, though something shows that the input is quantized.
  if (absl::IsFailedPrecondition(source.status())) {
    return absl::UnimplementedError(absl::StrCat(not_quantized.message(), ". It cannot be dequantized: ",
                                                 "the method is not one that can be read; start from the floating ",
                                                 "point original"));
  }
  AQT_ASSIGN_OR_RETURN(dequantized_, std::move(source));
  model_.quantization_config.reset();
  model_.quant_method.clear();
  model_.quantization_file.clear();
  return absl::OkStatus();
}

const io::TensorSource& ModelInput::tensors() const {
  if (dequantized_ != nullptr) return *dequantized_;
  return *checkpoint_;
}

void ModelInput::LeaveOutFiles(CarriedFiles& files) const {
  if (dequantized_ == nullptr) return;
  std::erase_if(files.copied, [](const std::string& name) { return !FindQuantizationFile({name}).empty(); });
}

std::vector<std::string> ModelInput::Notes() const {
  return dequantized_ == nullptr ? std::vector<std::string>() : dequantized_->notes();
}

std::vector<std::string> ModelInput::RequantizeWarnings() const {
  std::vector<std::string> warnings = Notes();
  if (dequantized_ == nullptr) return warnings;
  warnings.push_back(absl::StrCat("the input is quantized already (", dequantized_->Description(), "): its ",
                                  dequantized_->num_dequantized(),
                                  " weights are dequantized and rounded again, so that the errors of both roundings ",
                                  "are in the output; start from the floating point original if you can"));
  return warnings;
}

}  // namespace aqt::serving
