#include "aqt/kernels/attention/attention.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <thread>

#include "aqt/core/array.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/machine/machine.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/attention/softmax_rows.h"
#include "aqt/kernels/elementwise/convert.h"
#include "aqt/kernels/gemm/report.h"
#include "aqt/kernels/gemm/schedule.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"

namespace aqt::kernels {
namespace {

// The scores of a unit and their panels, for an L2 of 1 MiB or more.
constexpr int64_t kUnitBytes = 256 << 10;
// Up to this many matrices, keys and values can be packed before the units run, so that many threads share them.
constexpr int64_t kMaxSharedMatrices = 64;

// Memory of a thread that is not the caller, which grows to the needs of the largest attention.
class ThreadMemory {
 public:
  char* Get(int64_t bytes) {
    if (size_ < bytes) {
      memory_ = AllocateUninitialized(bytes);
      size_ = bytes;
    }
    return static_cast<char*>(memory_.get());
  }

 private:
  std::shared_ptr<void> memory_;
  int64_t size_ = 0;
};

const char* At(const void* data, DType dtype, int64_t elements) {
  return static_cast<const char*>(data) + elements * SizeOf(dtype);
}
char* At(void* data, DType dtype, int64_t elements) { return static_cast<char*>(data) + elements * SizeOf(dtype); }

// Two axes as one group.
AxisGroup Axes2(int64_t size0, int64_t stride0, int64_t size1, int64_t stride1) {
  AxisGroup group = AxisGroup::Of(size0, stride0);
  group.Append(size1, stride1);
  return group;
}

// RunGemm on this thread, without a line of AQT_VERBOSE for each block.
void Multiply(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& panels) {
  const int64_t tasks = CutPanels(kernel, problem, ThisMachine(), /*threads=*/1).m_tasks;
  const int64_t count = kernel.lhs.NumPanels(problem.m), width = kernel.lhs.width;
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t i = 0; i < tasks; ++i) {
      const int64_t first = count * i / tasks * width, last = std::min(count * (i + 1) / tasks * width, problem.m);
      kernel.block(problem, panels, b, first, last, 0, problem.n);
    }
  }
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape) : shape_(shape) {
  const PanelFormat::Element element = NarrowestElement(shape.dtype);
  kernel_ = &ChooseGemm({.sums = GemmSums::kF32, .lhs = element, .rhs = element}, BestTarget(), shape.queries);
  is_wide_ = kernel_->lhs.element == PanelFormat::Element::kF32;
  key_bytes_ = kernel_->rhs.PackedBytes(shape.keys, shape.features);
  value_bytes_ = kernel_->rhs.PackedBytes(shape.out, shape.keys);
  cuts_ = CutsFor(/*threads=*/1);
  layout_ = LayoutOf(cuts_);
  const int64_t matrices = shape.batch * shape.heads;
  if (matrices <= kMaxSharedMatrices) shared_bytes_ = RoundUp(matrices * (key_bytes_ + value_bytes_), 64);
  scratch_bytes_ = shared_bytes_ + layout_.bytes;
}

int64_t AttentionPlan::RowFloats() const { return RoundUp(std::max(shape_.keys, shape_.features), kRowGroup); }

AttentionPlan::Cuts AttentionPlan::CutsFor(int64_t threads) const {
  const int64_t row_bytes = 2 * RowFloats() * static_cast<int64_t>(sizeof(float));
  const int64_t width = kernel_->lhs.width, unit_rows = FitL2(ThisMachine(), kUnitBytes) / row_bytes;
  const int64_t matrices = shape_.batch * shape_.heads;
  Cuts cuts;
  cuts.rows = std::min(shape_.queries, std::max(width, unit_rows / width * width));
  int64_t most = cuts.rows < shape_.queries ? 1 : std::max<int64_t>(1, unit_rows / shape_.queries);
  if (threads > 1) {
    most = std::min(most, std::max<int64_t>(1, matrices / (threads * kPartsPerThread)));
    const int64_t blocks = CeilDiv(threads * kPartsPerThread, matrices);
    if (blocks > 1) cuts.rows = std::min(cuts.rows, RoundUp(CeilDiv(shape_.queries, blocks), width));
  }
  cuts.heads = std::min(most, shape_.heads);
  if (cuts.heads == shape_.heads) cuts.batches = std::clamp<int64_t>(most / shape_.heads, 1, shape_.batch);
  return cuts;
}

