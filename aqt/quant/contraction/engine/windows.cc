#include "aqt/quant/contraction/engine/windows.h"

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "aqt/core/machine/machine.h"
#include "aqt/kernels/gemm/by_lines.h"
#include "aqt/kernels/gemm/schedule.h"
#include "aqt/kernels/move/pad.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/quant/contraction/engine/packed_side.h"

namespace aqt::internal {
namespace {

using kernels::AxisGroup;

// The size of a piece of packed windows: larger than L2, to amortize a parallel section.
constexpr int64_t kPanelBudget = 8 << 20;

struct Axis {
  int64_t size, stride;
};
using AxisList = absl::InlinedVector<Axis, 4>;

void Append(const AxisList& axes, AxisGroup& group) {
  for (const Axis& axis : axes) group.Append(axis.size, axis.stride);
}

// Extents and strides of `count` axes of an array from `first` on.
AxisList AxesOf(const Shape& shape, absl::Span<const int64_t> strides, int64_t first, int64_t count) {
  AxisList axes;
  for (int64_t i = first; i < first + count; ++i) axes.push_back({shape[i], strides[i]});
  return axes;
}

// out[e, g, p, c] = sum over w of lhs[e, g, p, w] * rhs[g, c, w]: examples, groups, positions, columns, window
// elements. Strides are in elements.
struct WindowProduct {
  const void* lhs = nullptr;
  DType lhs_dtype = DType::kF32;
  Axis examples = {};  // of lhs; its first kernel axis for kDrhs
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
};

// The extents of a WindowProduct, and the pieces in which it is computed: all groups of several examples at a time, or
// several groups of one example.
struct WindowExtents {
  int64_t examples = 0, groups = 0, positions = 0, columns = 0, k = 0;
  int64_t example_step = 1, group_step = 1;
  int64_t rhs_bytes = 0;  // of one group's panels

