#ifndef AQT_SERVING_CONVERT_CONVERT_JOB_H_
#define AQT_SERVING_CONVERT_CONVERT_JOB_H_

// A conversion from the options of the command line to the finished output: `aqt convert` without the printing.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/gguf/gguf_source.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/plan/plan.h"
#include "serving/plan/recipe.h"
#include "serving/tools/progress.h"

namespace aqt::serving {

struct ConvertJob {
  std::string input;
  std::string output;
  std::optional<io::FileDType> raw_dtype;  // of the input's elements: ContainerOptions in open_container.h
  RecipeSource recipe;
  std::string calibration;           // empty: none
  std::vector<std::string> exclude;  // patterns of files not to copy: file_glob.h
  // An input that is quantized already is dequantized to f32, and quantized again.
  bool allow_requantize = false;
  // Instead of quantizing, writes the weights of a quantized input in this dtype: f32, bf16 or f16. Of `recipe`, only
  // `experts` is used, and `calibration` is not.
  std::optional<DType> dequantize_to;
  gguf::Names gguf_names = gguf::Names::kModel;  // of the tensors of a GGUF file
  bool force = false;
  int jobs = 1;
  int64_t max_shard_bytes = 0;  // 0: the shards of the input
  const std::atomic<bool>* cancelled = nullptr;
  // Called with the number of bytes to read once all checks have passed; may return null.
  std::function<std::unique_ptr<Progress>(int64_t)> make_progress;
};

struct ConvertReport {
  int num_tensors = 0;
  int num_quantized = 0;
  int num_dequantized = 0;
  std::string experts;       // how experts were split, for the user; empty if they were not
  std::string input_format;  // of a quantized input: "gptq: v1, 4 bits"
  int64_t old_bytes = 0;
  int64_t new_bytes = 0;
  std::vector<CopiedFile> copied;  // beside the tensors
  std::vector<std::string> warnings;
};

// Checks everything that headers can show before it writes. The errors of the parts; Unimplemented if the input is
// quantized already and neither of the two options allows it, InvalidArgument if it is to be dequantized and is not
// quantized, or those of CheckWhole (whole_checkpoint.h) if it is not a whole model.
absl::StatusOr<ConvertReport> RunConvertJob(const io::FileSystem& fs, const ConvertJob& job);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_CONVERT_JOB_H_
