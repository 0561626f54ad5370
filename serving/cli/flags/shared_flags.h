#ifndef AQT_SERVING_CLI_FLAGS_SHARED_FLAGS_H_
#define AQT_SERVING_CLI_FLAGS_SHARED_FLAGS_H_

// Flags, and ways to act on them, that several commands share.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "aqt/gguf/gguf_source.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "serving/cli/flags/flags.h"
#include "serving/cli/flags/run_command.h"
#include "serving/tools/progress.h"

namespace aqt::serving {

// The help of a checkpoint that is read.
inline constexpr char kInputHelp[] = "a .safetensors file (.bin, .pth, .npz, .npy, .msgpack, .gguf), or a folder";

void AddJobs(CLI::App& app, Flags& flags);      // --jobs
void AddProgress(CLI::App& app, Flags& flags);  // --progress
void AddJson(CLI::App& app, Flags& flags);      // --json
// --dtype, of elements whose type a file does not name, and --gguf-names.
void AddInputFiles(CLI::App& app, Flags& flags);
void AddGgufNames(CLI::App& app, Flags& flags);

// What --progress asks for, on standard error: makes the bar for a number of bytes.
std::function<std::unique_ptr<Progress>(int64_t)> ProgressMaker(const Flags& flags, const Console& console);

// What --dtype says; unset without it.
std::optional<io::FileDType> RawDType(const Flags& flags);
gguf::Names GgufNames(const Flags& flags);

// Headers may be large, too: an interrupt while they are read ends the command afterwards. `leave_out`: as in
// io::CheckpointOptions.
absl::StatusOr<io::Checkpoint> OpenCheckpoint(const std::string& path, const io::FileSystem& fs, const Console& console,
                                              const Flags& flags, const std::string& leave_out = "");

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_FLAGS_SHARED_FLAGS_H_
