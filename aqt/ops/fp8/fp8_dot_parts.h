#ifndef AQT_OPS_FP8_FP8_DOT_PARTS_H_
#define AQT_OPS_FP8_FP8_DOT_PARTS_H_

// The parts that define the operations of fp8_dot.h, for serialization. Internal.

#include <array>
#include <memory>
#include <optional>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/graph/composite.h"
#include "aqt/ops/fp8/fp8_dot.h"

namespace aqt::internal {

struct Fp8StateAvals {
  Aval scale, amax_history;
};

// fp8_dot, or fp8_dot_fwd.
struct Fp8ForwardParts {
  Fp8DotOptions options;
  bool with_gradient = false;
  std::array<Fp8StateAvals, 3> state;  // in the order of Fp8Tensor
};

// fp8_dot_bwd
struct Fp8BackwardParts {
  Fp8DotOptions options;
  Fp8StateAvals output_grad;
};

using Fp8DotParts = std::variant<Fp8ForwardParts, Fp8BackwardParts>;

// The parts of `op`; null for any other operation.
std::optional<Fp8DotParts> Fp8DotPartsOf(const Composite& op);

// The operation. InvalidArgument for a dtype, scale or history that no fp8 op accepts.
absl::StatusOr<std::shared_ptr<const Composite>> MakeFp8DotOp(const Fp8DotParts& parts);

// The error for a second product of this name.
absl::Status Fp8NameIsTaken(absl::string_view name);

}  // namespace aqt::internal

#endif  // AQT_OPS_FP8_FP8_DOT_PARTS_H_
