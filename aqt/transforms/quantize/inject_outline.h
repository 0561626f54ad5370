#ifndef AQT_TRANSFORMS_QUANTIZE_INJECT_OUTLINE_H_
#define AQT_TRANSFORMS_QUANTIZE_INJECT_OUTLINE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt {

// Reports which contractions of a program the rules would match, and the results, from the program's text alone (ToText
// in graph/program.h). Nothing is built. It does not detect a configuration that is illegal for the shapes of a
// contraction, a missing frozen tensor, or a name that a quantized contraction already has. InvalidArgument, naming the
// line, for a text that ToText does not write, and as Inject for the rules themselves. Rules that match nothing are in
// the report.
absl::StatusOr<InjectReport> ReportInjection(absl::string_view program_text, const InjectConfig& config);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_QUANTIZE_INJECT_OUTLINE_H_
