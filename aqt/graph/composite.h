#ifndef AQT_GRAPH_COMPOSITE_H_
#define AQT_GRAPH_COMPOSITE_H_

// An operation that is defined outside of the graph: one equation with a meaning in other operations (`Expand`), and
// possibly a faster way to the same bits (`Eval`) and an own gradient. It is the one open door of the closed set of
// operations; the graph knows it by this interface alone. Most derive from CompositeBase (composite_base.h), which has
// the defaults that need the graph: this header and its library are below it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/value.h"

namespace aqt {

// What a composite stands for, to transforms that treat operations by kind.
enum class CompositeKind : uint8_t { kOther, kDotGeneral, kConv };

// What an operand is to the operation.
enum class OperandRole : uint8_t { kData, kLhs, kRhs, kKey, kStatistic };

class Composite : public std::enable_shared_from_this<Composite> {
 public:
  virtual ~Composite() = default;

  // Stable; how rules and files name the operation, e.g. "aqt_dot_general".
  virtual std::string Name() const = 0;
  // The configuration as deterministic text; two composites of equal Name() and Attributes() compute the same.
  virtual std::string Attributes() const { return ""; }
  // What this one is called in its program, such as "mlp/fc1", if it has a name: those of its inputs and outputs begin
  // with it. Transforms that give names leave it to this one.
  virtual std::optional<std::string> instance_name() const { return std::nullopt; }
  virtual CompositeKind kind() const { return CompositeKind::kOther; }
  // One per operand; empty: all kData.
  virtual std::vector<OperandRole> roles() const { return {}; }
  virtual int num_outputs() const { return 1; }
  // One per operand: what a statistic is before the first run, nullopt for what is none. Empty: no statistics.
  virtual std::vector<std::optional<Array>> InitialStatistics() const { return {}; }

  // The outputs' avals, or why these operands are refused; the message need not name the operation.
  virtual absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> operands) const = 0;

  // The meaning: the same outputs by other operations, bit for bit. An operation without a meaning in others (random
  // numbers, a search) says has_expansion() false, defines Eval, and lets no gradient through; Expand then binds it
  // again.
  virtual bool has_expansion() const { return true; }
  virtual std::vector<Value> Expand(absl::Span<const Value> operands) const = 0;

  // The outputs' data; an output that is not needed may be left Array().
  virtual absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> operands,
                                                  absl::Span<const bool> needed) const = 0;

  // Without an own gradient the expansion is differentiated. With one, gradients are taken by the two functions below.
  virtual bool has_gradient() const { return false; }
  struct Forward {
    std::vector<Value> outputs;    // as this operation's
    std::vector<Value> residuals;  // what GradBackward needs
  };
  // The operation while a gradient is wanted.
  virtual Forward GradForward(absl::Span<const Value> operands) const = 0;
  // One cotangent for each operand, nullopt where there is none (a key, an integer); `cotangents` has one per output.
  virtual std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                         absl::Span<const Value> cotangents) const;
};

}  // namespace aqt

#endif  // AQT_GRAPH_COMPOSITE_H_
