#ifndef AQT_SERVING_CONVERT_QUANTIZED_SOURCE_H_
#define AQT_SERVING_CONVERT_QUANTIZED_SOURCE_H_

// A checkpoint as `aqt convert` would write it, without writing it: to quantize a model while it is loaded.
//
//   QuantizeOptions options;
//   options.recipe.preset = "w8a8_dynamic";
//   AQT_ASSIGN_OR_RETURN(const auto weights, QuantizedSource::Open(fs, "model", options));
//   const models::GivenWeights given = {weights.get(), weights->config()};
//   AQT_ASSIGN_OR_RETURN(const models::EncoderModel model, models::ModelFromFolder(fs, "model", &given));

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/stored/stored_config.h"
#include "serving/convert/model_input.h"
#include "serving/convert/weight_encoder.h"
#include "serving/plan/calibration.h"
#include "serving/plan/plan.h"
#include "serving/plan/recipe.h"

namespace aqt::serving {

struct QuantizeOptions {
  RecipeSource recipe;
  std::string calibration = "";  // as in ConvertJob
  int jobs = 1;                  // threads that look for global scales and values that are not finite
  const std::atomic<bool>* cancelled = nullptr;
};

// The tensors have the names, dtypes and bytes that a conversion writes. A weight is quantized when a part of it is
// read. Memory: one weight in floating point while it is quantized, and its parts until another weight is read.
class QuantizedSource final : public io::TensorSource {
 public:
  // The errors of RunConvertJob that concern the input and the recipe.
  static absl::StatusOr<std::unique_ptr<QuantizedSource>> Open(const io::FileSystem& fs, absl::string_view path,
                                                               const QuantizeOptions& options);

  // How the weights are quantized: what the conversion writes to config.json, as it is read from there.
  const stored::StoredConfig& config() const { return config_; }
  int num_quantized() const { return plan_.num_quantized; }

 private:
  QuantizedSource(io::Checkpoint checkpoint, Recipe recipe)
      : checkpoint_(std::move(checkpoint)), recipe_(std::move(recipe)) {}
  absl::Status MakePlan(const io::FileSystem& fs, const QuantizeOptions& options, std::vector<std::string>& warnings);
  void SetTensors(std::vector<std::string> warnings);
  absl::Status ReadBytes(const io::TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override;

  const io::Checkpoint checkpoint_;
  const Recipe recipe_;
  std::optional<ModelInput> input_;  // of checkpoint_
  Calibration calibration_;
  Plan plan_;                             // of *input_
  std::optional<WeightEncoder> encoder_;  // of plan_, recipe_ and calibration_
  stored::StoredConfig config_;
  std::vector<const TensorPlan*> plan_of_;  // of each of tensors()

  mutable std::mutex mutex_;
  mutable const TensorPlan* encoded_of_ = nullptr;  // guarded by mutex_, like encoded_
  mutable std::vector<StoredRows> encoded_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_QUANTIZED_SOURCE_H_
