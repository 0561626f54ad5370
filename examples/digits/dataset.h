#ifndef EXAMPLES_DIGITS_DATASET_H_
#define EXAMPLES_DIGITS_DATASET_H_

// The 1797 handwritten digits of digits.csv: "label,p0,...,p63", 8x8 pixels with values 0 to 16.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace digits {

inline constexpr int64_t kPixels = 64;
inline constexpr int64_t kClasses = 10;
inline constexpr int64_t kTrainRows = 1437;  // the usual split: the first rows train, the last 360 test

struct Dataset {
  std::vector<float> pixels;  // [rows, 64], scaled to 0..1 (exactly: the divisor is 16)
  std::vector<int> labels;    // [rows], 0..9

  int64_t rows() const { return static_cast<int64_t>(labels.size()); }
  absl::Span<const float> row(int64_t i) const { return absl::MakeConstSpan(&pixels[i * kPixels], kPixels); }
  // Rows first .. last-1.
  Dataset Slice(int64_t first, int64_t last) const;
};

// NotFound if the file cannot be opened; InvalidArgument, with the line's number, if a line is not a label and 64
// pixels.
absl::StatusOr<Dataset> ReadDataset(const std::string& path);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_DATASET_H_
