#ifndef AQT_JAX_PROGRAM_CALLS_H_
#define AQT_JAX_PROGRAM_CALLS_H_

// A saved program (aqt/graph/saved/program_proto.h) as one call of XLA.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/jax/call.h"
#include "aqt/runtime/executable.h"

namespace aqt::jax {

// The bytes of a program's file, and a digest of them (FNV-1a, 16 hexadecimal digits).
absl::StatusOr<std::string> ReadProgram(absl::string_view path);
std::string DigestOf(absl::string_view bytes);

// A program ready to run. Errors name `path`.
absl::StatusOr<Executable> MakeExecutable(absl::string_view path, absl::string_view bytes);

// The program of a file, ready to run. The last 16 are kept, by path and digest. FailedPrecondition if the file has
// another digest: it has changed since Python read it.
absl::StatusOr<std::shared_ptr<const Executable>> ProgramOf(absl::string_view path, absl::string_view digest);

// outputs... = program(inputs...), in the order of the program; attributes `path` and `digest`.
absl::Status RunProgram(const Call& call);

}  // namespace aqt::jax

#endif  // AQT_JAX_PROGRAM_CALLS_H_
