#ifndef AQT_SERVING_CONVERT_CARRIED_FILES_H_
#define AQT_SERVING_CONVERT_CARRIED_FILES_H_

// The files of a model's folder that are not its tensors: which of them a conversion carries over.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/checkpoint.h"
#include "aqt/io/file.h"

namespace aqt::serving {

struct CarriedFiles {
  std::string folder;               // that they are in; empty if there is none, and so no files
  bool has_config = false;          // whether there is a config.json
  std::vector<std::string> copied;  // byte for byte; config.json is not among them, it is written anew
  // The model's weights in other frameworks' formats, beside its tensors. They are not carried over, since they would
  // only be floating point dead weight; in the folders of the model's other parts they are.
  std::vector<std::string> foreign_weights;
};
CarriedFiles FilesToCarry(const io::Checkpoint& input);

// The size of the files that are copied.
absl::StatusOr<int64_t> CarriedBytes(const io::FileSystem& fs, const CarriedFiles& files);

// One problem for each copied file that the output's folder lacks, and for each with weights that differs. Cancelled if
// `cancelled` becomes true.
absl::StatusOr<std::vector<std::string>> CompareCarriedFiles(const io::FileSystem& fs, const CarriedFiles& files,
                                                             absl::string_view output,
                                                             const std::atomic<bool>* cancelled = nullptr);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_CARRIED_FILES_H_
