#ifndef AQT_SERVING_COMPARE_INSPECT_H_
#define AQT_SERVING_COMPARE_INSPECT_H_

// The contents of a checkpoint.

#include <atomic>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/formats/quantization_config.h"

namespace aqt::serving {

// Over the elements that are not NaN, infinities included; `nans` counts the NaNs.
struct TensorStats {
  double min = 0;
  double max = 0;
  int64_t nans = 0;
};

// The beginning of InspectReport::quantization if the configuration cannot be read.
inline constexpr char kNotUnderstood[] = "not understood: ";

struct InspectReport {
  struct Tensor {
    io::TensorInfo info;
    std::string file;
    std::optional<TensorStats> stats;  // null without --stats, for types without numbers (F4, ...) and for empty
                                       // tensors
  };
  struct DTypeCount {
    io::FileDType dtype;
    int64_t tensors = 0;
    int64_t bytes = 0;
  };
  std::string path;
  std::vector<std::string> files;
  std::vector<Tensor> tensors;
  std::vector<DTypeCount> dtypes;  // largest first
  int64_t bytes = 0;
  std::vector<std::pair<std::string, std::string>> metadata;  // {"file: key" or "key", value}
  std::string quantization;                                   // one line per group, or empty
  std::vector<std::string> other_files;                       // in the folder; filled in by the caller
  std::vector<std::string> warnings;                          // about links, and files that cannot be read
};

struct InspectOptions {
  bool stats = false;  // reads all tensors
  // Checked while tensors are read; true ends the work with Cancelled.
  const std::atomic<bool>* cancelled = nullptr;
};

// DataLoss when the source is damaged.
absl::StatusOr<InspectReport> Inspect(const io::TensorSource& source, const ModelConfig& model,
                                      const InspectOptions& options);

void PrintInspect(const InspectReport& report, std::ostream& out);
std::string InspectToJson(const InspectReport& report);

}  // namespace aqt::serving

#endif  // AQT_SERVING_COMPARE_INSPECT_H_
