#include "aqt/nn/layers/fp8_sharded_dense.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/aval.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/fp8/fp8_sharded_dense.h"

namespace aqt::nn {
namespace {

absl::Status CheckLayer(const Value& x, const Fp8DenseOptions& options) {
  const bool last = options.axis.size() == 1 && (options.axis[0] == -1 || options.axis[0] == 1);
  if (x.rank() == 2 && options.features.size() == 1 && last) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "x is ", x.aval().ToString(), ", features = [", absl::StrJoin(options.features, ","), "], axis = [",
      absl::StrJoin(options.axis, ","),
      "]; a divided layer takes a matrix, one number of features and the last axis; reshape x and y around it"));
}

// The shard of a parameter whose axes are divided over mesh axes. Draws the full parameter, then cuts it.
absl::StatusOr<Value> PartOfParameter(absl::string_view name, const Aval& whole, const Initializer& init,
                                      const std::vector<std::string>& mesh_axes, const Fp8LayerSharding& sharding,
                                      const std::source_location& where) {
  Aval part = whole;
  PerAxis start, limit;
  for (int64_t axis = 0; axis < whole.shape.rank(); ++axis) {
    const int processes = sharding.mesh.SizeOf(mesh_axes[axis]);
    if (whole.shape[axis] < 1 || whole.shape[axis] % processes != 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is ", whole.ToString(), ", whose axis ", axis, " ",
                                                     processes,
                                                     " processes cannot divide equally; choose other "
                                                     "features, or change the rules"));
    }
    part.shape[axis] = whole.shape[axis] / processes;
    start.push_back(part.shape[axis] * sharding.mesh.PositionOf(sharding.rank, mesh_axes[axis]));
    limit.push_back(start.back() + part.shape[axis]);
  }
  const auto cut = [whole, init, start, limit](const Aval&, Key key) {
    const SuspendTrace suspend;
    return *ops::Slice(Value(init(whole, key)), start, limit).ToArray();
  };
  return Parameter(name, part, cut, where);
}

}  // namespace

Value Fp8ShardedDense(const Value& x, absl::string_view name, const Fp8DenseOptions& options,
                      const Fp8LayerSharding& sharding, const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  const auto refuse = [&](const absl::Status& status) { return Refuse(status, "fp8_sharded_dense", {x}, where); };
  if (const absl::Status status = CheckLayer(x, options); !status.ok()) return refuse(status);
  const auto plan = PlanFp8Dot(sharding.rules, sharding.mesh, sharding.x_axes, sharding.kernel_axes);
  if (!plan.ok()) return refuse(plan.status());
  const int64_t in = x.dim(1) * sharding.mesh.SizeOf(plan->x.columns), out = options.features[0];
  const absl::StatusOr<Value> kernel = PartOfParameter("kernel", {options.param_dtype, {in, out}}, options.kernel_init,
                                                       {plan->kernel.rows, plan->kernel.columns}, sharding, where);
  if (!kernel.ok()) return refuse(kernel.status());
  // As in Fp8Dense: the promoted dtype of input and parameters.
  const DType common = x.dtype() == options.param_dtype ? x.dtype() : DType::kF32;
  const DType dtype = options.dtype.value_or(common);
  std::optional<Value> bias;
  if (options.use_bias) {
    const absl::StatusOr<Value> part =
        PartOfParameter("bias", {options.param_dtype, {out}}, options.bias_init, {plan->y.columns}, sharding, where);
    if (!part.ok()) return refuse(part.status());
    bias = ops::Cast(*part, dtype);
  }
  const std::string contraction = NextContractionName();
  const Fp8DotState state = Fp8StateInputs(contraction, options.amax_history_length, options.scale_shape, where);
  const Fp8DotOptions dot{.name = contraction,
                          .compute_dtype = options.dtype.has_value() ? std::nullopt : std::optional<DType>(DType::kF32),
                          .compat = options.compat};
  const Value y = ops::Fp8ShardedDense(ops::Cast(x, dtype), ops::Cast(*kernel, dtype), bias, state,
                                       {.sharding = *plan, .rank = sharding.rank, .dot = dot}, where);
  return options.activation != nullptr ? options.activation(y) : y;
}

}  // namespace aqt::nn