  int64_t RhsPanelBytes() const { return groups * rhs_bytes; }
  int64_t LhsPanelBytes(const kernels::GemmKernel& kernel) const {
    return std::min(group_step, groups) * kernel.lhs.PackedBytes(std::min(example_step, examples) * positions, k);
  }
};

WindowExtents ExtentsOf(const kernels::GemmKernel& kernel, const Windows& windows) {
  const ConvGeometry& conv = windows.conv;
  WindowExtents e{.groups = conv.groups};
  const int64_t in = conv.in_channels / conv.groups, out = conv.out_channels / conv.groups;
  int64_t inputs = 1, outputs = 1, kernels = 1;
  for (const ConvAxis& axis : conv.axes) {
    inputs *= axis.in;
    outputs *= axis.out;
    kernels *= axis.kernel;
  }
  switch (windows.pass) {
    case Pass::kFwd: {
      e.examples = conv.batch;
      e.positions = outputs;
      e.columns = out;
      e.k = kernels * in;
      break;
    }
    case Pass::kDlhs: {
      e.examples = conv.batch;
      e.positions = inputs;
      e.columns = in;
      e.k = kernels * out;
      break;
    }
    case Pass::kDrhs: {
      // The first kernel axis takes the role of the examples: as many elements at a time as fit the panel budget.
      e.examples = conv.axes[0].kernel;
      e.positions = e.examples == 0 ? 0 : kernels / e.examples * in;
      e.columns = out;
      e.k = conv.batch * outputs;
      break;
    }
  }
  const int64_t fit = kPanelBudget / std::max<int64_t>(1, kernel.lhs.PackedBytes(e.positions, e.k));
  e.group_step = std::clamp<int64_t>(fit, 1, std::max<int64_t>(1, e.groups));
  e.example_step = std::clamp<int64_t>(fit / std::max<int64_t>(1, e.groups), 1, std::max<int64_t>(1, e.examples));
  e.rhs_bytes = kernel.rhs.PackedBytes(e.columns, e.k);
  return e;
}

// How one spatial axis is padded.
struct Padding {
  int64_t dilation, low, padded;
  bool Changes(int64_t size) const { return low != 0 || padded != size || (dilation != 1 && size > 1); }
};
using Paddings = absl::InlinedVector<Padding, 3>;

Paddings PaddingsOf(const Windows& windows) {
  Paddings paddings;
  for (const ConvAxis& axis : windows.conv.axes) {
    if (windows.pass == Pass::kDlhs) {
      const int64_t reach = (axis.kernel - 1) * axis.rhs_dilation;
      paddings.push_back({axis.stride, reach - axis.low, (axis.in - 1) * axis.lhs_dilation + reach + 1});
    } else {
      paddings.push_back({axis.lhs_dilation, axis.low, axis.padded()});
    }
  }
  return paddings;
}

// The shape of the operand that windows slide over: the input of the convolution, or g for kDlhs.
Shape SlidShape(const Windows& windows) {
  return windows.pass == Pass::kDlhs ? windows.conv.OutShape() : windows.conv.LhsShape();
}

bool Changes(const Shape& shape, const Paddings& paddings) {
  for (size_t i = 0; i < paddings.size(); ++i) {
    if (paddings[i].Changes(shape[static_cast<int64_t>(i) + 1])) return true;
  }
  return false;
}

Shape PaddedShape(Shape shape, const Paddings& paddings) {
  for (size_t i = 0; i < paddings.size(); ++i) shape[static_cast<int64_t>(i) + 1] = paddings[i].padded;
  return shape;
}

// x [B, spatial..., C] padded; x itself if nothing is padded.
ArrayRef PadSpatial(const ArrayRef& x, const Paddings& paddings, Workspace& workspace, Executor* executor) {
  if (!Changes(x.shape, paddings)) return x;
  absl::InlinedVector<kernels::PadAxis, 5> axes;
  for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
    kernels::PadAxis pad{.size = x.shape[axis], .stride = x.strides[axis], .padded = x.shape[axis]};
    if (axis >= 1 && axis <= static_cast<int64_t>(paddings.size())) {
      const Padding& p = paddings[axis - 1];
      pad.dilation = p.dilation;
      pad.low = p.low;
      pad.padded = p.padded;
    }
    axes.push_back(pad);
  }
  const Shape shape = PaddedShape(x.shape, paddings);
  const MutableArrayRef padded(x.dtype, shape,
                               workspace.Get(ScratchSlot::kPadded, shape.num_elements() * SizeOf(x.dtype)));
  kernels::Pad(x.data, SizeOf(x.dtype), axes, padded.data, executor);
  return padded;
}

// The columns of the forward product: the kernel's output channels.
void SetKernel(const ConvGeometry& conv, const ArrayRef& rhs, WindowProduct& p) {
  const int64_t spatial = static_cast<int64_t>(conv.axes.size()), channels = conv.out_channels / conv.groups;
  const int64_t channel = rhs.strides[spatial + 1];
  p.rhs = rhs.data;
  p.rhs_dtype = rhs.dtype;
  p.groups = conv.groups;
  p.rhs_group = channels * channel;
  p.rhs_columns = {channels, channel};
  p.rhs_window = AxesOf(rhs.shape, rhs.strides, 0, spatial + 1);
}

class Builder {
 public:
  Builder(const ConvGeometry& conv, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out)
      : conv_(conv), spatial_(static_cast<int64_t>(conv.axes.size())), lhs_(lhs), rhs_(rhs), out_(out) {}

  // lhs_ is the padded input.
  WindowProduct Forward() const {
    WindowProduct p = InputWindows(lhs_);
    SetKernel(conv_, rhs_, p);
    SetOutput(group_out(), p);
    return p;
  }

  // lhs_ is g, padded; rhs_ is the kernel, traversed backwards.
  WindowProduct Dlhs() const {
    WindowProduct p;
    p.lhs_dtype = lhs_.dtype;
    p.examples = {conv_.batch, lhs_.strides[0]};
    p.groups = conv_.groups;
    const int64_t channel = lhs_.strides[spatial_ + 1];
    p.lhs_group = group_out() * channel;
    int64_t offset = 0;
    for (int64_t i = 0; i < spatial_; ++i) {
      const ConvAxis& axis = conv_.axes[i];
      const int64_t stride = axis.rhs_dilation * lhs_.strides[1 + i];
      offset += (axis.kernel - 1) * stride;
      p.lhs_positions.push_back({axis.in, axis.lhs_dilation * lhs_.strides[1 + i]});
      p.lhs_window.push_back({axis.kernel, -stride});
    }
    p.lhs_window.push_back({group_out(), channel});
    p.lhs = static_cast<const char*>(lhs_.data) + offset * SizeOf(lhs_.dtype);
    p.rhs = rhs_.data;
    p.rhs_dtype = rhs_.dtype;
    const int64_t out_channel = rhs_.strides[spatial_ + 1];
    p.rhs_group = group_out() * out_channel;
    p.rhs_columns = {group_in(), rhs_.strides[spatial_]};
    p.rhs_window = AxesOf(rhs_.shape, rhs_.strides, 0, spatial_);
    p.rhs_window.push_back({group_out(), out_channel});
    SetOutput(group_in(), p);
    return p;
  }

