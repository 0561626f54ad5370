#ifndef AQT_QUANT_CONFIG_CALL_OPTIONS_H_
#define AQT_QUANT_CONFIG_CALL_OPTIONS_H_

// Options of plans (PlanOptions) and of calls (Runtime: threads, an observer, a user-supplied product). config.h says
// what is computed.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/block_epilogue.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/quant/config/semantics.h"

namespace aqt {

// Receives every intermediate of a quantized contraction. While an observer is set, nothing is fused; bits do not
// change.
class Observer {
 public:
  virtual ~Observer() = default;
  // `name` is PASS.SIDE.WHAT or PASS.WHAT; PASS is fwd, dlhs or drhs, SIDE is lhs or rhs (in the backward passes lhs is
  // the incoming gradient):
  //   fwd.lhs.scale, fwd.lhs.bias, fwd.lhs.key (u32[2]), fwd.lhs.noise, fwd.lhs.qvalue   only if there is one
  //   fwd.dg_lhs, fwd.dg_rhs, fwd.accum                            operands and result of the contraction
  // `name` is valid for the life of the program, `value` only during the call.
  virtual void OnTensor(absl::string_view name, const ArrayRef& value) = 0;
};

// A user-supplied plain contraction that replaces the built-in one: it multiplies the operands after quantization.
class PlainProduct {
 public:
  virtual ~PlainProduct() = default;
  // Writes lhs x rhs to all of `out`, dense, axes in the order batch, remaining of lhs, remaining of rhs. `pass` is
  // fwd, dlhs or drhs. The operands are the observer's PASS.dg_lhs and PASS.dg_rhs: qvalues (s8, e4m3fn, ...) where a
  // side is quantized and not dequantized before the product, floats elsewhere; any strides. out.dtype is the
  // accumulator dtype of the configuration. If that is unset: for a float and an integer, the float; for two floats,
  // the one with the larger range, then the larger precision (bf16 for bf16 and f16, e5m2 for e5m2 and e4m3fn); for two
  // integers, the wider one, except that s4 with s4 is passed and returned as s8. The built-in product rounds both
  // operands to out.dtype first if they differ, and sums in f32. The arrays are valid only during the call.
  virtual void Contract(absl::string_view pass, const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims,
                        const MutableArrayRef& out) = 0;
};

class Scratch;

// Counts the operands that were packed for the kernels, by a Prepare or on the fly in a call.
struct PackCounts {
  int64_t lhs = 0, rhs = 0;
};

// How one call runs. Only `product` can change bits.
struct Runtime {
  Executor* executor = nullptr;     // null: only the calling thread
  Observer* observer = nullptr;     // null: none
  PlainProduct* product = nullptr;  // null: the built-in kernels. Nothing is fused with a user's product.
  Scratch* scratch = nullptr;       // memory for intermediates (contraction/scratch.h); null: the thread's own
  PackCounts* packs = nullptr;      // added to; for tests and profiles
  // Null, or work that a forward call may run on its result block by block, while a block is in the caches. It runs on
  // all blocks or on none, and must track this itself: not every product is computed in blocks.
  BlockEpilogue* block_epilogue = nullptr;
};

// Which passes a plan has. kForwardOnly skips planning the backward contractions: dlhs and drhs of the configuration
// are not even checked.
enum class PlanPasses { kForwardAndBackward, kForwardOnly };

// Options of a plan besides the configuration and the shapes.
struct PlanOptions {
  PlanPasses passes = PlanPasses::kForwardAndBackward;
  Semantics semantics = {};
  // The instruction set that kernels use; null = kernels::BestTarget(), which AQT_MAX_TARGET caps. Must be supported.
  std::optional<kernels::Target> target = std::nullopt;
  bool operator==(const PlanOptions&) const = default;
};

// InvalidArgument if this machine cannot run the target.
absl::Status Validate(const PlanOptions& options);

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_CALL_OPTIONS_H_
