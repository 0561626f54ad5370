#ifndef AQT_GRAPH_COMPOSITE_H_
#define AQT_GRAPH_COMPOSITE_H_

// An operation defined outside the graph: one equation that other operations define (`Expand`), optionally with a
// faster way to the same bits (`Eval`, `MakeKernel`) and its own gradient. This is the only way to extend the closed
// set of operations. Most composites derive from CompositeBase (composite_base.h), which has the defaults that need the
// graph: this header is below it.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/value.h"

namespace aqt {

class Composite : public std::enable_shared_from_this<Composite> {
 public:
  virtual ~Composite() = default;

  // The stable name of the operation in rules and files, e.g. "aqt_dot_general".
  virtual std::string Name() const = 0;
  // The configuration as deterministic text. Two composites with equal Name() and Attributes() compute the same.
  virtual std::string Attributes() const { return ""; }
  // This composite's name in its program, such as "mlp/fc1", if it has one: the names of its inputs and outputs begin
  // with it. Transforms that assign names keep it unique.
  virtual std::optional<std::string> instance_name() const { return std::nullopt; }
  virtual int num_outputs() const { return 1; }
  // One per operand: a statistic's value before the first run, nullopt for other operands. Empty if there are no
  // statistics.
  virtual std::vector<std::optional<Array>> InitialStatistics() const { return {}; }

  // The outputs' avals, or the reason why these operands are refused; the message need not name the operation.
  virtual absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> operands) const = 0;

  // The meaning: the same outputs, bit for bit, by other operations. An operation that cannot be expressed in others
  // (random numbers, a search) returns false from has_expansion(), defines Eval, and lets a gradient through only if
  // has_gradient(); Expand then binds the operation again.
  virtual bool has_expansion() const { return true; }
  virtual std::vector<Value> Expand(absl::Span<const Value> operands) const = 0;

  // The outputs' data; an output that is not needed may be left Array().
  virtual absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> operands,
                                                  absl::Span<const bool> needed) const = 0;

  // The same as a function on memory, for operands like these; at least one output is needed. By default it runs Eval
  // and copies the results. Errors: those of Eval that do not depend on data.
  virtual absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> operands,
                                              absl::Span<const bool> needed) const;

  // If false, the expansion is differentiated. If true, the two functions below compute the gradient.
  virtual bool has_gradient() const { return false; }
  struct Forward {
    std::vector<Value> outputs;    // the same as this operation's
    std::vector<Value> residuals;  // what GradBackward needs
  };
  // Replaces the operation when a gradient is taken.
  virtual Forward GradForward(absl::Span<const Value> operands) const = 0;
  // One cotangent per operand, nullopt if it has none (a key, an integer); `cotangents` has one per output.
  virtual std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                         absl::Span<const Value> cotangents) const;

 protected:
  // Eval of an operation that defines MakeKernel.
  absl::StatusOr<std::vector<Array>> EvalByKernel(absl::Span<const Array> operands,
                                                  absl::Span<const bool> needed) const;
};

}  // namespace aqt

#endif  // AQT_GRAPH_COMPOSITE_H_
