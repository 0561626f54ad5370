#ifndef AQT_SERVING_CONVERT_CARRIED_FILES_H_
#define AQT_SERVING_CONVERT_CARRIED_FILES_H_

// The files of a model's folder that are not its tensors: which of them a conversion carries over, and what the input
// says about those that are written anew.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"

namespace aqt::serving {

// For an output folder, if there is no `config_file`.
inline constexpr char kNoConfigWarning[] =
    "there is no config.json beside the weights: the output's says nothing but the quantization_config, and a loader "
    "needs the model's, too";

struct CarriedFiles {
  std::string folder;                       // that they are in; empty if there is none, and so no files
  std::string config_file;                  // the path of the config.json to write anew; empty if there is none
  std::string index_name = io::kIndexFile;  // of the output, if it has one
  io::IndexExtras index_extras;
  std::vector<std::string> copied;  // byte for byte, sorted
  // Why others are not: for the user.
  std::vector<std::string> warnings;
};

// All files but
//   the model's weights in other frameworks' formats, beside its tensors: they would only be floating point dead
//   weight. In the folders of the model's other parts they are carried over;
//   a part of an adapter: a loader would follow its configuration to weights that are not there;
//   what one of `exclude` (file_glob.h) matches. InvalidArgument, naming both, if that is not a pattern, or matches the
//   model's tensors, its index or its config.json.
absl::StatusOr<CarriedFiles> FilesToCarry(const io::Checkpoint& input, const std::vector<std::string>& exclude = {});

// A warning for each of these files that is a Git LFS pointer: what it points to was not downloaded.
absl::StatusOr<std::vector<std::string>> FindPointers(const io::FileSystem& fs, const CarriedFiles& files);

// What is copied, and its size: a file beside the model's tensors, or a folder ("1_Pooling/"). The largest first.
struct CarriedSize {
  std::string name;
  int64_t bytes = 0;
};
absl::StatusOr<std::vector<CarriedSize>> CarriedSizes(const io::FileSystem& fs, const CarriedFiles& files);
// "3 other files, 12.0 KiB: tokenizer.json 8.0 KiB, ..."; empty if there are none.
std::string DescribeCarried(const CarriedFiles& files, const std::vector<CarriedSize>& sizes);

// One problem for each copied file that the output's folder lacks, and for each with weights that differs. Cancelled if
// `cancelled` becomes true.
absl::StatusOr<std::vector<std::string>> CompareCarriedFiles(const io::FileSystem& fs, const CarriedFiles& files,
                                                             absl::string_view output,
                                                             const std::atomic<bool>* cancelled = nullptr);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_CARRIED_FILES_H_