  // lhs_ is g, rhs_ is the padded input. Rows are elements of the window; the sum runs over examples and positions.
  WindowProduct Drhs() const {
    const WindowProduct w = InputWindows(rhs_);
    WindowProduct p;
    p.lhs = w.lhs;
    p.lhs_dtype = w.lhs_dtype;
    p.groups = w.groups;
    p.lhs_group = w.lhs_group;
    p.lhs_window.push_back(w.examples);
    p.lhs_window.insert(p.lhs_window.end(), w.lhs_positions.begin(), w.lhs_positions.end());
    p.rhs = lhs_.data;
    p.rhs_dtype = lhs_.dtype;
    const int64_t channel = lhs_.strides[spatial_ + 1];
    p.rhs_group = group_out() * channel;
    p.rhs_columns = {group_out(), channel};
    p.rhs_window = AxesOf(lhs_.shape, lhs_.strides, 0, spatial_ + 1);
    p.out = out_.data;
    p.out_dtype = out_.dtype;
    p.out_column = out_.strides[spatial_ + 1];
    p.out_group = group_out() * p.out_column;
    p.examples = w.lhs_window[0];
    p.out_example = out_.strides[0];
    p.lhs_positions.assign(w.lhs_window.begin() + 1, w.lhs_window.end());
    p.out_positions = AxesOf(out_.shape, out_.strides, 1, spatial_);
    return p;
  }

 private:
  int64_t group_in() const { return conv_.in_channels / conv_.groups; }
  int64_t group_out() const { return conv_.out_channels / conv_.groups; }

  // The windows of the input that one output position reads.
  WindowProduct InputWindows(const ArrayRef& padded) const {
    WindowProduct p;
    p.lhs = padded.data;
    p.lhs_dtype = padded.dtype;
    p.examples = {conv_.batch, padded.strides[0]};
    const int64_t channel = padded.strides[spatial_ + 1];
    p.groups = conv_.groups;
    p.lhs_group = group_in() * channel;
    for (int64_t i = 0; i < spatial_; ++i) {
      const ConvAxis& axis = conv_.axes[i];
      p.lhs_positions.push_back({axis.out, axis.stride * padded.strides[1 + i]});
      p.lhs_window.push_back({axis.kernel, axis.rhs_dilation * padded.strides[1 + i]});
    }
    p.lhs_window.push_back({group_in(), channel});
    return p;
  }

  // out_ is [B, spatial..., channels], with `columns` channels per group.
  void SetOutput(int64_t columns, WindowProduct& p) const {
    p.out = out_.data;
    p.out_dtype = out_.dtype;
    p.out_example = out_.strides[0];
    p.out_positions = AxesOf(out_.shape, out_.strides, 1, spatial_);
    p.out_column = out_.strides[spatial_ + 1];
    p.out_group = columns * p.out_column;
  }

