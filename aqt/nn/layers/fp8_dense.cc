#include "aqt/nn/layers/fp8_dense.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/checked_extents.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/fp8/fp8_projections.h"
#include "aqt/ops/functions.h"

namespace aqt::nn {
namespace {

bool Computes(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

// The promoted dtype of two of f32, bf16 and f16.
DType CommonFloat(DType a, DType b) { return a == b ? a : DType::kF32; }

absl::Status CheckOptions(const Value& x, const Fp8DenseOptions& options) {
  if (x.rank() < 2 || !Computes(x.dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat("x is ", x.aval().ToString(), ", expected f32, bf16 or f16 with at least two axes"));
  }
  for (const DType dtype : {options.dtype.value_or(DType::kF32), options.param_dtype}) {
    if (!Computes(dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("the dtype is ", ToString(dtype), ", expected f32, bf16 or f16"));
    }
  }
  bool positive = !options.features.empty();
  CheckedInt features = 1;
  for (const int64_t extent : options.features) {
    positive = positive && extent >= 1;
    features = features * extent;
  }
  if (!positive || !features.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("features = [", absl::StrJoin(options.features, ","),
                                                   "], expected one number or more, each at least 1, and no overflow"));
  }
  const absl::StatusOr<Axes> axes = NormalizeAxes(options.axis, x.rank());
  bool trailing = axes.ok() && !axes->empty();
  for (size_t i = 0; trailing && i < axes->size(); ++i) {
    trailing = (*axes)[i] == x.rank() - static_cast<int64_t>(axes->size() - i);
  }
  if (!trailing) {
    return absl::InvalidArgumentError(absl::StrCat("axis = [", absl::StrJoin(options.axis, ","),
                                                   "], expected the last ", "axes of ", x.aval().ToString(),
                                                   " in their order, as x is reshaped and not transposed"));
  }
  return absl::OkStatus();
}

}  // namespace

Fp8DenseOptions FlaxFp8Dense(std::vector<int64_t> features) { return {.features = std::move(features)}; }

Fp8DenseOptions TensorFlowFp8Dense(int64_t units) {
  return {.features = {units}, .amax_history_length = 1024, .scale_shape = {}};
}

Fp8DenseOptions PraxisFp8Linear(int64_t output_dims) { return {.features = {output_dims}, .use_bias = false}; }

Fp8DenseOptions PraxisFp8FeedForward(int64_t output_dims) {
  return {.features = {output_dims}, .rounds_bias_of_matrices_only = true, .activation = [](const Value& y) {
            return ops::Relu(y);
          }};
}

Value Fp8Dense(const Value& x, absl::string_view name, const Fp8DenseOptions& options,
               const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  if (const absl::Status status = CheckOptions(x, options); !status.ok())
    return Refuse(status, "fp8_dense", {x}, where);
  const int64_t leading = x.rank() - static_cast<int64_t>(options.axis.size());
  Shape out;
  int64_t in_size = 1, rows = 1, out_size = 1;
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    (axis < leading ? rows : in_size) *= x.dim(axis);
    if (axis < leading) out.push_back(x.dim(axis));
  }
  for (const int64_t extent : options.features) {
    out_size *= extent;
    out.push_back(extent);
  }
  const Aval kernel_aval{options.param_dtype, {in_size, out_size}};
  const DType dtype = options.dtype.value_or(CommonFloat(x.dtype(), options.param_dtype));
  const Value kernel = Parameter("kernel", kernel_aval, options.kernel_init, where);

  const std::string contraction = NextContractionName();
  const Fp8DotState state = Fp8StateInputs(contraction, options.amax_history_length, options.scale_shape, where);
  Value y = ops::Fp8Dot(ops::Reshape(ops::Cast(x, dtype), {rows, in_size}), ops::Cast(kernel, dtype), state,
                        {.name = contraction,
                         .compute_dtype = options.dtype.has_value() ? std::nullopt : std::optional<DType>(DType::kF32),
                         .compat = options.compat},
                        where);
  if (options.use_bias) {
    const Aval bias_aval{options.param_dtype, {out_size}};
    const Value bias = ops::Cast(Parameter("bias", bias_aval, options.bias_init, where), dtype);
    const bool rounds = !options.rounds_bias_of_matrices_only || x.rank() == 2;
    y = rounds ? ops::Fp8AddBias(y, bias, where) : y + bias;
  }
  if (options.activation != nullptr) y = options.activation(y);
  return ops::Reshape(y, out);
}

Value Fp8Mlp(const Value& x, absl::string_view name, const Fp8MlpOptions& options, const std::source_location& where) {
  const NamedScope scope(name);
  if (options.num_layers < 2) {
    return Refuse(absl::InvalidArgumentError(absl::StrCat("num_layers = ", options.num_layers, ", expected 2 or more")),
                  "fp8_mlp", {x}, where);
  }
  Value y = x;
  for (int64_t i = 0; i < options.num_layers; ++i) {
    const bool is_last = i + 1 == options.num_layers;
    y = Fp8Dense(y, absl::StrCat("layer_", i),
                 PraxisFp8FeedForward(is_last ? options.output_dims : options.hidden_dims), where);
  }
  return y;
}

}  // namespace aqt::nn
