#include "aqt/quant/contraction/conv_general.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/gemm_f32.h"
#include "aqt/kernels/gemm_s8.h"
#include "aqt/kernels/operand.h"
#include "aqt/kernels/pack.h"
#include "aqt/kernels/pad.h"
#include "aqt/kernels/target.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/contract.h"
#include "aqt/quant/contraction/packed_side.h"
#include "aqt/quant/contraction/product_types.h"
#include "aqt/quant/contraction/quantize_side.h"
#include "aqt/quant/contraction/workspace.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/numerics/validate.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

using internal::Pass;
using internal::QuantizedSide;
using internal::SidePlan;
using internal::SideQuantizer;
using internal::Workspace;
using kernels::AxisGroup;

// The size of a piece of packed windows: more than L2, to amortize a parallel section.
constexpr int64_t kPanelBudget = 8 << 20;

const char* Name(Side side) { return side == Side::kLhs ? "lhs" : "rhs"; }

// Whether sums of `length` products of the two operands, both integers, fit s32.
bool SumsFitS32(const SidePlan& lhs, const SidePlan& rhs, int64_t length) {
  return static_cast<double>(length) * internal::MaxMagnitude(lhs) * internal::MaxMagnitude(rhs) <=
         std::numeric_limits<int32_t>::max();
}

// A scale on the product is one per example (lhs) or per output channel (rhs), or one for all.
absl::Status CheckOutputScale(Side side, const Shape& scale) {
  for (int64_t axis = 0; axis < scale.rank(); ++axis) {
    const bool may_vary = side == Side::kLhs ? axis == 0 : axis == scale.rank() - 1;
    if (may_vary || scale[axis] == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "scale of ", Name(side), " has shape ", scale.ToString(), ": it varies along axis ", axis, ", but only along ",
        side == Side::kLhs ? "the example (axis 0)" : "the output channel (the last axis)",
        " can it be multiplied onto the result; use DEQUANT_MODE_THIS_INPUT for others"));
  }
  return absl::OkStatus();
}

struct Axis {
  int64_t size, stride;
};
using AxisList = absl::InlinedVector<Axis, 4>;

void Append(const AxisList& axes, AxisGroup& group) {
  for (const Axis& axis : axes) group.Append(axis.size, axis.stride);
}

// Spatial extents and strides of an array whose spatial axes begin at `first`.
AxisList SpatialAxes(const Shape& shape, absl::Span<const int64_t> strides, int64_t first, int64_t count) {
  AxisList axes;
  for (int64_t i = first; i < first + count; ++i) axes.push_back({shape[i], strides[i]});
  return axes;
}

// out[e, g, p, c] = sum over w of lhs[e, g, p, w] * rhs[g, c, w]: examples, groups, positions, columns, window
// elements. Strides are in elements.
struct WindowProduct {
  const void* lhs = nullptr;
  DType lhs_dtype = DType::kF32;
  int64_t examples = 0, lhs_example = 0;  // number, stride
  int64_t groups = 0, lhs_group = 0;
  AxisList lhs_positions, lhs_window;

  const void* rhs = nullptr;
  DType rhs_dtype = DType::kF32;
  int64_t rhs_group = 0;
  Axis rhs_columns = {};
  AxisList rhs_window;

  void* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t out_example = 0, out_group = 0;
  AxisList out_positions;
  int64_t out_column = 0;  // stride

  // Of the epilogue: a scale per example and one per [group, column], or null.
  const float* example_scale = nullptr;
  const float* column_scale = nullptr;
  kernels::Epilogue epilogue;  // the rest

  int64_t NumPositions() const {
    int64_t n = 1;
    for (const Axis& axis : lhs_positions) n *= axis.size;
    return n;
  }
};

