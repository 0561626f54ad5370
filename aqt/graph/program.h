#ifndef AQT_GRAPH_PROGRAM_H_
#define AQT_GRAPH_PROGRAM_H_

// A program: equations over variables, with named inputs and outputs. A value type, copied freely and compared by its
// text; made by Trace() and by transforms (which trace again), never changed in place.

#include <compare>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/op.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"

namespace aqt {

// What a named input or output means to the program's caller.
enum class SlotKind : uint8_t {
  kParam,   // trained
  kStat,    // calibration statistics, optimizer state: read, written, saved with the parameters
  kFrozen,  // computed once from parameters, for serving
  kKey,     // random key
  kData,    // an example, a loss, ...
};
absl::string_view ToString(SlotKind kind);                           // "param", "stat", "frozen", "key", "data"
std::optional<SlotKind> SlotKindFromString(absl::string_view text);  // nullopt for any other text

// The name of an input or output of a program.
struct Slot {
  SlotKind kind = SlotKind::kData;
  std::string path;  // "mlp/fc1/kernel"
  auto operator<=>(const Slot&) const = default;
  std::string ToString() const;  // param "mlp/fc1/kernel"
};

// Scope names, each stored once. Id 0 is "".
class ScopeTable {
 public:
  using Id = int32_t;
  ScopeTable() : names_{""} {}
  Id Intern(absl::string_view name);
  const std::string& operator[](Id id) const { return names_[id]; }
  int size() const { return static_cast<int>(names_.size()); }

 private:
  std::vector<std::string> names_;
  absl::flat_hash_map<std::string, Id> ids_{{"", 0}};
};

// One operation on variables of a program.
struct Equation {
  Op op;
  absl::InlinedVector<VarId, 3> in;
  absl::InlinedVector<VarId, 2> out;
  ScopeTable::Id scope = 0;
  SourceLine where;
};

// Arrays by name: a model's parameters, statistics, frozen tensors, keys, data.
using SlotValues = absl::btree_map<Slot, Array>;

// Equations over variables, with named inputs and outputs.
struct Program {
  struct Port {
    VarId var;
    Slot slot;
  };

  std::vector<Aval> vars;    // by VarId
  std::vector<Port> inputs;  // slots are distinct
  absl::btree_map<VarId, Array> consts;
  std::vector<Equation> eqns;  // in an order that can be run
  std::vector<Port> outputs;   // slots are distinct; a variable may be several outputs
  ScopeTable scopes;

  const Aval& aval(VarId var) const { return vars[var]; }
  const std::string& scope(const Equation& eqn) const { return scopes[eqn.scope]; }
  std::vector<Aval> InputAvals() const;
  // Positions in `inputs` of the inputs of this kind.
  std::vector<int> InputsOfKind(SlotKind kind) const;
};

// Checks that every variable is bound once and before its use (inputs, constants, equations in order), that every
// output has the aval that the operation infers, and that slots are distinct. Internal, naming the equation, otherwise.
// Runs after each trace, and so after each transform that traces.
absl::Status Check(const Program& program);

// Options of ToText.
struct TextOptions {
  bool source_lines = false;  // also the source line of each equation
};
// The program as text. Deterministic; variables are numbered in the order in which they are bound. Constants of up to 8
// elements are written out, larger ones as a hash of their bytes. Example:
//   in %0: f32[2,3] data "x"
//   in %1: f32[3,4] param "fc1/kernel"
//   %2: f32[2,4] = dot_general(%0, %1) {dims=(([1],[0]),([],[]))} @fc1
//   out %2 data "0"
std::string ToText(const Program& program, const TextOptions& options = {});
std::ostream& operator<<(std::ostream& os, const Program& program);
// An array as ToText writes it: "3.5", "{1, 2}", "hash 0123456789abcdef".
std::string ContentsText(const Array& array);

// `status` with "operation [scope]: " before and "; operands ...; at file:line" after its message.
absl::Status DescribeError(const absl::Status& status, absl::string_view op, absl::string_view scope,
                           absl::Span<const Aval> operands, const SourceLine& where);
// The same for an equation of a program.
absl::Status DescribeError(const absl::Status& status, const Program& program, const Equation& eqn);

}  // namespace aqt

#endif  // AQT_GRAPH_PROGRAM_H_
