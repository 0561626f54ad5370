#ifndef AQT_TRANSFORMS_PRECISION_AMP_H_
#define AQT_TRANSFORMS_PRECISION_AMP_H_

// Automatic mixed precision: the same program with chosen operations in a narrower dtype (after jaxamp).
//
//   absl::StatusOr<Program> fast = Amp(program, {.compute_dtype = DType::kBF16});
//
// A policy says how the operands of each operation are converted. Its keys are names of scopes, names of operations and
// "amp_default". For each equation the first key in the policy decides, in this order:
//   1. the enclosing scopes, outermost first: "mlp/fc1" gives "mlp", "mlp/fc1" and "fc1"; scopes that are active
//      around the call of Amp come before the program's own;
//   2. for a call (graph/interpret/call.h), its name; then the operation's name, such as "dot_general" or "exp";
//   3. "amp_default".
// If no key is in the policy, the operands are not converted. Only floats are converted. The original dtype of an
// operand is its dtype in the program given to Amp. Inputs and outputs keep their dtypes.
//
// The default policy:
//   add, sub, dot_general, conv, ragged_dot, einsum   compute precision
//   exp, log, mul, div                                f32
//   amp_default, amp_stop                             original precision
//
// Calls and quantized contractions each count as one operation whose inside is not converted, so inject (inject.h)
// after Amp. Take gradients afterwards: they flow through the conversions and arrive in the dtypes of the parameters.
// Differences from jaxamp: docs/differences-from-jaxamp.md.

#include <functional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/value.h"

namespace aqt {

// An operation and its operands, which may have been converted.
struct AmpCall {
  Op op;
  std::vector<Value> operands;
};

// A custom rule. `original` has the operands' dtypes in the program given to Amp.
using AmpFunction =
    std::function<absl::StatusOr<AmpCall>(DType compute_dtype, absl::Span<const DType> original, AmpCall call)>;

// How a policy converts the operands.
struct AmpRule {
  enum class Kind {
    kOriginal,  // to their original dtypes
    kCompute,   // to AmpOptions::compute_dtype
    kWidest,    // to the widest of their original dtypes: f64, f32, bf16, f16
    kDType,     // to `dtype`
    kFunction,  // `function`
  };
  Kind kind = Kind::kOriginal;
  DType dtype = DType::kF32;
  AmpFunction function = nullptr;

  // "original precision", "bf16", "a function", ...
  std::string ToString() const;
};
// Keeps the original dtypes. This rule and the next three set the dtype of a contraction's result when they convert to
// one dtype.
AmpRule UseOriginalPrecision();
// Converts to AmpOptions::compute_dtype.
AmpRule UseComputePrecision();
// Converts to the widest of the original dtypes: f64, f32, bf16, f16.
AmpRule UseWidestPrecision();
// Converts to `dtype`.
AmpRule UsePrecision(DType dtype);

// The rules of a policy, by key.
using AmpPolicy = absl::btree_map<std::string, AmpRule>;
// The default policy listed above: compute precision for contractions, additions and subtractions, f32 for exp, log,
// mul and div.
AmpPolicy DefaultAmpPolicy();

// The options of Amp.
struct AmpOptions {
  DType compute_dtype = DType::kF16;  // f16, bf16 or f32
  AmpPolicy policy = DefaultAmpPolicy();
};

// What Amp did to each equation.
struct AmpReport {
  struct Line {
    std::string op, scope;
    std::string key = {};                 // the key that decided; "" if none
    std::string rule = {};                // AmpRule::ToString
    std::vector<std::string> casts = {};  // "operand 0: f32 -> f16"
  };
  std::vector<Line> lines;
  std::vector<std::string> unused_keys;  // keys of the policy, without the defaults
  // The equations with conversions, then the unused keys.
  std::string ToString() const;
};

// Applies the policy to `program`. InvalidArgument for a compute dtype that is not listed above, a rule without its
// function, and where an operation refuses the converted operands, with the operation, scope and line.
absl::StatusOr<Program> Amp(const Program& program, const AmpOptions& options = {}, AmpReport* report = nullptr);

// While it exists, operations keep their original precision under the default policy: they are in the scope "amp_stop".
// An outer scope that the policy names takes precedence.
class AmpStop {
 public:
  AmpStop() : scope_("amp_stop") {}

 private:
  NamedScope scope_;
};

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PRECISION_AMP_H_
