#ifndef AQT_SERVING_COMPARE_DIFF_FILES_H_
#define AQT_SERVING_COMPARE_DIFF_FILES_H_

// What differs between two checkpoints beside their tensors.

#include <atomic>

#include "absl/status/status.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "serving/compare/diff.h"

namespace aqt::serving {

// Adds the differences beside the tensors: config.json of two folders, otherwise only the quantization_config; and
// notes about metadata, the files of tensors, and other files. `ignore_quantization`: a quantization_config that
// differs is a note. The errors of ReadModelConfig (plan.h).
absl::Status DiffFiles(const io::FileSystem& fs, const io::Checkpoint& a, const io::Checkpoint& b,
                       bool ignore_quantization, const std::atomic<bool>* cancelled, DiffReport& report);

}  // namespace aqt::serving

#endif  // AQT_SERVING_COMPARE_DIFF_FILES_H_
