#include "aqt/quant/contraction/engine/packed_side.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "aqt/core/check.h"
#include "aqt/core/machine/machine.h"
#include "aqt/kernels/gemm/long_k.h"
#include "aqt/kernels/gemm/product.h"
#include "aqt/kernels/gemm/schedule.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
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

}  // namespace

NoisyOperand NoisyOperandOf(const ArrayRef& x, const OperandAxes& axes, const kernels::RandomNumbers& numbers,
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

int64_t PanelBytes(const kernels::PanelFormat& format, const Shape& shape, const OperandAxes& axes) {
  return kernels::Extent(shape, axes.batch) *
         format.PackedBytes(kernels::Extent(shape, axes.rows), kernels::Extent(shape, axes.k));
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

void PackAndMultiply(const kernels::GemmKernel& kernel, const kernels::GemmProblem& problem,
                     const kernels::GemmPanels& packed, Workspace& workspace, const Runtime& runtime,
                     const kernels::LinesPlan* lines) {
  if (packed.lhs == nullptr) CountPack(Side::kLhs, runtime);
  if (packed.rhs == nullptr) CountPack(Side::kRhs, runtime);
  if (lines != nullptr) {
    AQT_DCHECK(packed.rhs != nullptr);
    void* buffer = workspace.Get(ScratchSlot::kLhsPacked, lines->BufferBytes());
    return lines->Run(problem, {.rhs = packed.rhs, .rhs_batch_bytes = kernel.rhs.PackedBytes(problem.n, problem.k)},
                      buffer, runtime.executor);
  }
  const int64_t batch = problem.batch, m = problem.m, n = problem.n, k = problem.k;
  kernels::ProductBytes bytes = {batch * kernel.lhs.PackedBytes(m, k), batch * kernel.rhs.PackedBytes(n, k)};
  if (packed.lhs == nullptr && packed.rhs == nullptr) bytes = kernels::ProductBytesOf(kernel, batch, m, n, k);
  kernels::ProductBuffers buffers;
  if (packed.lhs == nullptr) buffers.lhs = workspace.Get(ScratchSlot::kLhsPacked, bytes.lhs);
  if (packed.rhs == nullptr) buffers.rhs = workspace.Get(ScratchSlot::kRhsPacked, bytes.rhs);
  kernels::PackAndMultiply(kernel, problem, packed, buffers, runtime.executor);
}

void MultiplyLongK(const kernels::GemmKernel& kernel, const kernels::GemmProblem& problem, Workspace& workspace,
                   const Runtime& runtime) {
  const Machine& machine = ThisMachine();
  const int64_t batch = problem.batch, m = problem.m, n = problem.n, k = problem.k;
  void* buffer = workspace.Get(ScratchSlot::kLhsPacked, kernels::LongKBytes(kernel, batch, m, n, k, machine));
  CountPack(Side::kLhs, runtime);
  CountPack(Side::kRhs, runtime);
  const int64_t threads = kernels::UsefulThreads(problem, kernels::ThreadsOf(runtime.executor));
  kernels::RunGemmLongK(kernel, problem, kernels::CutLongK(kernel, batch, m, n, k, machine, threads), buffer,
                        runtime.executor);
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

namespace {

// Whether a scaled value is x * R(1 / scale).
bool MultipliesByInverse(const QuantizeSpec& spec, const Semantics& semantics) {
  switch (ScaleRuleOf(semantics)) {
    case ScaleRule::kInverse: return true;
    case ScaleRule::kQuotient: return false;
    case ScaleRule::kXlaQuotient: break;
  }
  // The same for a reciprocal of the dtype of the product, if that is finite.
  return semantics.compat.small_scales_are_one && spec.scaled_dtype != DType::kBF16 &&
         spec.scale_dtype == spec.scaled_dtype && spec.scale_shape != spec.x.shape;
}

}  // namespace

std::optional<kernels::QuantizeStep> FusedStep(const QuantizeSpec& spec, const Semantics& semantics) {
  if (!MultipliesByInverse(spec, semantics)) return std::nullopt;
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
  if (integer->noise.has_value() && semantics.compat.noise_sum_stays_f32 && spec.scaled_dtype != DType::kF32) {
    return std::nullopt;
  }
  if (spec.q_dtype != DType::kS8 && spec.q_dtype != DType::kS4) return std::nullopt;
  if (integer->bits > BitWidth(spec.q_dtype)) return std::nullopt;  // the container saturates
  const ClipRange range = ClipRangeOf(*integer, semantics.compat, DType::kF32);
  return kernels::QuantizeStep{.lo = range.lo,
                               .hi = range.hi,
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
