#ifndef AQT_SERVING_COMPARE_VERIFY_H_
#define AQT_SERVING_COMPARE_VERIFY_H_

// Compares a quantized checkpoint with its original.
//
// A quantized weight w is compared with d, its stored value after dequantization:
//   snr = 10 log10(sum w^2 / sum (w - d)^2) dB, infinite for d = w;   cosine = sum w d / sqrt(sum w^2 sum d^2)
//   clipped = share of the elements whose stored value is the smallest or largest one and more than one step from w
//             (32 scales at the end of 8-bit floats)
// A large part of a weight can be lost at a high overall SNR, so the SNR is also computed for each row, and for each
// group or block. The SNR of a part that becomes all zero is 0 dB. A weight with a NaN or an infinity on either side
// cannot be compared: that is a problem, whatever the threshold. Every other tensor must be equal byte for byte; index,
// quantization_config and tensors must agree. A folder must have every file that a conversion copies (carried_files.h).

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/shape.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/tensor_source.h"
#include "serving/convert/carried_files.h"
#include "serving/formats/scheme.h"

namespace aqt::serving {

struct VerifyOptions {
  // Thresholds for each weight, each row, and each group or block.
  double min_snr_db = -std::numeric_limits<double>::infinity();
  double min_row_snr_db = -std::numeric_limits<double>::infinity();
  double min_group_snr_db = -std::numeric_limits<double>::infinity();
  int jobs = 1;
  // Checked while tensors are read; true ends the work with Cancelled.
  const std::atomic<bool>* cancelled = nullptr;
};

// The results for one kind of parts of a weight: its rows, groups or blocks.
struct PartsQuality {
  int64_t count = 0;
  // The lowest SNR, where NaN counts as the lowest, and the first part with it, in row-major order.
  double worst_snr_db = std::numeric_limits<double>::infinity();
  int64_t worst = 0;
  int64_t below = 0;  // parts whose SNR misses the threshold
  // Parts with nonzero values that are now all zero; parts with several nonzero values of which only one is left.
  int64_t zeroed = 0, first_zeroed = 0;
  int64_t lone = 0, first_lone = 0;
};

struct WeightQuality {
  std::string name;
  Scheme scheme;
  Shape shape;
  double snr_db = 0;
  double cosine = 0;
  double max_abs_error = 0;
  double clipped_percent = 0;
  PartsQuality rows;
  std::optional<PartsQuality> groups;  // groups or blocks, if the scheme has them
};

struct VerifyReport {
  std::vector<WeightQuality> weights;  // NaN first, then the lowest snr first
  int num_carried = 0;                 // tensors that are equal byte for byte
  std::vector<std::string> problems;   // each names a tensor; empty if all checks pass
  // About weights with parts that became zero, and about global scales that servers cannot use.
  std::vector<std::string> warnings;
};

// `files` are those of the input, which an output folder must have. DataLoss if one of the two is damaged or `output`
// has no quantization_config; InvalidArgument or Unimplemented if that cannot be read.
absl::StatusOr<VerifyReport> Verify(const io::FileSystem& fs, const io::TensorSource& input, const CarriedFiles& files,
                                    const io::Checkpoint& output, const VerifyOptions& options);

// Minimum and mean are over the finite SNRs; the others are counted. In JSON, NaN is null and infinity is "inf".
void PrintVerify(const VerifyReport& report, std::ostream& out);
std::string VerifyToJson(const VerifyReport& report);

}  // namespace aqt::serving

#endif  // AQT_SERVING_COMPARE_VERIFY_H_