  const ConvGeometry& conv_;
  const int64_t spatial_;
  const ArrayRef &lhs_, &rhs_;
  const MutableArrayRef& out_;
};

kernels::Operand RhsOf(const WindowProduct& p) {
  kernels::Operand rhs;
  rhs.data = p.rhs;
  rhs.dtype = p.rhs_dtype;
  rhs.batch.Append(p.groups, p.rhs_group);
  rhs.rows.Append(p.rhs_columns.size, p.rhs_columns.stride);
  Append(p.rhs_window, rhs.k);
  return rhs;
}

// Examples [e, e + examples) and groups [g, g + groups).
kernels::Operand LhsOf(const WindowProduct& p, int64_t e, int64_t examples, int64_t g, int64_t groups) {
  kernels::Operand lhs;
  lhs.data = static_cast<const char*>(p.lhs) + (e * p.examples.stride + g * p.lhs_group) * SizeOf(p.lhs_dtype);
  lhs.dtype = p.lhs_dtype;
  lhs.batch.Append(groups, p.lhs_group);
  lhs.rows.Append(examples, p.examples.stride);
  Append(p.lhs_positions, lhs.rows);
  Append(p.lhs_window, lhs.k);
  return lhs;
}

// The kernel call for these examples and groups.
kernels::GemmProblem ProblemOf(const WindowProduct& p, const kernels::Operand& rhs, int64_t e, int64_t examples,
                               int64_t g, int64_t groups) {
  kernels::GemmOutput out = {
      .data = static_cast<char*>(p.out) + (e * p.out_example + g * p.out_group) * SizeOf(p.out_dtype),
      .dtype = p.out_dtype};
  out.batch.Append(groups, p.out_group);
  out.rows.Append(examples, p.out_example);
  Append(p.out_positions, out.rows);
  out.cols.Append(p.rhs_columns.size, p.out_column);
  kernels::GemmProblem problem = kernels::GemmProblem::Of(LhsOf(p, e, examples, g, groups), rhs, out);
  problem.subnormals_are_zero = true;
  return problem;
}

// `slid` is the padded operand that the windows slide over; the other two may have no data.
WindowProduct ProductOf(const Windows& windows, const ArrayRef& slid, const ArrayRef& other,
                        const MutableArrayRef& out) {
  const bool is_rhs = windows.pass == Pass::kDrhs;
  const Builder builder(windows.conv, is_rhs ? other : slid, is_rhs ? slid : other, out);
  switch (windows.pass) {
    case Pass::kFwd: return builder.Forward();
    case Pass::kDlhs: return builder.Dlhs();
    case Pass::kDrhs: return builder.Drhs();
  }
  return {};
}

// The lines of all examples and groups.
kernels::LinesPlan LinesOf(const kernels::GemmKernel& kernel, const WindowProduct& p) {
  return {kernel, LhsOf(p, 0, p.examples.size, 0, p.groups), p.rhs_columns.size};
}

// `lines` is null if the windows are packed.
void Run(const kernels::GemmKernel& kernel, WindowExtents extents, const WindowProduct& p, const void* rhs_panels,
         const kernels::LinesPlan* lines, const WindowScales& scales, Workspace& workspace, const Runtime& runtime) {
  if (lines != nullptr) {
    extents.example_step = extents.examples;
    extents.group_step = extents.groups;
  }
  const kernels::Operand rhs = RhsOf(p);
  const int64_t columns = extents.columns, positions = extents.positions;
  if (rhs_panels == nullptr) {
    void* packed = workspace.Get(ScratchSlot::kRhsPacked, extents.RhsPanelBytes());
    PackOperand(kernel, Side::kRhs, rhs, packed, runtime);
    rhs_panels = packed;
  }
  float* row_scale = nullptr;
  if (scales.example != nullptr) {
    row_scale = static_cast<float*>(
        workspace.Get(ScratchSlot::kRowScale, extents.example_step * positions * static_cast<int64_t>(sizeof(float))));
  }
  for (int64_t e = 0; e < p.examples.size; e += extents.example_step) {
    const int64_t examples = std::min(extents.example_step, p.examples.size - e);
    if (row_scale != nullptr) {
      for (int64_t i = 0; i < examples; ++i) std::fill_n(row_scale + i * positions, positions, scales.example[e + i]);
    }
    for (int64_t g = 0; g < p.groups; g += extents.group_step) {
      kernels::GemmProblem problem = ProblemOf(p, rhs, e, examples, g, std::min(extents.group_step, p.groups - g));
      problem.lhs_rows_overlap = true;
      kernels::Epilogue& epilogue = problem.epilogue;
      epilogue = scales.epilogue;
      epilogue.lhs_scale = row_scale;
      epilogue.lhs_stride = epilogue.rhs_stride = 1;
      epilogue.lhs_batch_stride = 0;
      epilogue.rhs_scale = scales.channel == nullptr ? nullptr : scales.channel + g * columns;
      epilogue.rhs_batch_stride = columns;
      epilogue.block_offset = e * p.out_example + g * p.out_group;
      if (!problem.HasBlocks()) epilogue.block = nullptr;
      const kernels::GemmPanels packed = {.rhs = static_cast<const char*>(rhs_panels) + g * extents.rhs_bytes};
      PackAndMultiply(kernel, problem, packed, workspace, runtime, lines);
    }
  }
}

// The gradient of the kernel is a product with a long k.
bool IsLongK(const kernels::GemmKernel& kernel, const Windows& windows) {
  return windows.pass == Pass::kDrhs && kernels::CanRunLongK(kernel);
}

// Whether the windows are the rhs of that product instead. They are then copied, and g, which has fewer rows, is
// transposed.
bool ExchangesOperands(const kernels::GemmKernel& kernel, const WindowExtents& extents) {
  return kernel.lhs.element == kernel.rhs.element && extents.columns < extents.examples * extents.positions;
}

void RunLongK(const kernels::GemmKernel& kernel, const WindowExtents& extents, const WindowProduct& p,
              const kernels::Epilogue& epilogue, Workspace& workspace, const Runtime& runtime) {
  kernels::GemmProblem problem = ProblemOf(p, RhsOf(p), 0, p.examples.size, 0, p.groups);
  problem.epilogue = epilogue;
  problem.epilogue.lhs_scale = problem.epilogue.rhs_scale = nullptr;
  if (!problem.HasBlocks()) problem.epilogue.block = nullptr;
  if (ExchangesOperands(kernel, extents)) problem.ExchangeOperands();
  MultiplyLongK(kernel, problem, workspace, runtime);
}

}  // namespace

