#ifndef AQT_OPS_ATTENTION_ATTENTION_OP_H_
#define AQT_OPS_ATTENTION_ATTENTION_OP_H_

// The operation of attention.h, for transforms and saved programs. Internal.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/graph/composite.h"

namespace aqt::internal {

// A contraction inside an attention, for rules that select contractions.
struct InnerContraction {
  std::string scope;  // below that of the equation: "qk", "av"
  Aval lhs, rhs;
  std::vector<int> lhs_from, rhs_from;  // the operands of the equation on which each side depends
};
inline constexpr char kAttentionName[] = "attention";
// Those of an attention with these operands. Empty if there are not 3 to 5 operands with 4 axes.
std::vector<InnerContraction> ContractionsOfAttention(absl::Span<const Aval> operands);

// The fields of the operation (graph/composite_fields.h), and the operation. The operands are query, key, value, then
// the bias (f32, or f64 for f64) and the mask, each with 4 axes.
struct AttentionFields {
  bool has_bias = false, has_mask = false;
  static constexpr const char* kFieldNames[] = {"has_bias", "has_mask"};
  bool operator==(const AttentionFields&) const = default;
};
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const AttentionFields& fields);

}  // namespace aqt::internal

#endif  // AQT_OPS_ATTENTION_ATTENTION_OP_H_
