#ifndef AQT_TESTS_GOLDEN_CHECK_THROUGH_TEXT_H_
#define AQT_TESTS_GOLDEN_CHECK_THROUGH_TEXT_H_

// The configuration of a case, written as text and read again.

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/quant/config/config.h"
#include "tests/golden_check/golden_case.h"

namespace aqt::golden {

// The parts of a configuration.
struct PartVisitor {
  absl::FunctionRef<absl::Status(DotGeneralConfig&)> dot_general;
  absl::FunctionRef<absl::Status(Quantizer&)> quantizer;
  absl::FunctionRef<absl::Status(Numerics&)> numerics;
};
// Visits the library's structs in `config`, each once: a quantizer inside a contraction is not visited separately.
// Stops at the first error.
absl::Status VisitParts(CaseConfig& config, const PartVisitor& visitor);

using TextWriter = absl::FunctionRef<std::string(const DotGeneralConfig&)>;

// `config` with each part written by `to_text` and read by DotGeneralFromText; quantizers and numerics are written as
// those of an operand. Errors: DotGeneralFromText's.
absl::StatusOr<CaseConfig> ThroughText(CaseConfig config, TextWriter to_text);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_THROUGH_TEXT_H_
