#include "aqt/ops/fp8/fp8_sharded_dense.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/collective/collective.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/collective/collective_ops.h"
#include "aqt/ops/fp8/fp8_arrays.h"
#include "aqt/ops/fp8/fp8_dot_fields.h"
#include "aqt/ops/fp8/fp8_projections.h"
#include "aqt/ops/fp8/fp8_scaling.h"

namespace aqt {
namespace {

using internal::Fp8ForwardFields;

// The product of codes, which internal::MultiplyFp8 defines: (lhs, scale of lhs, rhs, scale of rhs) -> product.
class MultiplyOp final : public CompositeBase {
 public:
  MultiplyOp(const DotDims& dims, DType dtype) : dims_(dims), dtype_(dtype) {}

  std::string Name() const override { return "fp8_multiply"; }
  std::string Attributes() const override { return absl::StrCat(dims_.ToString(), ", ", ToString(dtype_)); }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    return std::vector<Aval>{{dtype_, DotOutputShape(dims_, in[0].shape, in[2].shape)}};
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    return {internal::MultiplyFp8(in[0], in[1], in[2], in[3], dims_, dtype_)};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool>) const override {
    const internal::Fp8Product product(in[0].aval, in[2].aval, dims_, dtype_);
    const auto run = [product](const KernelCall& call) {
      const auto operand = [&](int i) {
        return internal::Fp8Product::Operand{call.in[i], *static_cast<const float*>(call.in[i + 1])};
      };
      return product.Run(operand(0), operand(2), call.out[0], call.scratch, call.executor);
    };
    return OpKernel{.run = run, .scratch_bytes = product.scratch_bytes()};
  }

 private:
  const DotDims dims_;
  const DType dtype_;
};

// Exchanges and slices in the program of one process.
class Exchanges {
 public:
  explicit Exchanges(const Fp8ShardedOptions& options) : mesh_(options.sharding.mesh), rank_(options.rank) {}

  // Reduces over the processes along `axes`, names separated by commas; x itself for no axes.
  Value Reduced(AllReduceKind kind, const Value& x, const std::string& axes) const {
    return axes.empty() ? x : ops::AllReduce(kind, x, Processes(axes), axes);
  }
  // This process's part of a matrix in the layout `to`, given its part in the layout `from`.
  Value Moved(Value x, const MatrixLayout& from, const MatrixLayout& to) const {
    const std::string* const parts[2][2] = {{&from.rows, &to.rows}, {&from.columns, &to.columns}};
    for (int64_t axis = 0; axis < 2; ++axis) {
      const auto [old, next] = parts[axis];
      if (*old != *next && !old->empty()) x = ops::AllGather(x, axis, Processes(*old), *old);
    }
    for (int64_t axis = 0; axis < 2; ++axis) {
      const auto [old, next] = parts[axis];
      if (*old != *next && !next->empty()) x = Cut(x, axis, *next);
    }
    return x;
  }
  // The product of codes in `dtype`, summed over the processes along `axis`.
  Value Multiplied(const Value& lhs, const Value& lhs_scale, const Value& rhs, const Value& rhs_scale,
                   const DotDims& dims, DType dtype, const std::string& axis) const {
    // Scales are rounded to the dtype of the result even where sums are in f32.
    const auto rounded = [&](const Value& scale) { return ops::Cast(ops::Cast(scale, dtype), DType::kF32); };
    const auto op = std::make_shared<MultiplyOp>(dims, axis.empty() ? dtype : DType::kF32);
    const Value product =
        Bind(CompositeOp{op}, {lhs, rounded(lhs_scale), rhs, rounded(rhs_scale)}, std::source_location::current())[0];
    return ops::Cast(Reduced(AllReduceKind::kSum, product, axis), dtype);
  }
  // The state after a step on a tensor whose parts are in the processes along `axes`.
  Fp8TensorState Updated(const Value& part, const std::string& axes, const Fp8TensorState& state,
                         const Fp8ScaleRule& rule) const {
    return ops::Fp8Update(Reduced(AllReduceKind::kMax, ops::Fp8Amax(part), axes), state, rule);
  }
  int Processes(const std::string& axes) const {
    int processes = 1;
    for (const absl::string_view axis : absl::StrSplit(axes, ',')) processes *= mesh_.SizeOf(axis);
    return processes;
  }

