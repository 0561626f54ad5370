#include "serving/engine/read_program.h"

#include <string>

#include "aqt/core/status_macros.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/io/printable.h"
#include "aqt/ops/saved/composite_proto.h"

namespace aqt::serving {

absl::StatusOr<Program> ReadProgram(const io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(const std::string bytes, io::ReadFile(fs, path, kMaxProgramBytes));
  absl::StatusOr<Program> program = LoadProgram(bytes, ops::ProgramCodecs());
  if (!program.ok()) return Annotate(program.status(), io::PrintableLine(path));
  return program;
}

}  // namespace aqt::serving