void Run(const kernels::GemmKernel& kernel, const WindowProduct& p, Workspace& workspace, Executor* executor) {
  kernels::Operand rhs;
  rhs.data = p.rhs;
  rhs.dtype = p.rhs_dtype;
  rhs.batch.Append(p.groups, p.rhs_group);
  rhs.rows.Append(p.rhs_columns.size, p.rhs_columns.stride);
  Append(p.rhs_window, rhs.k);
  const int64_t k = rhs.k.Count(), columns = p.rhs_columns.size, positions = p.NumPositions();
  const int64_t rhs_bytes = kernel.rhs.PackedBytes(columns, k), one = kernel.lhs.PackedBytes(positions, k);
  char* rhs_panels = static_cast<char*>(workspace.Get(Workspace::kRhsPacked, p.groups * rhs_bytes));
  kernels::Pack(kernel.target, kernel.rhs, rhs, rhs_panels, executor, /*subnormals_are_zero=*/true);

  // All groups of several examples at a time, or several groups of one example.
  const int64_t fit = kPanelBudget / std::max<int64_t>(1, one);
  const int64_t group_step = std::clamp<int64_t>(fit, 1, std::max<int64_t>(1, p.groups));
  const int64_t example_step =
      std::clamp<int64_t>(fit / std::max<int64_t>(1, p.groups), 1, std::max<int64_t>(1, p.examples));
  float* row_scale = nullptr;
  if (p.example_scale != nullptr) {
    row_scale = static_cast<float*>(workspace.Get(Workspace::kSums, example_step * positions * sizeof(float)));
  }
  for (int64_t e = 0; e < p.examples; e += example_step) {
    const int64_t examples = std::min(example_step, p.examples - e);
    if (row_scale != nullptr) {
      for (int64_t i = 0; i < examples; ++i) std::fill_n(row_scale + i * positions, positions, p.example_scale[e + i]);
    }
    for (int64_t g = 0; g < p.groups; g += group_step) {
      kernels::Operand lhs;
      lhs.data = static_cast<const char*>(p.lhs) + (e * p.lhs_example + g * p.lhs_group) * SizeOf(p.lhs_dtype);
      lhs.dtype = p.lhs_dtype;
      kernels::GemmArgs args;
      args.batch = std::min(group_step, p.groups - g);
      lhs.batch.Append(args.batch, p.lhs_group);
      lhs.rows.Append(examples, p.lhs_example);
      Append(p.lhs_positions, lhs.rows);
      Append(p.lhs_window, lhs.k);
      args.m = examples * positions;
      args.n = columns;
      args.k = k;
      args.lhs_batch_bytes = kernel.lhs.PackedBytes(args.m, k);
      args.rhs_batch_bytes = rhs_bytes;
      void* panels = workspace.Get(Workspace::kLhsPacked, args.batch * args.lhs_batch_bytes);
      kernels::Pack(kernel.target, kernel.lhs, lhs, panels, executor, /*subnormals_are_zero=*/true);
      args.lhs = panels;
      args.rhs = rhs_panels + g * rhs_bytes;
      args.out = static_cast<char*>(p.out) + (e * p.out_example + g * p.out_group) * SizeOf(p.out_dtype);
      args.out_dtype = p.out_dtype;
      args.out_batch.Append(args.batch, p.out_group);
      args.out_rows.Append(examples, p.out_example);
      Append(p.out_positions, args.out_rows);
      args.out_cols.Append(columns, p.out_column);
      args.epilogue = p.epilogue;
      args.epilogue.lhs_scale = row_scale;
      if (p.column_scale != nullptr) {
        args.epilogue.rhs_scale = p.column_scale + g * columns;
        args.epilogue.rhs_batch_stride = columns;
      }
      kernels::RunGemm(kernel, args, executor);
    }
  }
}

// How one spatial axis is padded.
struct Padding {
  int64_t dilation, low, padded;
};

// x [B, spatial..., C] padded; x itself when there is nothing to do.
ArrayRef PadSpatial(const ArrayRef& x, absl::Span<const Padding> paddings, Workspace& workspace, Workspace::Slot slot,
                    Executor* executor) {
  const int64_t spatial = static_cast<int64_t>(paddings.size());
  absl::InlinedVector<kernels::PadAxis, 5> axes;
  Shape shape;
  bool same = true;
  for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
    const int64_t size = x.shape[axis];
    kernels::PadAxis pad{.size = size, .stride = x.strides[axis], .padded = size};
    if (axis >= 1 && axis <= spatial) {
      const Padding& p = paddings[axis - 1];
      pad.dilation = p.dilation;
      pad.low = p.low;
      pad.padded = p.padded;
      same = same && p.low == 0 && p.padded == size && (p.dilation == 1 || size <= 1);
    }
    shape.push_back(pad.padded);
    axes.push_back(pad);
  }
  if (same) return x;
  const MutableArrayRef padded(x.dtype, shape, workspace.Get(slot, shape.num_elements() * SizeOf(x.dtype)));
  kernels::Pad(x.data, SizeOf(x.dtype), axes, padded.data, executor);
  return padded;
}

// out = the f32 sums (dense), subnormals as zero, rounded to the dtype of out.
void StoreSums(float* sums, const MutableArrayRef& out) {
  internal::FlushRow(DType::kF32, sums, out.shape.num_elements());
  internal::DequantizeInto(ArrayRef(sums, out.shape), {}, out.dtype, out);
}

}  // namespace

struct ConvGeneralPlan::Impl {
  DotGeneralRaw config;
  PlanOptions options;
  ConvGeometry geometry;
  Aval out;
  SidePlan sides[2];
  bool integer_sums = false;              // in s32, else in f32
  DType accumulator_dtype = DType::kF32;  // of the product before it is scaled
  std::vector<StateSlot> state;
  size_t state_begin[2] = {};  // by side: index of its first slot
  std::vector<ResidualSlot> residuals;
  int residual_index[2][4] = {{-1, -1, -1, -1}, {-1, -1, -1, -1}};
  mutable internal::WorkspacePool workspaces;

  const SidePlan& side(Side s) const { return sides[static_cast<int>(s)]; }
  int64_t spatial() const { return static_cast<int64_t>(geometry.axes.size()); }
  int64_t group_in() const { return geometry.in_channels / geometry.groups; }
  int64_t group_out() const { return geometry.out_channels / geometry.groups; }

