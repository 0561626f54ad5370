#include "aqt/quant/contraction/engine/packed_side.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "aqt/core/check.h"
#include "aqt/kernels/gemm/long_k.h"
#include "aqt/kernels/gemm/product.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {
namespace {

// The [batch, rows] axes of an operand, in the order of the product.
struct RowAxes {
  Shape shape;
  Axes axes;  // of the operand
};

RowAxes RowAxesOf(const Shape& operand, const OperandAxes& axes) {
  RowAxes rows;
  rows.axes = axes.batch;
  rows.axes.insert(rows.axes.end(), axes.rows.begin(), axes.rows.end());
  for (const int64_t axis : rows.axes) rows.shape.push_back(operand[axis]);
  return rows;
}

int64_t Count(const Shape& shape, const Axes& axes) {
  int64_t count = 1;
  for (const int64_t axis : axes) count *= shape[axis];
  return count;
}

}  // namespace

OperandAxes OperandAxesOf(const DotDims& dims, Side side, int64_t rank) {
  const bool lhs = side == Side::kLhs;
  OperandAxes axes{.batch = lhs ? dims.lhs_batch : dims.rhs_batch,
                   .k = lhs ? dims.lhs_contracting : dims.rhs_contracting};
  axes.rows = RemainingAxes(rank, axes.k, axes.batch);
  return axes;
}

kernels::Operand KernelOperand(const ArrayRef& x, const OperandAxes& axes) {
  kernels::Operand operand;
  operand.data = x.data;
  operand.dtype = x.dtype;
  for (const int64_t axis : axes.batch) operand.batch.Append(x.shape[axis], x.strides[axis]);
  for (const int64_t axis : axes.rows) operand.rows.Append(x.shape[axis], x.strides[axis]);
  for (const int64_t axis : axes.k) operand.k.Append(x.shape[axis], x.strides[axis]);
  return operand;
}

NoisyOperand KernelOperand(const ArrayRef& x, const OperandAxes& axes, const kernels::RandomNumbers& numbers,
                           const Shape& draws) {
  NoisyOperand operand{.source = {}, .noise = {.numbers = numbers}};
  operand.source.data = x.data;
  operand.source.dtype = x.dtype;
  const Strides strides = BroadcastStrides(draws, DenseStrides(draws), x.shape);
  const auto append = [&](const Axes& group, kernels::AxisGroup& source, kernels::AxisGroup& noise) {
    for (const int64_t axis : group) {
      kernels::AppendToBoth(x.shape[axis], x.strides[axis], strides[axis], source, noise);
    }
  };
  append(axes.batch, operand.source.batch, operand.noise.batch);
  append(axes.rows, operand.source.rows, operand.noise.rows);
  append(axes.k, operand.source.k, operand.noise.k);
  return operand;
}

OutputAxes KernelOutput(const MutableArrayRef& out, const OperandAxes& lhs) {
  const int64_t batch = static_cast<int64_t>(lhs.batch.size());
  const int64_t rows_end = batch + static_cast<int64_t>(lhs.rows.size());
  OutputAxes axes;
  for (int64_t axis = 0; axis < out.shape.rank(); ++axis) {
    kernels::AxisGroup& group = axis < batch ? axes.batch : axis < rows_end ? axes.rows : axes.cols;
    group.Append(out.shape[axis], out.strides[axis]);
  }
  return axes;
}

int64_t PanelBytes(const kernels::PanelFormat& format, const kernels::Operand& operand) {
  return operand.batch.Count() * format.PackedBytes(operand.rows.Count(), operand.k.Count());
}

int64_t PanelBytes(const kernels::PanelFormat& format, const Shape& shape, const OperandAxes& axes) {
  return Count(shape, axes.batch) * format.PackedBytes(Count(shape, axes.rows), Count(shape, axes.k));
}

void PackOperand(const kernels::GemmKernel& kernel, Side side, const kernels::Operand& x, void* panels,
                 const Runtime& runtime) {
  CountPack(side, runtime);
  kernels::Pack(kernel.target, side == Side::kLhs ? kernel.lhs : kernel.rhs, x, panels, runtime.executor,
                /*subnormals_are_zero=*/true);
}

void CountPack(Side side, const Runtime& runtime) {
  if (runtime.packs != nullptr) ++(side == Side::kLhs ? runtime.packs->lhs : runtime.packs->rhs);
}