 private:
  Value Cut(const Value& x, int64_t axis, const std::string& mesh_axis) const {
    const int64_t extent = x.dim(axis) / mesh_.SizeOf(mesh_axis), at = mesh_.PositionOf(rank_, mesh_axis);
    PerAxis start(x.rank(), 0), limit(x.shape().begin(), x.shape().end());
    start[axis] = at * extent;
    limit[axis] = (at + 1) * extent;
    return ops::Slice(x, start, limit);
  }

  const Mesh mesh_;
  const int rank_;
};

// The extents of a part in the layout `to`, from those of a part in the layout `from`.
absl::StatusOr<Shape> MovedShape(absl::string_view name, const Mesh& mesh, const Shape& part, const MatrixLayout& from,
                                 const MatrixLayout& to) {
  Shape whole{part[0] * mesh.SizeOf(from.rows), part[1] * mesh.SizeOf(from.columns)};
  const int divisors[] = {mesh.SizeOf(to.rows), mesh.SizeOf(to.columns)};
  for (int axis = 0; axis < 2; ++axis) {
    if (whole[axis] % divisors[axis] != 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is ", whole.ToString(), " in all, whose axis ", axis, " ",
                                                     divisors[axis],
                                                     " processes cannot divide equally; pad it, or change the rules"));
    }
    whole[axis] /= divisors[axis];
  }
  return whole;
}

// (x, k, scale and history of x, of k and of dy) -> y.
class ShardedDotOp final : public CompositeBase {
 public:
  enum Operand { kX, kK, kXScale, kXHistory, kKScale, kKHistory, kDyScale, kDyHistory, kCount };

  // `whole` is the product in one process.
  ShardedDotOp(Fp8ShardedOptions options, std::shared_ptr<const Composite> whole)
      : options_(std::move(options)), plan_(options_.sharding), whole_(std::move(whole)), exchanges_(options_) {}

  std::string Name() const override { return "fp8_sharded_dot"; }
  std::string Attributes() const override {
    const auto text = [](const MatrixLayout& layout) {
      return absl::StrCat("[", layout.rows, ",", layout.columns, "]");
    };
    const std::string rest = whole_->Attributes();
    return absl::StrCat("x=", text(plan_.x), ", kernel=", text(plan_.kernel), ", mesh=", plan_.mesh.ToString(),
                        ", rank=", options_.rank, rest.empty() ? "" : ", ", rest);
  }
  std::optional<std::string> instance_name() const override { return whole_->instance_name(); }
  std::vector<std::optional<Array>> InitialStatistics() const override { return whole_->InitialStatistics(); }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    std::vector<Aval> parts(in.begin(), in.end());
    if (options_.rank < 0 || options_.rank >= plan_.mesh.size()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", options_.rank, " of the mesh ", plan_.mesh.ToString(),
                                                     ", expected one of its processes"));
    }
    if (parts.size() > kK && parts[kX].shape.rank() == 2 && parts[kK].shape.rank() == 2) {
      AQT_ASSIGN_OR_RETURN(parts[kX].shape, MovedShape("x", plan_.mesh, parts[kX].shape, plan_.x, plan_.XInProduct()));
      AQT_ASSIGN_OR_RETURN(parts[kK].shape, MovedShape("the kernel", plan_.mesh, parts[kK].shape, plan_.kernel,
                                                       plan_.KernelInProduct()));
    }
    return whole_->Infer(parts);
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    return {Product(Codes(in, kX), Codes(in, kK), in)};
  }
  bool has_gradient() const override { return true; }
  Forward GradForward(absl::Span<const Value> in) const override {
    const Value x = Codes(in, kX), k = Codes(in, kK);
    std::vector<Value> residuals = {x, k, in[kXScale], in[kKScale], in[kDyScale], in[kDyHistory]};
    const auto update = [&](Operand tensor, Operand scale, const MatrixLayout& layout) {
      const Fp8TensorState next = exchanges_.Updated(in[tensor], plan_.AxesOf(layout), {in[scale], in[scale + 1]},
                                                     {.dtype = DType::kE4M3FN, .compat = options_.dot.compat});
      residuals.insert(residuals.end(), {next.scale, next.amax_history});
    };
    update(kX, kXScale, plan_.x);
    update(kK, kKScale, plan_.kernel);
    return {.outputs = {Product(x, k, in)}, .residuals = std::move(residuals)};
  }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                 absl::Span<const Value> cotangents) const override {
    static const DotDims kInputGradient{.lhs_contracting = {1}, .rhs_contracting = {1}};
    static const DotDims kKernelGradient{.lhs_contracting = {0}, .rhs_contracting = {0}};
    const Value &dy = cotangents[0], &x = residuals[0], &k = residuals[1];
    const Value &x_scale = residuals[2], &k_scale = residuals[3], &scale = residuals[4], &history = residuals[5];
    const Value codes = ops::Fp8Quantize(dy, scale, DType::kE5M2, options_.dot.compute_dtype);
    const Fp8TensorState next = exchanges_.Updated(dy, plan_.AxesOf(plan_.y), {scale, history},
                                                   {.dtype = DType::kE5M2, .compat = options_.dot.compat});
    Write(Fp8Tensor::kInput, residuals[6], residuals[7]);
    Write(Fp8Tensor::kKernel, residuals[8], residuals[9]);
    Write(Fp8Tensor::kOutputGrad, next.scale, next.amax_history);
    std::vector<std::optional<Value>> result(kCount);
    result[kX] =
        exchanges_.Moved(exchanges_.Multiplied(codes, scale, k, k_scale, kInputGradient, dy.dtype(), plan_.DxSum()),
                         plan_.XInProduct(), plan_.x);
    result[kK] =
        exchanges_.Moved(exchanges_.Multiplied(x, x_scale, codes, scale, kKernelGradient, dy.dtype(), plan_.DkSum()),
                         plan_.KernelInProduct(), plan_.kernel);
    return result;
  }

 private:
  // The codes of x or k, as the product reads them. Codes are exchanged, one byte per element.
  Value Codes(absl::Span<const Value> in, Operand tensor) const {
    const Value codes =
        ops::Fp8Quantize(in[tensor], in[tensor == kX ? kXScale : kKScale], DType::kE4M3FN, options_.dot.compute_dtype);
    return tensor == kX ? exchanges_.Moved(codes, plan_.x, plan_.XInProduct())
                        : exchanges_.Moved(codes, plan_.kernel, plan_.KernelInProduct());
  }
  Value Product(const Value& x, const Value& k, absl::Span<const Value> in) const {
    return exchanges_.Multiplied(x, in[kXScale], k, in[kKScale], internal::Fp8ForwardDims(), in[kX].dtype(),
                                 plan_.YSum());
  }
  void Write(Fp8Tensor tensor, const Value& scale, const Value& history) const {
    const Fp8Slots slots = Fp8SlotsOf(options_.dot.name, tensor);
    WriteSlot(slots.scale, scale);
    WriteSlot(slots.amax_history, history);
  }

  const Fp8ShardedOptions options_;
  const Fp8DotSharding& plan_;
  const std::shared_ptr<const Composite> whole_;
  const Exchanges exchanges_;
};

}  // namespace

