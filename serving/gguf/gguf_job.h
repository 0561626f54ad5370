#ifndef AQT_SERVING_GGUF_GGUF_JOB_H_
#define AQT_SERVING_GGUF_GGUF_JOB_H_

// A GGUF model converted to a GGUF file whose tensors have other types.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/gguf/gguf_writer.h"
#include "aqt/io/file.h"
#include "serving/convert/convert_job.h"
#include "serving/gguf/gguf_plan.h"
#include "serving/plan/recipe.h"
#include "serving/tools/progress.h"

namespace aqt::serving {

struct GgufJob {
  std::string input;   // a file, a file of a set, or a folder
  std::string output;  // a file that ends in .gguf
  RecipeSource recipe;
  bool allow_requantize = false;
  bool force = false;
  int jobs = 1;
  const std::atomic<bool>* cancelled = nullptr;
  std::function<std::unique_ptr<Progress>(int64_t total_bytes)> make_progress;
};

struct GgufReport {
  int num_tensors = 0;
  int num_changed = 0;
  int64_t old_bytes = 0;
  int64_t new_bytes = 0;
  std::vector<std::string> warnings;
};
// As the report of any conversion, for summaries.
ConvertReport ToConvertReport(const GgufReport& report);

// Whether OUT names a GGUF file.
bool IsGgufName(absl::string_view path);

// Checks everything that headers can show before it writes. The output has the tensors of all files of the input, in
// their order, and its metadata byte for byte, except that general.file_type and general.quantization_version describe
// the output, and split.* is left out. The output appears complete or not at all, and does not depend on `jobs`.
// DataLoss, naming tensor and element, for a value that is not finite or too large for the type; the errors of the
// parts.
absl::StatusOr<GgufReport> RunGgufJob(const io::FileSystem& fs, const GgufJob& job);

// The metadata of the output.
absl::StatusOr<std::vector<gguf::MetadataItem>> GgufMetadata(const gguf::GgufModel& model, const GgufPlan& plan);

}  // namespace aqt::serving

#endif  // AQT_SERVING_GGUF_GGUF_JOB_H_