void ContractWindows(const kernels::GemmKernel& kernel, const Windows& windows, const ArrayRef& lhs,
                     const ArrayRef& rhs, const void* rhs_panels, const MutableArrayRef& out,
                     const WindowScales& scales, Workspace& workspace, const Runtime& runtime) {
  const bool slides_over_rhs = windows.pass == Pass::kDrhs;
  const ArrayRef padded = PadSpatial(slides_over_rhs ? rhs : lhs, PaddingsOf(windows), workspace, runtime.executor);
  const WindowProduct product = ProductOf(windows, padded, slides_over_rhs ? lhs : rhs, out);
  const WindowExtents extents = ExtentsOf(kernel, windows);
  if (IsLongK(kernel, windows)) return RunLongK(kernel, extents, product, scales.epilogue, workspace, runtime);
  const kernels::LinesPlan lines = LinesOf(kernel, product);
  const bool by_lines = padded.IsDense() && lines.is_good();  // as AddWindowSlots expects
  Run(kernel, extents, product, rhs_panels, by_lines ? &lines : nullptr, scales, workspace, runtime);
}

int64_t RowsOf(const Windows& windows) {
  const ConvGeometry& conv = windows.conv;
  int64_t rows = windows.pass == Pass::kDrhs ? conv.in_channels / conv.groups : conv.batch;
  for (const ConvAxis& axis : conv.axes) {
    rows *= windows.pass == Pass::kFwd ? axis.out : windows.pass == Pass::kDlhs ? axis.in : axis.kernel;
  }
  return rows;
}

kernels::Operand WindowKernel(const ConvGeometry& conv, const ArrayRef& rhs) {
  WindowProduct p;
  SetKernel(conv, rhs, p);
  return RhsOf(p);
}

void AddWindowSlots(const kernels::GemmKernel& kernel, const Windows& windows, DType padded, bool scaled,
                    SlotSizes& sizes) {
  const WindowExtents extents = ExtentsOf(kernel, windows);
  const Shape slid = SlidShape(windows);
  const Paddings paddings = PaddingsOf(windows);
  if (Changes(slid, paddings)) {
    sizes.Add(ScratchSlot::kPadded, PaddedShape(slid, paddings).num_elements() * SizeOf(padded));
  }
  if (IsLongK(kernel, windows)) {
    const int64_t rows = extents.examples * extents.positions;
    const bool exchanges = ExchangesOperands(kernel, extents);
    sizes.Add(ScratchSlot::kLhsPacked,
              kernels::LongKBytes(kernel, extents.groups, exchanges ? extents.columns : rows,
                                  exchanges ? rows : extents.columns, extents.k, ThisMachine()));
    return;
  }
  const ConvGeometry& conv = windows.conv;
  const bool is_dlhs = windows.pass == Pass::kDlhs, is_drhs = windows.pass == Pass::kDrhs;
  const Shape other = is_drhs ? conv.OutShape() : conv.RhsShape();
  const Shape out = is_drhs ? conv.RhsShape() : is_dlhs ? conv.LhsShape() : conv.OutShape();
  const kernels::LinesPlan lines =
      LinesOf(kernel, ProductOf(windows, ArrayRef(padded, PaddedShape(slid, paddings), nullptr),
                                ArrayRef(DType::kF32, other, nullptr), MutableArrayRef(DType::kF32, out, nullptr)));
  sizes.Add(ScratchSlot::kRhsPacked, extents.RhsPanelBytes());
  sizes.Add(ScratchSlot::kLhsPacked,
            std::max(lines.is_good() ? lines.BufferBytes() : 0, extents.LhsPanelBytes(kernel)));
  if (scaled) {
    const int64_t examples = lines.is_good() ? extents.examples : extents.example_step;
    sizes.Add(ScratchSlot::kRowScale, examples * extents.positions * static_cast<int64_t>(sizeof(float)));
  }
}

}  // namespace aqt::internal
