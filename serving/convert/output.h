#ifndef AQT_SERVING_CONVERT_OUTPUT_H_
#define AQT_SERVING_CONVERT_OUTPUT_H_

// The file or folder that a conversion writes: checked before the work, complete or absent after it.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"

namespace aqt::serving {

// A metadata key of every file that a conversion writes.
inline constexpr char kVersionKey[] = "aqt_version";

// OUT as a user writes it: a file if its name ends in ".safetensors" or a file exists there, else a folder.
struct OutputPlace {
  std::string path;
  std::string target;  // `path`, or its target if it is a link: the target is replaced, and the link stays
  bool is_file = false;
  bool replace = false;  // the output exists, and --force was given
};

// Creates nothing. `input` was opened with `path` left out; `also_read` are other files that the run reads.
// InvalidArgument: no name; OUT is the input, one of its files or of `also_read`, or a folder that contains any of
// these, through any links. AlreadyExists: OUT exists and not `force`. FailedPrecondition: OUT is something that
// --force must not replace (a device, a mount point, a file not named .safetensors, a link to a file, a folder without
// a checkpoint, a part of the input's folder that is not an earlier output), or a dangling link. NotFound: the parent
// folder does not exist.
absl::StatusOr<OutputPlace> CheckOutput(const io::FileSystem& fs, const io::Checkpoint& input, absl::string_view path,
                                        bool force, const std::vector<std::string>& also_read = {});

// Keeps other runs out of the place while the lock exists, by a file `.NAME.aqt-lock` beside it. Unavailable, with its
// process number, if another run holds it. Also fails if nothing can be created there: no permission, a read-only file
// system, too long a name.
absl::StatusOr<std::unique_ptr<io::FileLock>> LockOutput(const io::FileSystem& fs, const OutputPlace& place);

// ResourceExhausted if the file system has less than `bytes` left. Replaced files still take space: they are removed
// after the new output is in place.
absl::Status CheckSpace(const io::FileSystem& fs, const OutputPlace& place, int64_t bytes);

// Where files are written until all are complete. If destroyed before Commit, it leaves no files, and existing files
// stay as they were. Its errors have passed through OutputError (exit_code.h).
class Output {
 public:
  static absl::StatusOr<Output> Create(const io::FileSystem& fs, OutputPlace place);
  Output(Output&&) = default;
  Output& operator=(Output&&) = default;

  const OutputPlace& place() const { return place_; }
  // The path at which to write the file of that name ("config.json", "1_Pooling/config.json"; folders are created), or
  // the single output file.
  absl::StatusOr<std::string> PathOf(absl::string_view name);
  // For the writer of the single output file; files in a folder are always new.
  io::OutputOptions file_options() const { return {.overwrite = place_.is_file && place_.replace}; }
  // Puts the folder in place: see io::OutputFolder::Commit. Does nothing for a file, which its writer puts in place.
  absl::Status Commit();

 private:
  Output(const io::FileSystem& fs, OutputPlace place) : fs_(&fs), place_(std::move(place)) {}

  const io::FileSystem* fs_;
  OutputPlace place_;
  std::unique_ptr<io::OutputFolder> folder_;  // null for a file
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_OUTPUT_H_