AttentionPlan::Layout AttentionPlan::LayoutOf(const Cuts& cuts) const {
  Layout layout;
  const int64_t matrices = cuts.batches * cuts.heads;
  const auto take = [&](int64_t bytes) {
    const int64_t begin = layout.bytes;
    layout.bytes += RoundUp(bytes, 64);
    return begin;
  };
  const int64_t elements = matrices * cuts.rows * RowFloats();
  layout.keys = take(matrices * key_bytes_);
  layout.values = take(matrices * value_bytes_);
  layout.queries = take(matrices * kernel_->lhs.PackedBytes(cuts.rows, shape_.features));
  layout.scores = take(elements * static_cast<int64_t>(sizeof(float)));
  layout.weights = take(matrices * kernel_->lhs.PackedBytes(cuts.rows, shape_.keys));
  layout.narrow = take(is_wide_ ? 0 : elements * SizeOf(shape_.dtype));
  layout.buffer = take(SoftmaxBufferBytes(shape_.keys));
  return layout;
}

void AttentionPlan::PackKeys(const AttentionCall& call, const Unit& unit, void* keys, void* values,
                             Executor* executor) const {
  const auto operand = [&](const void* data, int64_t features) {
    const int64_t row = shape_.heads * features;
    return Operand{.data = At(data, shape_.dtype, unit.batch * shape_.keys * row + unit.head * features),
                   .dtype = shape_.dtype,
                   .batch = Axes2(unit.batches, shape_.keys * row, unit.heads, features)};
  };
  const int64_t features = shape_.features, out = shape_.out, heads = shape_.heads;
  Operand key = operand(call.key, features), value = operand(call.value, out);
  key.rows = AxisGroup::Of(shape_.keys, heads * features);
  key.k = AxisGroup::Of(features, 1);
  value.rows = AxisGroup::Of(out, 1);
  value.k = AxisGroup::Of(shape_.keys, heads * out);
  Pack(kernel_->target, kernel_->rhs, key, keys, executor);
  Pack(kernel_->target, kernel_->rhs, value, values, executor);
}

void AttentionPlan::PackNarrow(const float* from, int64_t stride, int64_t matrices, int64_t rows, int64_t k,
                               void* narrow, void* panels) const {
  Convert(DType::kF32, from, shape_.dtype, matrices * rows * stride, narrow);
  const Operand operand = {.data = narrow,
                           .dtype = shape_.dtype,
                           .batch = AxisGroup::Of(matrices, rows * stride),
                           .rows = AxisGroup::Of(rows, stride),
                           .k = AxisGroup::Of(k, 1)};
  Pack(kernel_->target, kernel_->lhs, operand, panels, /*executor=*/nullptr);
}

void AttentionPlan::FillUp(int64_t matrices, int64_t rows, int64_t k, void* panels) const {
  const int64_t width = kernel_->lhs.width, used = rows % width;
  if (used == 0) return;
  const int64_t groups = CeilDiv(k, kRowGroup), panel = width * groups * kRowGroup;
  for (int64_t i = 0; i < matrices; ++i) {
    float* const last = static_cast<float*>(panels) + ((i + 1) * CeilDiv(rows, width) - 1) * panel;
    for (int64_t g = 0; g < groups; ++g) {
      std::fill_n(last + (g * width + used) * kRowGroup, (width - used) * kRowGroup, 0.0f);
    }
  }
}

