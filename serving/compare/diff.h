#ifndef AQT_SERVING_COMPARE_DIFF_H_
#define AQT_SERVING_COMPARE_DIFF_H_

// Compares two checkpoints of any kind, tensor by tensor.
//
// Tensors are compared as numbers, whatever their dtypes: +0 equals -0, and a NaN equals a NaN. Values of 64-bit
// integers are compared exactly. Over the elements that are finite on both sides, max |a - b| and, for floats,
//   snr = 10 log10(sum a^2 / sum (a - b)^2) dB
// With `bitwise`, bytes are compared instead, and there are no figures of values.
//
// A difference is: a tensor in only one of the two; another dtype or shape; another value (or byte); another value in
// config.json. Everything else, such as metadata and other files, is a note.
//
// Memory: blocks of 256 KiB per thread. All bytes are compared first; only the tensors that differ are read again for
// their figures. The report does not depend on the number of threads.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/tools/progress.h"

namespace aqt::serving {

struct DiffOptions {
  bool bitwise = false;
  bool ignore_dtypes = false;  // another dtype alone is no difference
  int jobs = 1;
  // Checked while tensors are read; true ends the work with Cancelled.
  const std::atomic<bool>* cancelled = nullptr;
  // Called with the bytes of work to do; may return null.
  std::function<std::unique_ptr<Progress>(int64_t)> make_progress;
};

// A tensor that both have and that differs.
struct TensorDiff {
  io::TensorSpec a, b;    // of the same name
  bool compared = false;  // false: the shapes (bitwise: the sizes) differ, so that there is nothing to compare
  // Elements, parts of complex numbers or, with `bitwise`, bytes.
  int64_t count = 0;
  int64_t different = 0;
  int64_t first = -1;      // the index of the first that differs
  int64_t non_finite = 0;  // of those that differ: NaN or infinite on at least one side
  double max_abs_difference = 0;
  std::optional<double> snr_db;  // if both are floats; infinite if no finite value differs
};

// A member of config.json that differs. `a` and `b` are JSON texts; empty if the member is absent.
struct ConfigDiff {
  std::string key;  // "text_config.vocab_size"
  std::string a, b;
};

struct DiffReport {
  std::string path_a, path_b;
  bool bitwise = false;
  int64_t num_equal = 0;                       // tensors
  int64_t num_other_bytes = 0;                 // of these, the ones that are equal as numbers but not byte for byte
  std::vector<TensorDiff> different;           // in the order of A
  std::vector<io::TensorSpec> only_a, only_b;  // in the order of A and of B
  std::vector<ConfigDiff> config;
  std::vector<std::string> notes;

  bool same() const { return different.empty() && only_a.empty() && only_b.empty() && config.empty(); }
};

// Compares the tensors. DataLoss if one of the two is damaged.
absl::StatusOr<DiffReport> Diff(const io::TensorSource& a, const io::TensorSource& b, const DiffOptions& options);

void PrintDiff(const DiffReport& report, std::ostream& out);
std::string DiffToJson(const DiffReport& report);

}  // namespace aqt::serving

#endif  // AQT_SERVING_COMPARE_DIFF_H_
