#ifndef AQT_TESTS_DIGEST_CONTRACTION_H_
#define AQT_TESTS_DIGEST_CONTRACTION_H_

// A planned contraction of any kind, drawn uses of it, and the hashes of everything that comes out of one use.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/dot_general.h"
#include "tests/digest/draw.h"

namespace aqt::digest {

// One result of a case.
struct Field {
  std::string name;
  // docs/bits.md, Level 1: the same bits on every SIMD target. Otherwise Level 2: the same on one of them.
  bool everywhere = true;
  uint64_t hash = 0;
};
using Fields = std::vector<Field>;

// What the plans of dot_general.h, einsum.h, conv_general.h and ragged_dot.h have in common.
struct Contraction {
  Aval lhs, rhs, out;
  std::vector<StateSlot> forward_state = {}, backward_state = {};
  // Whether the product is one of integers, summed in s32.
  bool out_everywhere = false, dlhs_everywhere = false, drhs_everywhere = false;
  std::function<absl::Status(const DotOperand& lhs, const DotOperand& rhs, const Context& context,
                             const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                             const StateArrays& state)>
      forward = nullptr;
  // None in a plan of the forward pass only.
  std::function<absl::Status(const ArrayRef& g, const Residuals& residuals, const Context& context,
                             const std::optional<MutableArrayRef>& dlhs, const std::optional<MutableArrayRef>& drhs,
                             const Runtime& runtime, const StateArrays& state)>
      backward = nullptr;
  std::function<absl::StatusOr<PreparedOperand>(Side side, const ArrayRef& value, const Context& context,
                                                const Runtime& runtime)>
      prepare = nullptr;
  std::function<absl::StatusOr<PreparedOperand>(Side side, QTensor qtensor, const Runtime& runtime)> prepare_qtensor =
      nullptr;
};

// Plans a drawn contraction.
using Planner = std::function<absl::StatusOr<Contraction>(const Semantics&, std::optional<kernels::Target>)>;

// Where a case runs.
struct Machine {
  Executor* executor = nullptr;
  std::optional<kernels::Target> target = std::nullopt;
};

// How a contraction is used.
struct Use {
  enum class Operand {
    kValue,
    kPrepared,           // the qvalue of the first step's value
    kPreparedWithValue,  // beside the float value, for gradients
    kScales,             // the scales of the first step's value
    kMasked,             // kPrepared with a sparsity mask
  };
  Operand lhs = Operand::kValue, rhs = Operand::kValue;
  Residuals::Operands residuals = Residuals::Operands::kCopy;
  bool observed = false;
  bool own_product = false;  // Runtime::product
  bool want_dlhs = true, want_drhs = true;
  // The memory layout of the arrays: see Placed.
  int lhs_layout = 0, rhs_layout = 0, g_layout = 0, out_layout = 0, gradient_layout = 0;
  Semantics semantics = {};

  struct Step {
    Array lhs, rhs, g;
    Context context;
  };
  std::vector<Step> steps = {};  // more than one for statistics

  std::string ToString() const;
};

struct UseStyle {
  bool prepared = false;
  bool state = false;
  bool product = true;  // whether the contraction can take Runtime::product
};
Use DrawUse(Draw& draw, const Contraction& contraction, const UseStyle& style);

Fields Run(const Planner& planner, const Use& use, const Machine& where);

}  // namespace aqt::digest

#endif  // AQT_TESTS_DIGEST_CONTRACTION_H_
