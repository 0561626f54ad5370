#ifndef AQT_GRAPH_SAVED_PROGRAM_PROTO_H_
#define AQT_GRAPH_SAVED_PROGRAM_PROTO_H_

// Programs as bytes.
//
// A saved program begins with "AQTPROG\n" and the version of the format, u32. Then come records: the length of a
// message, u32, its CRC-32, u32, and the message, a SavedRecord of configs/program.proto: every variable, input,
// constant, scope, equation and output, and an end that counts them. All integers are little endian. The same program
// gives the same bytes. A later version of this library reads every earlier format.
//
// A call (call.h) is saved with its body; other composites by codecs, which the caller passes: those of aqt/ops are
// ops::ProgramCodecs() (ops/composite_proto.h).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/program.h"

namespace aqt {

// How a composite becomes bytes, and bytes a composite.
struct CompositeCodec {
  std::function<absl::StatusOr<std::string>(const Composite&)> save;
  std::function<absl::StatusOr<std::shared_ptr<const Composite>>(absl::string_view)> load;
};
// By Composite::Name().
using CompositeCodecs = std::map<std::string, CompositeCodec>;

struct LoadOptions {
  // What the initial statistics of calibrations (Composite::InitialStatistics) may take, which are not in the file.
  int64_t max_statistics_bytes = int64_t{1} << 32;
};

// Unimplemented, naming the equation, if it holds a composite without a codec, and for calls in more than 32 calls; the
// errors of codecs.
absl::StatusOr<std::string> SaveProgram(const Program& program, const CompositeCodecs& codecs = {});

// Whether the bytes begin as those of a saved program.
bool IsSavedProgram(absl::string_view bytes);

// The program whose bytes these are; its text is that of the one saved. DataLoss, naming the record and its place, if
// bytes are missing or altered, or say what no program can be; Unimplemented for a later format and for operations and
// composites that are unknown here; ResourceExhausted by `options`; the errors of codecs.
absl::StatusOr<Program> LoadProgram(absl::string_view bytes, const CompositeCodecs& codecs = {},
                                    const LoadOptions& options = {});

}  // namespace aqt

#endif  // AQT_GRAPH_SAVED_PROGRAM_PROTO_H_