  void AddResidual(Side s, ResidualKind kind, Aval aval) {
    if (options.passes == PlanPasses::kForwardOnly) return;
    residual_index[static_cast<int>(s)][static_cast<int>(kind)] = static_cast<int>(residuals.size());
    residuals.push_back({s, kind, std::move(aval)});
  }
  absl::Status CheckHasBackward(absl::string_view what) const {
    if (options.passes == PlanPasses::kForwardAndBackward) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("conv_general: ", what,
                     ", but the plan is made with PlanPasses::kForwardOnly; make it with kForwardAndBackward"));
  }
  const IntSymmetric* Integer(Side s) const {
    return side(s).spec.has_value() ? std::get_if<IntSymmetric>(&side(s).spec->numerics) : nullptr;
  }

  // Whether `qtensor` can replace an operand. Does not allocate if it can.
  absl::Status CheckGiven(Side s, const QTensor& qtensor) const {
    const absl::string_view where =
        s == Side::kLhs ? "conv_general: the tensor for lhs" : "conv_general: the tensor for rhs";
    AQT_RETURN_IF_ERROR(internal::CheckGiven(where, side(s), qtensor));
    if (side(s).config.dequant_mode != DequantMode::kOutput) return absl::OkStatus();
    for (const Array& scale : qtensor.scale) {
      AQT_RETURN_IF_ERROR(Annotate(CheckOutputScale(s, scale.shape()), where));
    }
    return absl::OkStatus();
  }

  absl::Status CheckArray(absl::string_view name, const Aval& got, const Aval& want) const {
    if (got == want) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("conv_general: ", name, " is ", got.ToString(), ", but the plan is for ", want.ToString()));
  }

  // The windows of lhs; the padded array is in kLhsGathered.
  WindowProduct ForwardWindows(const ArrayRef& lhs, Workspace& workspace, Executor* executor) const {
    absl::InlinedVector<Padding, 3> paddings;
    for (const ConvAxis& axis : geometry.axes) paddings.push_back({axis.lhs_dilation, axis.low, axis.padded()});
    const ArrayRef padded = PadSpatial(lhs, paddings, workspace, Workspace::kLhsGathered, executor);
    WindowProduct p;
    p.lhs = padded.data;
    p.lhs_dtype = padded.dtype;
    p.examples = geometry.batch;
    p.lhs_example = padded.strides[0];
    const int64_t channel = padded.strides[spatial() + 1];
    p.groups = geometry.groups;
    p.lhs_group = group_in() * channel;
    for (int64_t i = 0; i < spatial(); ++i) {
      const ConvAxis& axis = geometry.axes[i];
      p.lhs_positions.push_back({axis.out, axis.stride * padded.strides[1 + i]});
      p.lhs_window.push_back({axis.kernel, axis.rhs_dilation * padded.strides[1 + i]});
    }
    p.lhs_window.push_back({group_in(), channel});
    return p;
  }

  // The product of quantized operands, into `product`, which has the result's shape.
  WindowProduct ForwardProduct(const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& product,
                               Workspace& workspace, Executor* executor) const {
    WindowProduct p = ForwardWindows(lhs, workspace, executor);
    p.rhs = rhs.data;
    p.rhs_dtype = rhs.dtype;
    const int64_t channel = rhs.strides[spatial() + 1];
    p.rhs_group = group_out() * channel;
    p.rhs_columns = {group_out(), channel};
    p.rhs_window = SpatialAxes(rhs.shape, rhs.strides, 0, spatial() + 1);
    SetOutput(product, group_out(), p);
    return p;
  }

  // `out_array` is [B, spatial..., channels], with `columns` channels per group.
  void SetOutput(const MutableArrayRef& out_array, int64_t columns, WindowProduct& p) const {
    p.out = out_array.data;
    p.out_dtype = out_array.dtype;
    p.out_example = out_array.strides[0];
    p.out_positions = SpatialAxes(out_array.shape, out_array.strides, 1, spatial());
    p.out_column = out_array.strides[spatial() + 1];
    p.out_group = columns * p.out_column;
  }

  void RunForward(const QuantizedSide& lhs, const QuantizedSide& rhs, const MutableArrayRef& result,
                  Workspace& workspace, const internal::Execution& runtime) const {
    const kernels::Target target = runtime.target.value_or(kernels::BestTarget());
    const auto scaled = [&](Side s) {
      return side(s).spec.has_value() && side(s).config.dequant_mode == DequantMode::kOutput;
    };
    if (integer_sums && runtime.observer == nullptr && lhs.scale.size() == 1 && rhs.scale.size() == 1) {
      WindowProduct p = ForwardProduct(lhs.operand, rhs.operand, result, workspace, runtime.executor);
      SetScales(lhs.scale[0], rhs.scale[0], workspace, p);
      Run(kernels::GemmS8(target), p, workspace, runtime.executor);
      return;
    }
    const int64_t n = out.shape.num_elements();
    ArrayRef product;
    if (integer_sums) {
      const MutableArrayRef sums(DType::kS32, out.shape, workspace.Get(Workspace::kAccumulator, n * 4));
      Run(kernels::GemmS8(target), ForwardProduct(lhs.operand, rhs.operand, sums, workspace, runtime.executor),
          workspace, runtime.executor);
      product = sums;
    } else {
      float* data = static_cast<float*>(workspace.Get(Workspace::kAccumulator, n * 4));
      const MutableArrayRef sums(data, out.shape);
      const ArrayRef a = FloatOperand(lhs.operand, Workspace::kLhsConverted, workspace);
      const ArrayRef b = FloatOperand(rhs.operand, Workspace::kRhsConverted, workspace);
      Run(kernels::GemmF32(target), ForwardProduct(a, b, sums, workspace, runtime.executor), workspace,
          runtime.executor);
      const DType dtype = runtime.semantics.compat.conv_ignores_accumulator_dtype ? out.dtype : accumulator_dtype;
      const MutableArrayRef rounded(dtype, out.shape,
                                    dtype == DType::kF32 ? data : workspace.Get(Workspace::kSums, n * SizeOf(dtype)));
      StoreSums(data, rounded);
      product = rounded;
    }
    if (runtime.observer != nullptr) runtime.observer->OnTensor(internal::NamesOf(Pass::kFwd).accum, product);
    absl::InlinedVector<ArrayRef, 2> scales;
    if (scaled(Side::kLhs)) scales.insert(scales.end(), lhs.scale.begin(), lhs.scale.end());
    if (scaled(Side::kRhs)) scales.insert(scales.end(), rhs.scale.begin(), rhs.scale.end());
    internal::DequantizeInto(product, {.scale = scales}, out.dtype, result);
  }

  // The operand of a product of floats: rounded to the dtype of the result if that cannot hold it.
  ArrayRef FloatOperand(const ArrayRef& x, Workspace::Slot slot, Workspace& workspace) const {
    return internal::HoldsAllOf(out.dtype, x.dtype) ? x : internal::CastIntoSlot(x, out.dtype, slot, workspace);
  }

  // The epilogue: lhs scale, then rhs scale.
  void SetScales(const ArrayRef& lhs, const ArrayRef& rhs, Workspace& workspace, WindowProduct& p) const {
    const auto load = [&](const ArrayRef& scale, int64_t axis, int64_t n, Workspace::Slot slot) {
      float* values = static_cast<float*>(workspace.Get(slot, n * static_cast<int64_t>(sizeof(float))));
      internal::LoadRow(scale.dtype, scale.data, 0, scale.shape[axis] == 1 ? 0 : scale.strides[axis], n, values);
      internal::FlushRow(scale.dtype, values, n);
      return values;
    };
    const int64_t batch = geometry.batch, channels = geometry.out_channels;
    p.example_scale = load(lhs, 0, batch, Workspace::kLhsEpilogueScale);
    p.column_scale = load(rhs, rhs.shape.rank() - 1, channels, Workspace::kRhsEpilogueScale);
    p.epilogue.sum_dtype = out.dtype;
    p.epilogue.first_dtype = internal::Promote(out.dtype, lhs.dtype);
    p.epilogue.second_dtype = internal::Promote(p.epilogue.first_dtype, rhs.dtype);
    p.epilogue.subnormals_are_zero = !internal::ProductsAreNormal(p.example_scale, batch, p.column_scale, channels);
  }

  // ---- gradients

  // The operand as the product saw it, in its own dtype.
  ArrayRef Dequantized(Side s, const Residuals& residuals, Workspace& workspace) const {
    const auto slot = [&](ResidualKind kind) -> const ArrayRef& {
      return residuals.slots_[residual_index[static_cast<int>(s)][static_cast<int>(kind)]].view;
    };
    const SidePlan& own = side(s);
    if (!own.spec.has_value()) return slot(ResidualKind::kValue);
    absl::InlinedVector<ArrayRef, 1> bias;
    if (own.spec->bias.has_value()) bias.push_back(*own.spec->bias);
    const ArrayRef& scale = slot(ResidualKind::kScale);
    const MutableArrayRef operand(
        own.x.dtype, own.x.shape,
        workspace.Get(s == Side::kLhs ? Workspace::kLhsOperand : Workspace::kRhsOperand, own.x.num_bytes()));
    internal::DequantizeInto(slot(ResidualKind::kQvalue), {.bias = bias, .scale = absl::MakeConstSpan(&scale, 1)},
                             own.x.dtype, operand);
    return operand;
  }

  void RunDlhs(const ArrayRef& g, const ArrayRef& rhs, const MutableArrayRef& dlhs, Workspace& workspace,
               const internal::Execution& runtime) const {
    absl::InlinedVector<Padding, 3> paddings;
    for (const ConvAxis& axis : geometry.axes) {
      const int64_t reach = (axis.kernel - 1) * axis.rhs_dilation;
      paddings.push_back({axis.stride, reach - axis.low, (axis.in - 1) * axis.lhs_dilation + reach + 1});
    }
    const ArrayRef padded = PadSpatial(g, paddings, workspace, Workspace::kScaledGradient, runtime.executor);
    WindowProduct p;
    p.lhs_dtype = padded.dtype;
    p.examples = geometry.batch;
    p.lhs_example = padded.strides[0];
    p.groups = geometry.groups;
    const int64_t channel = padded.strides[spatial() + 1];
    p.lhs_group = group_out() * channel;
    int64_t offset = 0;
    for (int64_t i = 0; i < spatial(); ++i) {
      const ConvAxis& axis = geometry.axes[i];
      const int64_t stride = axis.rhs_dilation * padded.strides[1 + i];
      offset += (axis.kernel - 1) * stride;
      p.lhs_positions.push_back({axis.in, axis.lhs_dilation * padded.strides[1 + i]});
      p.lhs_window.push_back({axis.kernel, -stride});
    }
    p.lhs_window.push_back({group_out(), channel});
    p.lhs = static_cast<const char*>(padded.data) + offset * SizeOf(padded.dtype);
    p.rhs = rhs.data;
    p.rhs_dtype = rhs.dtype;
    const int64_t out_channel = rhs.strides[spatial() + 1];
    p.rhs_group = group_out() * out_channel;
    p.rhs_columns = {group_in(), rhs.strides[spatial()]};
    p.rhs_window = SpatialAxes(rhs.shape, rhs.strides, 0, spatial());
    p.rhs_window.push_back({group_out(), out_channel});
    float* sums = static_cast<float*>(workspace.Get(Workspace::kAccumulator, dlhs.shape.num_elements() * 4));
    SetOutput(MutableArrayRef(sums, dlhs.shape), group_in(), p);
    Run(kernels::GemmF32(runtime.target.value_or(kernels::BestTarget())), p, workspace, runtime.executor);
    StoreSums(sums, dlhs);
  }

  // Rows are elements of the window, columns output channels; the sum runs over examples and positions.
  void RunDrhs(const ArrayRef& g, const ArrayRef& lhs, const MutableArrayRef& drhs, Workspace& workspace,
               const internal::Execution& runtime) const {
    const WindowProduct w = ForwardWindows(lhs, workspace, runtime.executor);
    float* sums = static_cast<float*>(workspace.Get(Workspace::kAccumulator, drhs.shape.num_elements() * 4));
    const Strides strides = DenseStrides(drhs.shape);
    WindowProduct p;
    p.lhs = w.lhs;
    p.lhs_dtype = w.lhs_dtype;
    p.groups = w.groups;
    p.lhs_group = w.lhs_group;
    p.lhs_window.push_back({w.examples, w.lhs_example});
    p.lhs_window.insert(p.lhs_window.end(), w.lhs_positions.begin(), w.lhs_positions.end());
    p.rhs = g.data;
    p.rhs_dtype = g.dtype;
    const int64_t channel = g.strides[spatial() + 1];
    p.rhs_group = group_out() * channel;
    p.rhs_columns = {group_out(), channel};
    p.rhs_window.push_back({geometry.batch, g.strides[0]});
    const AxisList g_positions = SpatialAxes(g.shape, g.strides, 1, spatial());
    p.rhs_window.insert(p.rhs_window.end(), g_positions.begin(), g_positions.end());
    p.out = sums;
    p.out_dtype = DType::kF32;
    p.out_group = group_out();
    p.out_column = 1;
    // The first kernel axis takes the role of the examples: as many elements at a time as fit the panel budget.
    p.examples = geometry.axes[0].kernel;
    p.lhs_example = w.lhs_window[0].stride;
    p.out_example = strides[0];
    p.lhs_positions.assign(w.lhs_window.begin() + 1, w.lhs_window.end());
    p.out_positions = SpatialAxes(drhs.shape, strides, 1, spatial());
    Run(kernels::GemmF32(runtime.target.value_or(kernels::BestTarget())), p, workspace, runtime.executor);
    StoreSums(sums, drhs);
  }
};