void AttentionPlan::PackQueries(const AttentionCall& call, const Unit& unit, char* memory) const {
  const int64_t features = shape_.features, row = shape_.heads * features, width = kernel_->lhs.width;
  const int64_t row_floats = RoundUp(features, kRowGroup);
  void* const panels = memory + layout_.queries;
  float* const dense = reinterpret_cast<float*>(memory + layout_.scores);
  for (int64_t i = 0; i < unit.matrices(); ++i) {
    const int64_t b = unit.batch + i / unit.heads, h = unit.head + i % unit.heads;
    RowPlaces places = {.data = dense + i * unit.rows * row_floats, .width = 1, .panel = row_floats};
    if (is_wide_) {
      const int64_t bytes = kernel_->lhs.PackedBytes(unit.rows, features);
      places = {.data = reinterpret_cast<float*>(static_cast<char*>(panels) + i * bytes),
                .width = width,
                .panel = width * row_floats,
                .step = width * kRowGroup};
    }
    DivideRows({.x = At(call.query, shape_.dtype, (b * shape_.queries + unit.row) * row + h * features),
                .dtype = shape_.dtype,
                .rows = unit.rows,
                .columns = features,
                .stride = row,
                .divisor = shape_.divisor,
                .out = places});
  }
  if (is_wide_) FillUp(unit.matrices(), unit.rows, features, panels);
  else PackNarrow(dense, row_floats, unit.matrices(), unit.rows, features, memory + layout_.narrow, panels);
}

void AttentionPlan::Softmax(const AttentionCall& call, const Unit& unit, char* memory) const {
  const int64_t keys = shape_.keys, stride = RoundUp(keys, kRowGroup), width = kernel_->lhs.width;
  const int64_t bytes = kernel_->lhs.PackedBytes(unit.rows, keys);
  const auto rows_of = [&]<class T>(const T* data, const std::optional<AttentionShape::Strides4>& strides, int64_t b,
                                    int64_t h) -> ScoreOperand<T> {
    if (!strides.has_value()) return {};
    const auto& [batch, head, row, column] = *strides;
    return {data + b * batch + h * head + unit.row * row, row, column};
  };
  float* const scores = reinterpret_cast<float*>(memory + layout_.scores);
  for (int64_t i = 0; i < unit.matrices(); ++i) {
    const int64_t b = unit.batch + i / unit.heads, h = unit.head + i % unit.heads;
    float* const own = scores + i * unit.rows * stride;
    RowPlaces places = {.data = own, .width = 1, .panel = stride};
    if (is_wide_) {
      places = {.data = reinterpret_cast<float*>(memory + layout_.weights + i * bytes),
                .width = width,
                .panel = width * stride,
                .step = width * kRowGroup};
    }
    SoftmaxRows({.scores = own,
                 .rows = unit.rows,
                 .columns = keys,
                 .stride = stride,
                 .bias = rows_of(call.bias, shape_.bias, b, h),
                 .mask = rows_of(call.mask, shape_.mask, b, h),
                 .dtype = shape_.dtype,
                 .out = places,
                 .buffer = memory + layout_.buffer});
  }
  void* const panels = memory + layout_.weights;
  if (is_wide_) FillUp(unit.matrices(), unit.rows, keys, panels);
  else PackNarrow(scores, stride, unit.matrices(), unit.rows, keys, memory + layout_.narrow, panels);
}

