#ifndef AQT_TRANSFORMS_PRECISION_AMP_H_
#define AQT_TRANSFORMS_PRECISION_AMP_H_

// Automatic mixed precision: the same program with chosen operations in a narrower dtype (after jaxamp).
//
//   absl::StatusOr<Program> fast = Amp(program, {.compute_dtype = DType::kBF16});
//
// A policy says what happens to the operands of each operation. Its keys are names of scopes, names of operations and
// "amp_default". For an equation the first key that the policy has decides, in this order:
//   1. the scopes around it, the outermost first: "mlp/fc1" are "mlp", "mlp/fc1" and "fc1"; scopes that are active
//      around the call of Amp come before the program's own;
//   2. of a call (graph/call.h), its name; then the operation's name, such as "dot_general" or "exp";
//   3. "amp_default".
// Without any, the operands stay as they come. Only floats are converted. The original dtype of an operand is that of
// the program given to Amp. Inputs and outputs keep their dtypes.
//
// The default policy:
//   add, sub, dot_general, conv, ragged_dot, einsum   compute precision
//   exp, log, mul, div                                f32
//   amp_default, amp_stop                             original precision
//
// Calls and quantized contractions are one operation: they run as they are, so inject (inject.h) after Amp. Take
// gradients afterwards: they flow through the conversions, and arrive in the dtypes of the parameters. Differences from
// jaxamp: docs/differences-from-jaxamp.md.

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

// A rule of one's own. `original` has the operands' dtypes in the program given to Amp.
using AmpFunction =
    std::function<absl::StatusOr<AmpCall>(DType compute_dtype, absl::Span<const DType> original, AmpCall call)>;

// What a policy does with the operands.
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
// Rules that convert to one dtype also set the dtype of the result of a contraction.
AmpRule UseOriginalPrecision();
AmpRule UseComputePrecision();
AmpRule UseWidestPrecision();
AmpRule UsePrecision(DType dtype);

using AmpPolicy = absl::btree_map<std::string, AmpRule>;
AmpPolicy DefaultAmpPolicy();

struct AmpOptions {
  DType compute_dtype = DType::kF16;  // f16, bf16 or f32
  AmpPolicy policy = DefaultAmpPolicy();
};

// What Amp did to each equation.
struct AmpReport {
  struct Line {
    std::string op, scope;
    std::string key = {};                 // that decided; "" if none
    std::string rule = {};                // AmpRule::ToString
    std::vector<std::string> casts = {};  // "operand 0: f32 -> f16"
  };
  std::vector<Line> lines;
  std::vector<std::string> unused_keys;  // of the policy, without the defaults
  // The equations with conversions, then the unused keys.
  std::string ToString() const;
};

// InvalidArgument for a compute dtype that is not one of those, a rule without its function, and where an operation
// refuses what a rule makes of its operands, with the operation, scope and line.
absl::StatusOr<Program> Amp(const Program& program, const AmpOptions& options = {}, AmpReport* report = nullptr);

// Operations inside keep their original precision under the default policy: they are in the scope "amp_stop". A scope
// further out that the policy names comes first.
class AmpStop {
 public:
  AmpStop() : scope_("amp_stop") {}

 private:
  NamedScope scope_;
};

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PRECISION_AMP_H_
