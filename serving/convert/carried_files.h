#ifndef AQT_SERVING_CONVERT_CARRIED_FILES_H_
#define AQT_SERVING_CONVERT_CARRIED_FILES_H_

// The files of a model's folder other than its tensors: those that a conversion copies, and the inputs of those that it
// rewrites (config.json and the index).

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "serving/plan/plan.h"

namespace aqt::serving {

// For an output folder, if there is no `config_file`.
inline constexpr char kNoConfigWarning[] =
    "there is no config.json beside the weights: the output's has only the quantization_config, and loaders also need "
    "the model's fields";

struct CarriedFiles {
  std::string folder;                       // of these files; empty if there is no folder, and so no files
  std::string config_file;                  // the path of the config.json to rewrite; empty if there is none
  std::string config_text = {};             // instead of a file: what the model's file says (io::TensorSource::Shard)
  std::string index_name = io::kIndexFile;  // of the output, if it has an index
  io::IndexExtras index_extras;
  std::vector<std::string> copied;  // byte for byte, sorted
  // Why other files are not copied: for the user.
  std::vector<std::string> warnings;
};

// All files except
//   the model's weights in other frameworks' formats, beside its tensors: unused floating-point copies. In the folders
//   of the model's other parts they are copied;
//   parts of an adapter: a loader would follow its configuration to missing weights;
//   files that match one of `exclude` (file_glob.h). InvalidArgument, naming both, if that is not a pattern, or matches
//   the model's tensors, its index or its config.json.
absl::StatusOr<CarriedFiles> FilesToCarry(const io::Checkpoint& input, const std::vector<std::string>& exclude = {});

// A warning for each of these files that is a Git LFS pointer: its content was not downloaded.
absl::StatusOr<std::vector<std::string>> FindPointers(const io::FileSystem& fs, const CarriedFiles& files);

// The copied files with their sizes, sorted by name.
absl::StatusOr<std::vector<CopiedFile>> CopiedFiles(const io::FileSystem& fs, const CarriedFiles& files);

// "3 other files, 12.0 KiB: 1_Pooling/ 8.0 KiB, tokenizer.json 4.0 KiB": files beside the tensors and folders, the
// largest first. Empty if there are none.
std::string DescribeCarried(const std::vector<CopiedFile>& copied);

// Whether two files have the same bytes. Cancelled if `cancelled` becomes true.
absl::StatusOr<bool> SameBytes(const io::FileSystem& fs, const std::string& path_a, const std::string& path_b,
                               const std::atomic<bool>* cancelled);

// One problem for each copied file that is missing in the output's folder, and for each with weights that differs.
// Cancelled if `cancelled` becomes true.
absl::StatusOr<std::vector<std::string>> CompareCarriedFiles(const io::FileSystem& fs, const CarriedFiles& files,
                                                             absl::string_view output,
                                                             const std::atomic<bool>* cancelled = nullptr);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_CARRIED_FILES_H_
