#include "aqt/jax/program_calls.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/io/file.h"
#include "aqt/jax/bounded_cache.h"
#include "aqt/jax/xla_executor.h"
#include "aqt/ops/saved/composite_proto.h"

namespace aqt::jax {
namespace {

// A protobuf, and so a record of a program, has at most 2 GiB; a program may have many.
constexpr int64_t kMostBytes = int64_t{1} << 36;

bool PassesAsS8(DType dtype) { return dtype == DType::kS4 || dtype == DType::kS2; }

}  // namespace

std::string DigestOf(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return absl::StrFormat("%016x", hash);
}

absl::StatusOr<std::string> ReadProgram(absl::string_view path) {
  return io::ReadFile(io::LocalFileSystem(), path, kMostBytes);
}

absl::StatusOr<Executable> MakeExecutable(absl::string_view path, absl::string_view bytes) {
  absl::StatusOr<Program> program = LoadProgram(bytes, ops::ProgramCodecs());
  if (!program.ok()) return Annotate(program.status(), path);
  return Executable::Make(*program);
}

absl::StatusOr<std::shared_ptr<const Executable>> ProgramOf(absl::string_view path, absl::string_view digest) {
  constexpr size_t kMostPrograms = 16;
  static auto* const programs = new BoundedCache<Executable>(kMostPrograms);  // lives as long as the process
  return programs->Get(absl::StrCat(path, "\n", digest), [&]() -> absl::StatusOr<Executable> {
    AQT_ASSIGN_OR_RETURN(const std::string bytes, ReadProgram(path));
    if (DigestOf(bytes) != digest) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " has changed since the function was traced; load it again with Program"));
    }
    return MakeExecutable(path, bytes);
  });
}

absl::Status RunProgram(const Call& call) {
  AQT_ASSIGN_OR_RETURN(const absl::string_view path, call.Text("path"));
  AQT_ASSIGN_OR_RETURN(const absl::string_view digest, call.Text("digest"));
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const Executable> executable, ProgramOf(path, digest));
  const Program& program = executable->program();
  AQT_RETURN_IF_ERROR(
      call.ExpectCounts(static_cast<int64_t>(program.inputs.size()), static_cast<int64_t>(program.outputs.size())));
  std::vector<Array> arguments;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    AQT_ASSIGN_OR_RETURN(const ArrayRef argument, call.Argument(static_cast<int64_t>(i)));
    Aval aval = argument.aval();
    const DType wanted = program.aval(program.inputs[i].var).dtype;
    if (PassesAsS8(wanted) && aval.dtype == DType::kS8) aval.dtype = wanted;
    arguments.push_back(Array::Unowned(std::move(aval), argument.data));
  }
  std::vector<MutableArrayRef> results;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    AQT_ASSIGN_OR_RETURN(MutableArrayRef result, call.Result(static_cast<int64_t>(i)));
    const DType written = program.aval(program.outputs[i].var).dtype;
    if (PassesAsS8(written) && result.dtype == DType::kS8) result.dtype = written;
    results.push_back(std::move(result));
  }
  XlaExecutor executor(call.frame());
  const UseExecutor use(&executor);
  return executable->RunInto(arguments, results);
}

}  // namespace aqt::jax
