#ifndef AQT_TRANSFORMS_QUANTIZE_INJECT_RULES_H_
#define AQT_TRANSFORMS_QUANTIZE_INJECT_RULES_H_

// Shared by Inject and its report over a program's text: rules, modes, and the lines of a report. Internal.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::internal {

// "rule 2", or "rule \"name\"".
std::string RuleName(const InjectConfig& config, size_t rule);

// The properties of a contraction that rules test.
struct Candidate {
  std::string kind, scope;
  bool from_params[2];  // whether lhs, rhs depend only on parameters, frozen inputs and constants
};

class RuleMatcher {
 public:
  // InvalidArgument for an invalid regular expression and for an operation that cannot be quantized.
  static absl::StatusOr<RuleMatcher> Make(const InjectConfig& config);
  RuleMatcher(RuleMatcher&&) noexcept;
  ~RuleMatcher();

  // The position of the first rule that matches it; -1 if none does.
  int Find(const Candidate& candidate) const;

 private:
  struct Impl;
  explicit RuleMatcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The mode of one side of a contraction that a rule quantizes with this tensor; `mode` is the rule's.
QuantMode ModeOf(const InjectConfig& config, const std::optional<QuantMode>& mode, const TensorConfig& tensor,
                 bool from_params);

// The effect of `rule` on a side: "int8:s8", "int8:s8 in QUANT_MODE_CONVERT", "float".
std::string DescribeSide(const InjectConfig& config, const InjectRule& rule, Side side, bool from_params);

// The contractions inside an equation "attention" in this scope, as candidates. `from_params` tells which of its
// operands depend only on parameters, frozen inputs and constants. Empty if the operands are not those of an attention.
struct InnerCandidate {
  Candidate candidate;
  std::string operands;  // InjectReport::Contraction::operands
};
std::vector<InnerCandidate> CandidatesOfAttention(absl::string_view scope, absl::Span<const Aval> operands,
                                                  const std::vector<bool>& from_params);

// Adds a contraction to a report.
void AddContraction(const InjectConfig& config, const Candidate& candidate, std::string name, std::string operands,
                    int rule, InjectReport& report);

// Fills in `unmatched`, once all contractions are in the report.
void AddUnmatched(const InjectConfig& config, InjectReport& report);

}  // namespace aqt::internal

#endif  // AQT_TRANSFORMS_QUANTIZE_INJECT_RULES_H_