// ---- planning

absl::StatusOr<ConvGeneralPlan> ConvGeneralPlan::Make(const DotGeneralRaw& config, const Aval& lhs, const Aval& rhs,
                                                      const ConvDims& dims, const PlanOptions& options) {
  AQT_RETURN_IF_ERROR(Validate(options));
  const auto invalid = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("conv_general: ", parts...));
  };
  if (lhs.dtype != rhs.dtype || !internal::IsArithmeticFloat(lhs.dtype)) {
    return invalid("lhs is ", lhs.ToString(), ", rhs ", rhs.ToString(), "; both must have one dtype, f32, bf16 or f16");
  }
  auto impl = std::make_shared<Impl>();
  impl->config = config;
  impl->options = options;
  AQT_ASSIGN_OR_RETURN(impl->geometry, MakeConvGeometry(dims, lhs.shape, rhs.shape));
  const ConvGeometry& geometry = impl->geometry;
  impl->out = {lhs.dtype, geometry.OutShape()};
  if (config.lhs_mid_alpha.has_value() || config.rhs_mid_alpha.has_value())
    return invalid("mid alphas do not apply to a convolution");
  if (config.local_aqt.has_value()) return invalid("local_aqt does not apply to a convolution");

  const int64_t rank = lhs.shape.rank();
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const bool is_lhs = side == Side::kLhs;
    const Tensor& tensor = is_lhs ? config.lhs : config.rhs;
    if (tensor.use_fwd_quant) return invalid(Name(side), ": use_fwd_quant does not apply to a convolution");
    Axes shared;
    for (int64_t axis = 0; axis < rank - 1; ++axis) shared.push_back(is_lhs ? axis + 1 : axis);
    absl::StatusOr<SidePlan> plan = internal::MakeSidePlan(Pass::kFwd, side, tensor, is_lhs ? lhs : rhs, shared);
    if (!plan.ok()) return Annotate(plan.status(), "conv_general");
    impl->sides[static_cast<int>(side)] = *std::move(plan);
    const SidePlan& own = impl->side(side);
    if (!own.spec.has_value()) {
      impl->AddResidual(side, ResidualKind::kValue, own.x);
      continue;
    }
    if (tensor.dequant_mode == DequantMode::kOtherInput || tensor.calibration_mode == CalibrationMode::kRemainingAxis) {
      return invalid(
          Name(side), ": ", ToString(tensor.dequant_mode), " with ", ToString(tensor.calibration_mode),
          "; expected DEQUANT_MODE_OUTPUT or DEQUANT_MODE_THIS_INPUT, with CALIBRATION_MODE_CONTRACTING_AXIS");
    }
    if (tensor.dequant_mode == DequantMode::kOutput) {
      AQT_RETURN_IF_ERROR(Annotate(CheckOutputScale(side, own.spec->scale_shape), "conv_general"));
    }
    impl->state_begin[static_cast<int>(side)] = impl->state.size();
    internal::AppendStateSlots(Pass::kFwd, side, own, impl->state);
    impl->AddResidual(side, ResidualKind::kQvalue, {own.spec->q_dtype, own.x.shape});
    impl->AddResidual(side, ResidualKind::kScale, {own.spec->scale_dtype, own.spec->scale_shape});
    if (internal::GradientBound(own.spec->numerics, own.spec->scaled_dtype).has_value()) {
      impl->AddResidual(side, ResidualKind::kClipMask, {DType::kS8, own.x.shape});
    }
  }

  // AQT's builder asks for s32 sums whatever it quantizes, and its convolution ignores that.
  std::optional<DType> wanted = config.dg_accumulator_dtype;
  if (wanted == DType::kS32) wanted.reset();
  if (wanted.has_value() && !internal::IsArithmeticFloat(*wanted)) {
    return invalid("accumulator dtype ", ToString(*wanted), ", expected s32, f32, bf16, f16 or none");
  }
  const SidePlan &l = impl->side(Side::kLhs), &r = impl->side(Side::kRhs);
  const bool integers = IsByteInteger(l.operand_dtype) && IsByteInteger(r.operand_dtype);
  impl->integer_sums = integers && SumsFitS32(l, r, geometry.SumLength());
  impl->accumulator_dtype = impl->integer_sums ? DType::kS32 : wanted.value_or(lhs.dtype);
  Shape padded_g{geometry.batch};
  for (const ConvAxis& axis : geometry.axes) {
    padded_g.push_back(std::max<int64_t>(0, axis.in - 1) * axis.lhs_dilation +
                       std::max<int64_t>(0, axis.kernel - 1) * axis.rhs_dilation + 1);
  }
  padded_g.push_back(geometry.out_channels);
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(padded_g), "conv_general: padded gradient"));
  return ConvGeneralPlan(std::move(impl));
}