void GemmCall::ExchangeOperands() {
  std::swap(lhs, rhs);
  std::swap(lhs_panels, rhs_panels);
  std::swap(out_axes.rows, out_axes.cols);
  std::swap(epilogue.lhs_scale, epilogue.rhs_scale);
  std::swap(epilogue.lhs_stride, epilogue.rhs_stride);
  std::swap(epilogue.lhs_batch_stride, epilogue.rhs_batch_stride);
  std::swap(epilogue.first_dtype, epilogue.second_dtype);
  epilogue.rhs_first = !epilogue.rhs_first;
}

namespace {

// The arguments of a call without panels.
kernels::GemmArgs ArgsOf(const GemmCall& call) {
  kernels::GemmArgs args;
  args.batch = call.lhs.batch.Count();
  args.m = call.lhs.rows.Count();
  args.n = call.rhs.rows.Count();
  args.k = call.lhs.k.Count();
  args.out = call.out;
  args.out_dtype = call.out_dtype;
  args.out_batch = call.out_axes.batch;
  args.out_rows = call.out_axes.rows;
  args.out_cols = call.out_axes.cols;
  args.epilogue = call.epilogue;
  if (!args.HasBlocks()) args.epilogue.block = nullptr;
  return args;
}

}  // namespace

void RunGemmCall(const kernels::GemmKernel& kernel, const GemmCall& call, Workspace& workspace,
                 const Runtime& runtime) {
  kernels::GemmArgs args = ArgsOf(call);
  if (call.lhs_panels == nullptr) CountPack(Side::kLhs, runtime);
  if (call.rhs_panels == nullptr) CountPack(Side::kRhs, runtime);
  if (call.lines != nullptr) {
    AQT_DCHECK(call.rhs_panels != nullptr);
    args.rhs = call.rhs_panels;
    args.rhs_batch_bytes = kernel.rhs.PackedBytes(args.n, args.k);
    void* lines = workspace.Get(ScratchSlot::kLhsPacked, call.lines->BufferBytes());
    return call.lines->Run(args, /*subnormals_are_zero=*/true, lines, runtime.executor);
  }
  kernels::ProductBytes bytes = {PanelBytes(kernel.lhs, call.lhs), PanelBytes(kernel.rhs, call.rhs)};
  if (call.lhs_panels == nullptr && call.rhs_panels == nullptr) {
    bytes = kernels::ProductBytesOf(kernel, args.batch, args.m, args.n, args.k);
  }
  kernels::ProductBuffers buffers;
  if (call.lhs_panels == nullptr) buffers.lhs = workspace.Get(ScratchSlot::kLhsPacked, bytes.lhs);
  if (call.rhs_panels == nullptr) buffers.rhs = workspace.Get(ScratchSlot::kRhsPacked, bytes.rhs);
  kernels::RunProduct(kernel,
                      {.lhs = call.lhs,
                       .rhs = call.rhs,
                       .lhs_panels = call.lhs_panels,
                       .rhs_panels = call.rhs_panels,
                       .lhs_rows_overlap = call.lhs_rows_overlap,
                       .subnormals_are_zero = true},
                      args, buffers, runtime.executor);
}

void RunGemmCallLongK(const kernels::GemmKernel& kernel, const GemmCall& call, Workspace& workspace,
                      const Runtime& runtime) {
  const kernels::GemmArgs args = ArgsOf(call);
  void* buffer =
      workspace.Get(ScratchSlot::kLhsPacked, kernels::LongKBytes(kernel, args.batch, args.m, args.n, args.k));
  CountPack(Side::kLhs, runtime);
  CountPack(Side::kRhs, runtime);
  kernels::RunGemmLongK(kernel, call.lhs, call.rhs, /*subnormals_are_zero=*/true, args, buffer, runtime.executor);
}

void GatherRows(const ArrayRef& scale, const Shape& operand, const OperandAxes& axes, float* rows) {
  const RowAxes row_axes = RowAxesOf(operand, axes);
  Strides strides;
  for (const int64_t axis : row_axes.axes) strides.push_back(scale.shape[axis] == 1 ? 0 : scale.strides[axis]);
  const StridesSpan spans[] = {strides};
  ForEachPiece(row_axes.shape, spans, [&](const int64_t* offsets, int64_t n, int64_t linear) {
    LoadRow(scale.dtype, scale.data, offsets[0], InnerStride(strides), n, rows + linear);
  });
}

void GatherScales(const ArrayRef& scale, const Shape& operand, const OperandAxes& axes, float* rows) {
  GatherRows(scale, operand, axes, rows);
  FlushRow(scale.dtype, rows, RowAxesOf(operand, axes).shape.num_elements());
}

