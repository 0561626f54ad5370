#ifndef AQT_SERVING_ENGINE_READ_PROGRAM_H_
#define AQT_SERVING_ENGINE_READ_PROGRAM_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"

namespace aqt::serving {

// The largest file that is read as a program. Its constants may be a model's weights.
inline constexpr int64_t kMaxProgramBytes = int64_t{1} << 36;

// A program of SaveProgram. The errors of reading, and of LoadProgram; they name the file.
absl::StatusOr<Program> ReadProgram(const io::FileSystem& fs, absl::string_view path);

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_READ_PROGRAM_H_