const Aval& ConvGeneralPlan::lhs_aval() const { return impl_->side(Side::kLhs).x; }
const Aval& ConvGeneralPlan::rhs_aval() const { return impl_->side(Side::kRhs).x; }
const Aval& ConvGeneralPlan::out_aval() const { return impl_->out; }
const ConvGeometry& ConvGeneralPlan::geometry() const { return impl_->geometry; }
const DotGeneralRaw& ConvGeneralPlan::config() const { return impl_->config; }
const PlanOptions& ConvGeneralPlan::options() const { return impl_->options; }
absl::Span<const ResidualSlot> ConvGeneralPlan::residuals() const { return impl_->residuals; }
absl::Span<const StateSlot> ConvGeneralPlan::forward_state() const { return impl_->state; }
bool ConvGeneralPlan::ForwardNeedsKey() const {
  const auto draws = [&](Side s) {
    return impl_->side(s).spec.has_value() && impl_->side(s).spec->draws_shape.has_value();
  };
  return draws(Side::kLhs) || draws(Side::kRhs);
}

// ---- running

absl::Status ConvGeneralPlan::Forward(const DotOperand& lhs, const DotOperand& rhs, const Context& context,
                                      const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                                      const StateArrays& state) const {
  const Impl& impl = *impl_;
  if (residuals != nullptr) AQT_RETURN_IF_ERROR(impl.CheckHasBackward("Forward is given Residuals"));
  if (ForwardNeedsKey() && !context.key.has_value()) {
    return absl::FailedPreconditionError(
        "conv_general: Forward rounds stochastically and draws random numbers: set Context::key");
  }
  if (runtime.product != nullptr) {
    return absl::InvalidArgumentError("conv_general: Runtime::product contracts; it cannot convolve. Leave it null");
  }
  AQT_RETURN_IF_ERROR(impl.CheckArray("out", out.aval(), impl.out));
  const internal::Execution execution = internal::MakeExecution(impl.options, runtime);
  const PrngLayout layout = impl.options.semantics.prng_layout;
  internal::RawOperand raw[2];
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const DotOperand& operand = side == Side::kLhs ? lhs : rhs;
    internal::RawOperand& in = raw[static_cast<int>(side)];
    const Aval& want = impl.side(side).x;
    in.given = operand.prepared != nullptr ? &operand.prepared->qtensor() : nullptr;
    if (in.given != nullptr) AQT_RETURN_IF_ERROR(impl.CheckGiven(side, *in.given));
    if (in.given != nullptr && in.given->IsFull()) {
      in.x = ArrayRef(want.dtype, want.shape, nullptr);
    } else {
      in.x = operand.value;
      AQT_RETURN_IF_ERROR(impl.CheckArray(Name(side), operand.value.aval(), want));
    }
    if (context.key.has_value()) in.key = SplitKey(*context.key, 2, static_cast<int64_t>(side), layout);
    const auto& spec = impl.side(side).spec;
    if (in.given != nullptr || !spec.has_value() || !spec->has_state()) continue;
    AQT_RETURN_IF_ERROR(internal::FillStatistics("conv_general", impl.state, impl.state_begin[static_cast<int>(side)],
                                                 *spec, side, context, execution, state, &in));
  }
  if (residuals != nullptr) {
    if (raw[0].given != nullptr || raw[1].given != nullptr) {
      return absl::InvalidArgumentError(
          "conv_general: the gradient of a prepared operand is not defined; pass the float operand, or no Residuals");
    }
    residuals->slots_.resize(impl.residuals.size());
    for (size_t i = 0; i < impl.residuals.size(); ++i) {
      const ResidualSlot& slot = impl.residuals[i];
      internal::RawOperand& in = raw[static_cast<int>(slot.side)];
      switch (slot.kind) {
        case ResidualKind::kValue:
          residuals->Keep(i, in.x, slot.side == Side::kLhs ? lhs.transient : rhs.transient);
          break;
        case ResidualKind::kQvalue: in.keep_qvalue = residuals->Reserve(i, slot.aval); break;
        case ResidualKind::kScale: in.keep_scale = residuals->Reserve(i, slot.aval); break;
        case ResidualKind::kClipMask: in.keep_mask = static_cast<int8_t*>(residuals->Reserve(i, slot.aval)); break;
      }
    }
  }
  internal::WorkspacePool::Lease workspace = impl.workspaces.Get();
  const internal::PassNames& names = internal::NamesOf(Pass::kFwd);
  const auto quantize = [&](Side side) {
    const QuantizedSide result = SideQuantizer(impl.side(side), side, raw[static_cast<int>(side)], layout,
                                               names.side(side), *workspace, execution)
                                     .Quantize();
    return result;
  };
  const QuantizedSide l = quantize(Side::kLhs), r = quantize(Side::kRhs);
  if (runtime.observer != nullptr) {
    runtime.observer->OnTensor(names.lhs.operand, l.operand);
    runtime.observer->OnTensor(names.rhs.operand, r.operand);
  }
  impl.RunForward(l, r, out, *workspace, execution);
  return absl::OkStatus();
}

