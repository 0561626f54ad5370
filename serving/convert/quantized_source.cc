#include "serving/convert/quantized_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/convert/convert.h"
#include "serving/convert/plan_input.h"
#include "serving/formats/quantization_config.h"
#include "serving/plan/whole_checkpoint.h"

namespace aqt::serving {

absl::StatusOr<std::unique_ptr<QuantizedSource>> QuantizedSource::Open(const io::FileSystem& fs, absl::string_view path,
                                                                       const QuantizeOptions& options) {
  AQT_ASSIGN_OR_RETURN(Recipe recipe, LoadRecipe(fs, options.recipe));
  if (recipe.config.has_value()) {
    for (const ConfigRule& rule : recipe.config->rules) {
      if (!rule.gguf.has_value()) continue;
      return absl::InvalidArgumentError(absl::StrCat("the rule ", io::Printable(rule.name),
                                                     " has `gguf`, a type of GGUF files; weights that are ",
                                                     "quantized while they are loaded need `quantize`"));
    }
  }
  AQT_ASSIGN_OR_RETURN(io::Checkpoint checkpoint, io::Checkpoint::Open(fs, path, InputFiles(fs)));
  std::unique_ptr<QuantizedSource> source(new QuantizedSource(std::move(checkpoint), std::move(recipe)));
  AQT_ASSIGN_OR_RETURN(std::vector<std::string> warnings, CheckWhole(fs, source->checkpoint_));
  AQT_RETURN_IF_ERROR(source->MakePlan(fs, options, warnings));
  AQT_ASSIGN_OR_RETURN(
      source->config_,
      stored::ParseStoredConfig(QuantizationConfigToJson(source->plan_.quantization_config), "the quantization"));
  source->SetTensors(std::move(warnings));
  return source;
}

absl::Status QuantizedSource::MakePlan(const io::FileSystem& fs, const QuantizeOptions& options,
                                       std::vector<std::string>& warnings) {
  InputOptions input_options;
  if (recipe_.config.has_value()) input_options.families = recipe_.config->families;
  AQT_ASSIGN_OR_RETURN(ModelInput input, ModelInput::Open(fs, checkpoint_, input_options));
  input_.emplace(std::move(input));
  CheckpointPlanOptions plan_options;
  plan_options.single_file = true;
  AQT_ASSIGN_OR_RETURN(plan_, PlanInput(*input_, recipe_, plan_options));
  if (!options.calibration.empty()) {
    AQT_ASSIGN_OR_RETURN(calibration_, ReadCalibration(fs, options.calibration));
  }
  AQT_RETURN_IF_ERROR(CheckCalibration(input_->tensors(), plan_, calibration_, recipe_.strict, warnings));
  const ConvertOptions convert_options = {.jobs = options.jobs, .cancelled = options.cancelled};
  if (recipe_.keep_non_finite) {
    AQT_ASSIGN_OR_RETURN(plan_options.keep_float, FindNonFinite(input_->tensors(), plan_, convert_options));
    if (!plan_options.keep_float.empty()) {
      AQT_ASSIGN_OR_RETURN(plan_, PlanInput(*input_, recipe_, plan_options));
    }
  }
  const std::vector<std::string> of_plan = AllWarnings(plan_);
  warnings.insert(warnings.end(), of_plan.begin(), of_plan.end());
  AQT_ASSIGN_OR_RETURN(WeightEncoder encoder,
                       WeightEncoder::Make(input_->tensors(), plan_, recipe_, calibration_, convert_options));
  encoder_.emplace(std::move(encoder));
  return absl::OkStatus();
}

void QuantizedSource::SetTensors(std::vector<std::string> warnings) {
  std::vector<const TensorPlan*> plans;
  for (const TensorPlan& tensor : plan_.tensors) plans.push_back(&tensor);
  const auto shard = [](const TensorPlan* tensor) { return tensor->input->shard; };
  std::stable_sort(plans.begin(), plans.end(),
                   [&](const TensorPlan* a, const TensorPlan* b) { return shard(a) < shard(b); });
  std::vector<io::TensorInfo> tensors;
  for (const TensorPlan* tensor : plans) {
    for (const io::TensorSpec& output : tensor->outputs) {
      io::TensorInfo info;
      static_cast<io::TensorSpec&>(info) = output;
      info.shard = shard(tensor);
      info.begin = tensors.empty() || tensors.back().shard != info.shard ? 0 : tensors.back().end;
      info.end = info.begin + *io::TensorBytes(output.dtype, output.shape);
      tensors.push_back(std::move(info));
      plan_of_.push_back(tensor);
    }
  }
  SetContents(input_->tensors().path(), input_->tensors().shards(), std::move(tensors), std::move(warnings));
}

absl::Status QuantizedSource::ReadBytes(const io::TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  const io::TensorInfo* const found = Find(tensor.name);
  const TensorPlan& plan = *plan_of_[found - tensors().data()];
  if (!plan.quantized()) return input_->tensors().Read(*plan.input, offset, dst);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (encoded_of_ != &plan) {
    encoded_of_ = nullptr;
    encoded_.clear();
    AQT_ASSIGN_OR_RETURN(const Array weight, input_->tensors().ReadArray(*plan.input));
    AQT_ASSIGN_OR_RETURN(encoded_, encoder_->Encode(plan, 0, weight));
    AQT_ASSIGN_OR_RETURN(const std::vector<StoredRows> input, encoder_->EncodeInput(plan));
    encoded_.insert(encoded_.end(), input.begin(), input.end());
    encoded_of_ = &plan;
  }
  for (const StoredRows& part : encoded_) {
    if (absl::StrCat(plan.module(), part.suffix) != tensor.name) continue;
    AQT_CHECK(part.rows.num_bytes() == tensor.num_bytes());
    std::memcpy(dst.data(), static_cast<const uint8_t*>(part.rows.data()) + offset, dst.size());
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(io::Printable(tensor.name), " was not encoded"));
}

}  // namespace aqt::serving