namespace ops {

Value Fp8ShardedDense(const Value& x, const Value& kernel, const std::optional<Value>& bias, const Fp8DotState& state,
                      const Fp8ShardedOptions& options, const std::source_location& where) {
  const CallSite site(where);
  Fp8ForwardFields fields{.options = options.dot, .state = {}};
  std::vector<Value> operands = {x, kernel};
  for (const Fp8TensorState& own : {state.input, state.kernel, state.output_grad}) {
    if (!own.scale.status().ok()) return own.scale;
    if (!own.amax_history.status().ok()) return own.amax_history;
    fields.state[operands.size() / 2 - 1] = {own.scale.aval(), own.amax_history.aval()};
    operands.insert(operands.end(), {own.scale, own.amax_history});
  }
  const auto refuse = [&](const absl::Status& status) { return Refuse(status, "fp8_sharded_dot", operands, where); };
  const auto whole = internal::MakeComposite(fields);
  if (!whole.ok()) return refuse(whole.status());
  if (!TakeName(options.dot.name)) return refuse(internal::Fp8NameIsTaken(options.dot.name));
  Value y = Bind(CompositeOp{std::make_shared<ShardedDotOp>(options, *whole)}, operands, where)[0];
  if (!y.status().ok() || !bias.has_value()) return y;
  if (!bias->status().ok()) return *bias;
  const std::string& rows = options.sharding.y.rows;
  if (rows.empty()) return Fp8AddBias(y, *bias, where);
  // Rounded here, so that its gradient is rounded after the sum.
  const Value rounded = bias->dtype() == DType::kF32 ? Cast(*bias, DType::kBF16) : *bias;
  const int processes = options.sharding.mesh.SizeOf(rows);
  return y + Cast(SumGradient(Cast(rounded, DType::kF32), processes, rows), bias->dtype());
}

}  // namespace ops
}  // namespace aqt