absl::Status ConvGeneralPlan::Backward(const ArrayRef& g, const Residuals& residuals,
                                       const std::optional<MutableArrayRef>& dlhs,
                                       const std::optional<MutableArrayRef>& drhs, const Runtime& runtime) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(impl.CheckHasBackward("Backward is called"));
  AQT_RETURN_IF_ERROR(impl.CheckArray("g", g.aval(), impl.out));
  if (residuals.slots_.size() != impl.residuals.size()) {
    return absl::FailedPreconditionError(absl::StrCat("conv_general: Backward needs the ", impl.residuals.size(),
                                                      " residuals of a Forward, but got ", residuals.slots_.size()));
  }
  for (size_t i = 0; i < impl.residuals.size(); ++i) {
    if (residuals.slots_[i].aval == impl.residuals[i].aval) continue;
    return absl::InvalidArgumentError(absl::StrCat("conv_general: residual ", i, " is ",
                                                   residuals.slots_[i].aval.ToString(), ", but this plan keeps ",
                                                   impl.residuals[i].aval.ToString(), ": it belongs to another plan"));
  }
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const std::optional<MutableArrayRef>& d = side == Side::kLhs ? dlhs : drhs;
    if (d.has_value()) {
      AQT_RETURN_IF_ERROR(impl.CheckArray(side == Side::kLhs ? "dlhs" : "drhs", d->aval(), impl.side(side).x));
    }
  }
  const internal::Execution execution = internal::MakeExecution(impl.options, runtime);
  const Semantics& semantics = impl.options.semantics;
  internal::WorkspacePool::Lease workspace = impl.workspaces.Get();
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const std::optional<MutableArrayRef>& d = side == Side::kLhs ? dlhs : drhs;
    if (!d.has_value() || d->shape.num_elements() == 0) continue;
    const IntSymmetric* integer = impl.Integer(side);
    if (impl.geometry.SumLength() == 0 || (integer != nullptr && semantics.compat.conv_integer_gradient_is_zero)) {
      internal::FillZeros(*d);
      continue;
    }
    const ArrayRef other = impl.Dequantized(Other(side), residuals, *workspace);
    if (side == Side::kLhs) {
      impl.RunDlhs(g, other, *d, *workspace, execution);
    } else {
      impl.RunDrhs(g, other, *d, *workspace, execution);
    }
    const int mask = impl.residual_index[static_cast<int>(side)][static_cast<int>(ResidualKind::kClipMask)];
    if (mask >= 0) {
      internal::ApplyClipMask(*d, static_cast<const int8_t*>(residuals.slots_[mask].view.data), semantics.arithmetic,
                              *d);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedOperand> ConvGeneralPlan::Prepare(Side side, const ArrayRef& value, const Context& context,
                                                         const Runtime&) const {
  const SidePlan& own = impl_->side(side);
  AQT_RETURN_IF_ERROR(impl_->CheckArray(Name(side), value.aval(), own.x));
  if (!own.spec.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("conv_general: ", Name(side), " is not quantized; there is nothing to prepare"));
  }
  Context own_context = context;
  if (context.key.has_value()) {
    own_context.key = SplitKey(*context.key, 2, static_cast<int64_t>(side), impl_->options.semantics.prng_layout);
  }
  AQT_ASSIGN_OR_RETURN(QTensor qtensor, Quantize(own.config.quantizer, value, own.spec->shared_axes, own_context,
                                                 impl_->options.semantics));
  return Prepare(side, std::move(qtensor));
}

