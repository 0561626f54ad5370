#ifndef AQT_SERVING_CONVERT_CARRIED_FILES_H_
#define AQT_SERVING_CONVERT_CARRIED_FILES_H_

// The files of a model's folder that are not its tensors: which of them a conversion carries over.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/checkpoint.h"
#include "aqt/io/file.h"

namespace aqt::serving {

struct CarriedFiles {
  std::vector<std::string> copied;  // byte for byte; config.json is not among them, it is written anew
  // The model's weights in other frameworks' formats, beside its tensors. They are not carried over, since they would
  // only be floating point dead weight; in the folders of the model's other parts they are.
  std::vector<std::string> foreign_weights;
};
CarriedFiles FilesToCarry(const io::Checkpoint& input);

// The size of the files that are copied.
absl::StatusOr<int64_t> CarriedBytes(const io::FileSystem& fs, const io::Checkpoint& input);

// One problem for each file that the output folder lacks, and for each file with weights that differs. Cancelled if
// `cancelled` becomes true.
absl::StatusOr<std::vector<std::string>> CompareCarriedFiles(const io::FileSystem& fs, const io::Checkpoint& input,
                                                             const io::Checkpoint& output,
                                                             const std::atomic<bool>* cancelled = nullptr);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_CARRIED_FILES_H_
