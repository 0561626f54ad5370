#ifndef AQT_GRAPH_COMPOSITE_BASE_H_
#define AQT_GRAPH_COMPOSITE_BASE_H_

// The defaults of a composite. An operation that defines Name, Infer and Expand is complete.

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/graph/value.h"

namespace aqt {

class CompositeBase : public Composite {
 public:
  // Binds the operation again, for operations without an expansion.
  std::vector<Value> Expand(absl::Span<const Value> operands) const override;
  // Runs Expand at once.
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> operands,
                                          absl::Span<const bool> needed) const override;
  // The operation itself, with its operands as residuals.
  Forward GradForward(absl::Span<const Value> operands) const override;
};

// A composite that stores its fields.
template <class F>
class CompositeOf : public CompositeBase, public HasFields<F> {
 public:
  explicit CompositeOf(F fields) : fields_(std::move(fields)) {}
  F fields() const final { return fields_; }

 protected:
  const F fields_;
};

}  // namespace aqt

#endif  // AQT_GRAPH_COMPOSITE_BASE_H_