absl::StatusOr<PreparedOperand> ConvGeneralPlan::Prepare(Side side, QTensor qtensor) const {
  AQT_RETURN_IF_ERROR(internal::ApplySparsityMask(absl::StrCat("conv_general: the tensor for ", Name(side)), qtensor));
  AQT_RETURN_IF_ERROR(impl_->CheckGiven(side, qtensor));
  PreparedOperand prepared;
  prepared.qtensor_ = std::make_shared<const QTensor>(std::move(qtensor));
  return prepared;
}

// ---- one-shot

absl::StatusOr<Array> QuantizedConvGeneral(const DotGeneralRaw& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                           const ConvDims& dims, const Context& context, const PlanOptions& options,
                                           const Runtime& runtime) {
  AQT_ASSIGN_OR_RETURN(const ConvGeneralPlan plan,
                       ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims,
                                             {PlanPasses::kForwardOnly, options.semantics, options.target}));
  ArrayBuilder out = ArrayBuilder::ForOverwrite(plan.out_aval());
  AQT_RETURN_IF_ERROR(plan.Forward(lhs, rhs, context, out.ref(), nullptr, runtime));
  return std::move(out).Build();
}

absl::StatusOr<DotGeneralGradients> QuantizedConvGeneralWithGradients(const DotGeneralRaw& config, const ArrayRef& lhs,
                                                                      const ArrayRef& rhs, const ArrayRef& g,
                                                                      const ConvDims& dims, const Context& context,
                                                                      const PlanOptions& options,
                                                                      const Runtime& runtime) {
  AQT_ASSIGN_OR_RETURN(const ConvGeneralPlan plan,
                       ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims,
                                             {PlanPasses::kForwardAndBackward, options.semantics, options.target}));
  ArrayBuilder out = ArrayBuilder::ForOverwrite(plan.out_aval()), dlhs = ArrayBuilder::ForOverwrite(plan.lhs_aval()),
               drhs = ArrayBuilder::ForOverwrite(plan.rhs_aval());
  Residuals residuals(Residuals::Operands::kBorrow);
  AQT_RETURN_IF_ERROR(plan.Forward(lhs, rhs, context, out.ref(), &residuals, runtime));
  AQT_RETURN_IF_ERROR(plan.Backward(g, residuals, dlhs.ref(), drhs.ref(), runtime));
  return DotGeneralGradients{std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
}

}  // namespace aqt