void AttentionPlan::RunUnit(const AttentionCall& call, const Unit& unit, const Panels& panels, char* memory) const {
  const int64_t matrices = unit.matrices(), before = panels.matrices_before;
  const int64_t stride = RoundUp(shape_.keys, kRowGroup), out_row = shape_.heads * shape_.out;
  PackQueries(call, unit, memory);
  GemmProblem scores{.batch = matrices, .m = unit.rows, .n = shape_.keys, .k = shape_.features};
  scores.out = {.data = memory + layout_.scores,
                .dtype = DType::kF32,
                .batch = AxisGroup::Of(matrices, unit.rows * stride),
                .rows = AxisGroup::Of(unit.rows, stride),
                .cols = AxisGroup::Of(shape_.keys, 1)};
  scores.epilogue.sum_dtype = shape_.dtype;
  Multiply(*kernel_, scores,
           {.lhs = memory + layout_.queries,
            .rhs = static_cast<const char*>(panels.keys) + before * key_bytes_,
            .lhs_batch_bytes = kernel_->lhs.PackedBytes(unit.rows, shape_.features),
            .rhs_batch_bytes = key_bytes_});
  Softmax(call, unit, memory);
  GemmProblem sums{.batch = matrices, .m = unit.rows, .n = shape_.out, .k = shape_.keys};
  sums.out = {
      .data = At(call.out, shape_.dtype, (unit.batch * shape_.queries + unit.row) * out_row + unit.head * shape_.out),
      .dtype = shape_.dtype,
      .batch = Axes2(unit.batches, shape_.queries * out_row, unit.heads, shape_.out),
      .rows = AxisGroup::Of(unit.rows, out_row),
      .cols = AxisGroup::Of(shape_.out, 1)};
  Multiply(*kernel_, sums,
           {.lhs = memory + layout_.weights,
            .rhs = static_cast<const char*>(panels.values) + before * value_bytes_,
            .lhs_batch_bytes = kernel_->lhs.PackedBytes(unit.rows, shape_.keys),
            .rhs_batch_bytes = value_bytes_});
}

void AttentionPlan::Run(const AttentionCall& call, void* scratch, Executor* executor) const {
  // A product with the multiplications of both.
  const GemmProblem both{
      .batch = shape_.batch * shape_.heads, .m = shape_.queries, .n = shape_.keys, .k = shape_.features + shape_.out};
  const internal::GemmReport report(*kernel_, both);
  const double work = 1.0 * both.batch * both.m * both.n * both.k;
  const int64_t threads = work < kMinParallelWork ? 1 : ThreadsOf(executor);
  const Cuts cuts = threads == 1 ? cuts_ : CutsFor(threads);
  const int64_t head_units = CeilDiv(shape_.heads, cuts.heads);
  const int64_t units = CeilDiv(shape_.batch, cuts.batches) * head_units;
  const int64_t blocks = CeilDiv(shape_.queries, cuts.rows);
  const auto unit_at = [&](int64_t i, int64_t block) {
    const int64_t batch = i / head_units * cuts.batches, head = i % head_units * cuts.heads, row = block * cuts.rows;
    return Unit{batch, std::min(cuts.batches, shape_.batch - batch), head, std::min(cuts.heads, shape_.heads - head),
                row,   std::min(cuts.rows, shape_.queries - row)};
  };
  const bool shares = threads > 1 && units < 2 * threads && shared_bytes_ > 0;
  char* const shared = static_cast<char*>(scratch);
  char* const own = shared + shared_bytes_;
  void *const keys = shared, *const values = shared + shape_.batch * shape_.heads * key_bytes_;
  if (shares) PackKeys(call, {0, shape_.batch, 0, shape_.heads, 0, shape_.queries}, keys, values, executor);
  const std::thread::id caller = std::this_thread::get_id();
  const auto run = [&](int64_t task) {
    thread_local ThreadMemory of_thread;
    char* const memory = std::this_thread::get_id() == caller ? own : of_thread.Get(layout_.bytes);
    if (shares) {
      const Unit unit = unit_at(task / blocks, task % blocks);
      return RunUnit(call, unit, {keys, values, unit.batch * shape_.heads + unit.head}, memory);
    }
    const Panels panels = {memory + layout_.keys, memory + layout_.values, 0};
    PackKeys(call, unit_at(task, 0), memory + layout_.keys, memory + layout_.values, /*executor=*/nullptr);
    for (int64_t block = 0; block < blocks; ++block) RunUnit(call, unit_at(task, block), panels, memory);
  };
  const int64_t tasks = shares ? units * blocks : units;
  if (threads == 1) {
    for (int64_t i = 0; i < tasks; ++i) run(i);
  } else {
    executor->ParallelFor(tasks, run);
  }
}

}  // namespace aqt::kernels
