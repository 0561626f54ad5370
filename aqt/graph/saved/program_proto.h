#ifndef AQT_GRAPH_SAVED_PROGRAM_PROTO_H_
#define AQT_GRAPH_SAVED_PROGRAM_PROTO_H_

// Programs as bytes.
//
// A saved program begins with "AQTPROG\n" and the version of the format, u32. Records follow, each with the length of a
// message, u32, its CRC-32, u32, and the message, a SavedRecord of program.proto: every variable, input, constant,
// scope, equation and output, and an end that counts them. All integers are little endian. The same program
// gives the same bytes. A later version of this library reads every earlier format.
//
// A call (call.h) is saved with its body; other composites by codecs, which the caller passes: those of aqt/ops are
// ops::ProgramCodecs() (ops/saved/composite_proto.h).

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

// Converts a composite to bytes and back.
struct CompositeCodec {
  std::function<absl::StatusOr<std::string>(const Composite&)> save;
  std::function<absl::StatusOr<std::shared_ptr<const Composite>>(absl::string_view)> load;
};
// Codecs by Composite::Name().
using CompositeCodecs = std::map<std::string, CompositeCodec>;

struct LoadOptions {
  // A limit for the initial statistics of calibrations (Composite::InitialStatistics), which are not in the file.
  int64_t max_statistics_bytes = int64_t{1} << 32;
};

// The bytes of `program`. Unimplemented, naming the equation, for a composite without a codec and for calls nested more
// than 32 deep; otherwise the errors of codecs.
absl::StatusOr<std::string> SaveProgram(const Program& program, const CompositeCodecs& codecs = {});

// Whether `bytes` begin like a saved program.
bool IsSavedProgram(absl::string_view bytes);

// The program stored in `bytes`; its text is that of the saved one. DataLoss, naming the record and its position, if
// bytes are missing or altered, or describe an impossible program; Unimplemented for a later format and for unknown
// operations and composites; ResourceExhausted beyond the limits of `options`; otherwise the errors of codecs.
absl::StatusOr<Program> LoadProgram(absl::string_view bytes, const CompositeCodecs& codecs = {},
                                    const LoadOptions& options = {});

}  // namespace aqt

#endif  // AQT_GRAPH_SAVED_PROGRAM_PROTO_H_