void ScatterScales(const float* rows, const OperandAxes& axes, const MutableArrayRef& scale) {
  const RowAxes row_axes = RowAxesOf(scale.shape, axes);
  Strides strides;
  for (const int64_t axis : row_axes.axes) strides.push_back(scale.strides[axis]);
  const StridesSpan spans[] = {strides};
  ForEachPiece(row_axes.shape, spans, [&](const int64_t* offsets, int64_t n, int64_t linear) {
    StoreRow(scale.dtype, rows + linear, n, scale.data, offsets[0], InnerStride(strides));
  });
}

ScalesInMemory ScalesInPlace(const ArrayRef& scale, const Shape& operand, const OperandAxes& axes) {
  if (scale.dtype != DType::kF32) return {};
  const RowAxes rows = RowAxesOf(operand, axes);
  int64_t stride = 1;
  for (size_t i = rows.axes.size(); i-- > 0;) {
    const int64_t axis = rows.axes[i];
    if (scale.shape[axis] != rows.shape[i] || (rows.shape[i] != 1 && scale.strides[axis] != stride)) return {};
    stride *= rows.shape[i];
  }
  const float* const values = static_cast<const float*>(scale.data);
  const float smallest = SmallestMagnitude(values, stride);
  // GatherScales writes subnormal scales as zeros.
  if (smallest < std::numeric_limits<float>::min()) return {};
  return {values, smallest};
}

float SmallestMagnitude(const float* values, int64_t count) {
  // As integers, bit patterns without sign are ordered like magnitudes, and the loop vectorizes.
  constexpr int64_t kLanes = 16;
  constexpr int32_t kInfinity = 0x7f800000;
  int32_t least[kLanes];
  std::fill_n(least, kLanes, kInfinity);
  const auto key = [](float value) {
    const int32_t bits = std::bit_cast<int32_t>(value) & 0x7fffffff;
    return bits == 0 ? kInfinity : bits;
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) least[j] = std::min(least[j], key(values[i + j]));
  }
  for (; i < count; ++i) least[0] = std::min(least[0], key(values[i]));
  return std::bit_cast<float>(*std::min_element(least, least + kLanes));
}

bool ProductsAreNormal(double least, float smallest_a, float smallest_b) {
  const double first = least * smallest_a;
  return first >= 0x1p-125 && first * smallest_b >= 0x1p-125;
}

bool SumsOfProductsAreNormal(double least, float smallest_a, float smallest_b) {
  // This also holds for the rounded product.
  return ProductsAreNormal(least, smallest_a, smallest_b) && least * smallest_a * smallest_b >= 0x1p-101;
}

std::optional<kernels::QuantizeStep> FusedStep(const QuantizeSpec& spec) {
  if (const auto* fp8 = std::get_if<Fp8>(&spec.numerics); fp8 != nullptr) {
    if (fp8->stochastic_rounding || spec.bias.has_value() || spec.q_dtype == DType::kBF16) return std::nullopt;
    return kernels::QuantizeStep{.q_dtype = spec.q_dtype,
                                 .scale_dtype = spec.scale_dtype,
                                 .product_dtype = spec.scaled_dtype,
                                 .subnormals_are_zero = true};
  }
  const auto* integer = std::get_if<IntSymmetric>(&spec.numerics);
  if (integer == nullptr || !integer->clip || !integer->round || !integer->preserve_zero) return std::nullopt;
  if (spec.bias.has_value()) return std::nullopt;
  if (spec.q_dtype != DType::kS8 && spec.q_dtype != DType::kS4) return std::nullopt;
  if (integer->bits > BitWidth(spec.q_dtype)) return std::nullopt;  // the container saturates
  return kernels::QuantizeStep{.clip_bound = static_cast<float>(ClipBound(*integer)),
                               .scale_dtype = spec.scale_dtype,
                               .product_dtype = spec.scaled_dtype,
                               .subnormals_are_zero = true};
}

FusedScales FusedScalesOf(const QuantizeSpec& spec, const OperandAxes& axes) {
  if (!std::holds_alternative<AbsMax>(spec.calibration)) return FusedScales::kNo;
  if (spec.num_scales() == 1 && spec.shared_axes.size() == static_cast<size_t>(spec.x.shape.rank())) {
    return FusedScales::kSingle;
  }
  Shape per_row = spec.x.shape;
  for (const int64_t axis : axes.k) per_row[axis] = 1;
  return per_row == spec.scale_shape ? FusedScales::kPerRow : FusedScales::kNo;
}

}  // namespace aqt::internal
