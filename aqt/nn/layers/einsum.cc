#include "aqt/nn/layers/einsum.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/initializers.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/config/einsum_equation.h"

namespace aqt::nn {
namespace {

// The contracted axes of the kernel are inputs; axes shared only by the kernel and the result are outputs. A letter
// that x, kernel and result share is a stack of kernels.
FanAxes KernelAxes(const EinsumEquation& equation) {
  FanAxes axes{.in = {}, .out = {}, .batch = {}};
  for (size_t i = 0; i < equation.rhs.size(); ++i) {
    const bool in_lhs = equation.lhs.find(equation.rhs[i]) != std::string::npos;
    const bool in_out = equation.out.find(equation.rhs[i]) != std::string::npos;
    (!in_out ? axes.in : in_lhs ? axes.batch : axes.out).push_back(static_cast<int64_t>(i));
  }
  return axes;
}

}  // namespace

Value Einsum(const Value& x, absl::string_view equation, absl::string_view name, const EinsumOptions& options,
             const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  const auto refuse = [&](const absl::Status& status) { return Refuse(status, "einsum", {x}, where); };
  for (const int64_t extent : options.kernel) {
    if (extent >= 1) continue;
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("kernel = ", options.kernel.ToString(), ", expected extents of at least 1")));
  }
  const absl::StatusOr<EinsumEquation> letters = ParseEinsum(equation, x.rank(), options.kernel.rank());
  if (!letters.ok()) return refuse(letters.status());
  const Initializer init = options.kernel_init != nullptr ? options.kernel_init : LecunNormal(KernelAxes(*letters));
  const Value kernel = Parameter("kernel", {x.dtype(), options.kernel}, init, where);
  const Value y = options.einsum.has_value() ? QuantizedContraction({x, kernel}, EinsumDims{std::string(equation)},
                                                                    *options.einsum, NextContractionName(), where)
                                             : ops::Einsum(equation, x, kernel);
  if (!options.use_bias || !y.status().ok()) return y;
  Shape shape, broadcast;
  for (const char letter : letters->out) {
    const size_t axis = letters->rhs.find(letter);
    const int64_t extent = axis == std::string::npos ? 1 : options.kernel[static_cast<int64_t>(axis)];
    broadcast.push_back(extent);
    if (axis != std::string::npos) shape.push_back(extent);
  }
  const Value bias = Parameter("bias", {x.dtype(), shape}, options.bias_init, where);
  return y + ops::Reshape(bias, broadcast);
}

}  // namespace aqt::nn
