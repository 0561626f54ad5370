#ifndef AQT_TRANSFORMS_QUANTIZE_INJECT_OUTLINE_H_
#define AQT_TRANSFORMS_QUANTIZE_INJECT_OUTLINE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt {

// Which contractions of a program the rules would hit, and what these would become, from the program's text alone
// (ToText in graph/program.h). Nothing is built: it does not find that a configuration is illegal for the shapes of a
// contraction, that a frozen tensor is missing, and names that a quantized contraction has already.
// InvalidArgument, naming the line, for a text that ToText does not write, and as Inject for the rules themselves.
// Rules that hit nothing are in the report.
absl::StatusOr<InjectReport> ReportInjection(absl::string_view program_text, const InjectConfig& config);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_QUANTIZE_INJECT_OUTLINE_H_
