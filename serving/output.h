#ifndef AQT_SERVING_OUTPUT_H_
#define AQT_SERVING_OUTPUT_H_

// The file or folder that a conversion writes: checked before the work, complete or absent after it.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/checkpoint.h"
#include "aqt/io/file.h"

namespace aqt::serving {

// OUT as a user writes it: a file when its name ends in ".safetensors" or a file is there, else a folder.
struct OutputPlace {
  std::string path;
  bool is_file = false;
  bool replace = false;  // something is there, and --force was given
};

// Creates nothing. InvalidArgument: no name; the input, or one of its files, or a folder above it (also through links).
// AlreadyExists: something is there and not `force`. FailedPrecondition: a device; a folder that --force must not
// replace, because it holds no checkpoint. NotFound: no folder to write into.
absl::StatusOr<OutputPlace> CheckOutput(const io::FileSystem& fs, const io::Checkpoint& input, absl::string_view path,
                                        bool force);

// Where files are written until everything is there. Destroyed before Commit it leaves nothing; what was at the place
// stays as it was. Errors are those of writing (OutputError in exit_code.h).
class Output {
 public:
  static absl::StatusOr<Output> Create(const io::FileSystem& fs, OutputPlace place);
  Output(Output&&) = default;
  Output& operator=(Output&&) = default;

  const OutputPlace& place() const { return place_; }
  // Where to write the file of that name ("config.json", "1_Pooling/config.json"; folders are created), or the one
  // file.
  absl::StatusOr<std::string> PathOf(absl::string_view name);
  // For the writer of the one file; those in a folder are new in any case.
  io::OutputOptions file_options() const { return {.overwrite = place_.is_file && place_.replace}; }
  // Puts the folder in place. With `replace`, what was there is renamed first and removed last: a crash in between
  // leaves it beside the place, as `<path>.aqt-old`. Nothing to do for a file, which its writer puts in place.
  absl::Status Commit();

 private:
  absl::Status Replace();
  Output(const io::FileSystem& fs, OutputPlace place) : fs_(&fs), place_(std::move(place)) {}

  const io::FileSystem* fs_;
  OutputPlace place_;
  std::unique_ptr<io::OutputFolder> folder_;  // null for a file
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_OUTPUT_H_
