#ifndef AQT_SERVING_CONVERT_CONVERT_H_
#define AQT_SERVING_CONVERT_CONVERT_H_

// Executes a plan: reads the input tensor by tensor, in blocks of rows, and writes a quantized checkpoint. Weights with
// a global scale (NVFP4) are read twice.
//
// Memory: blocks of rows share a budget of 16 MiB, whatever the number of threads. A weight with one scale for the
// whole tensor is held in full, and one above the budget is processed alone. The written bytes depend on neither.

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"
#include "serving/convert/carried_files.h"
#include "serving/convert/output.h"
#include "serving/plan/calibration.h"
#include "serving/plan/plan.h"
#include "serving/tools/progress.h"

namespace aqt::serving {

inline constexpr int kMaxJobs = 64;

struct ConvertOptions {
  int jobs = 1;  // threads, 1 .. kMaxJobs
  Progress* progress = nullptr;
  // Checked between blocks; true ends the work with Cancelled.
  const std::atomic<bool>* cancelled = nullptr;
  // If not null, receives a line for each kind of loss in each weight (weight_loss.h). The lines do not depend on
  // `jobs`.
  std::vector<std::string>* warnings = nullptr;
};

// `files` go to an output folder with the tensors; there may be none. Assumes that all checks that need no weights have
// passed: the plan is for this source and recipe, the place is from CheckOutput, and CheckCalibration accepted the
// calibration. An error leaves no new files and does not touch existing ones. DataLoss, naming the tensor and the
// position, for a weight with a NaN or an infinity.
absl::Status Convert(const io::FileSystem& fs, const io::TensorSource& input, const CarriedFiles& files,
                     const Plan& plan, const Recipe& recipe, const Calibration& calibration, const OutputPlace& place,
                     const ConvertOptions& options);

// The bytes that Convert reads: weights with a global scale twice, because it must be known first.
int64_t BytesToRead(const Plan& plan);

// The weights that the plan quantizes and that hold a NaN or an infinity. Reads all of them.
absl::StatusOr<std::set<std::string>> FindNonFinite(const io::TensorSource& input, const Plan& plan,
                                                    const ConvertOptions& options);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_CONVERT_H_
