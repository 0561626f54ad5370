#include "aqt/kernels/contraction.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/digits/digits.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/product.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"

namespace aqt::kernels {
namespace {

// x with the axes of the three groups in this order.
ArrayRef InOrder(const ArrayRef& x, const Axes& first, const Axes& second, const Axes& third) {
  ArrayRef view = x;
  view.shape = Shape();
  view.strides.clear();
  for (const Axes* axes : {&first, &second, &third}) {
    for (const int64_t axis : *axes) {
      view.shape.push_back(x.shape[axis]);
      view.strides.push_back(x.strides[axis]);
    }
  }
  return view;
}

// A dense copy of it, converted to `dtype`.
Array Gather(const ArrayRef& x, DType dtype, const Axes& first, const Axes& second, const Axes& third) {
  return Cast(InOrder(x, first, second, third), dtype);
}

// ---- the matrix kernels

// The kernels' view of the operand. If it has more axes than they support, this is a copy that `gathered` keeps.
Operand OperandOrCopy(const ArrayRef& x, const OperandAxes& axes, std::shared_ptr<void>& gathered) {
  if (!HasTooManyAxes(x.shape)) return OperandOf(x, axes);
  gathered = AllocateUninitialized(x.aval().num_bytes());
  return GatheredOperand(x, axes, gathered.get());
}

// The product in `out`, dense, without operands.
GemmProblem ProblemOf(const ArrayRef& lhs, const OperandAxes& a, const ArrayRef& rhs, const OperandAxes& b,
                      DType out_dtype, void* out) {
  return GemmProblem::Dense(Extent(lhs.shape, a.batch), Extent(lhs.shape, a.rows), Extent(rhs.shape, b.rows),
                            Extent(lhs.shape, a.k), out_dtype, out);
}

void RunKernel(const GemmKernel& kernel, const ArrayRef& lhs, const OperandAxes& a, const ArrayRef& rhs,
               const OperandAxes& b, DType sum_dtype, void* sums, Executor* executor) {
  std::shared_ptr<void> gathered_lhs, gathered_rhs;
  GemmProblem problem = ProblemOf(lhs, a, rhs, b, sum_dtype, sums);
  problem.lhs = OperandOrCopy(lhs, a, gathered_lhs);
  problem.rhs = OperandOrCopy(rhs, b, gathered_rhs);
  const ProductBytes bytes = ProductBytesOf(kernel, problem.batch, problem.m, problem.n, problem.k);
  const std::shared_ptr<void> lhs_buffer = AllocateUninitialized(bytes.lhs);
  const std::shared_ptr<void> rhs_buffer = AllocateUninitialized(bytes.rhs);
  PackAndMultiply(kernel, problem, {}, {lhs_buffer.get(), rhs_buffer.get()}, executor);
}

const GemmKernel& Kernel(GemmSums sums, const ArrayRef& lhs, const OperandAxes& a, const ArrayRef& rhs) {
  const GemmTypes types{.sums = sums, .lhs = NarrowestElement(lhs.dtype), .rhs = NarrowestElement(rhs.dtype)};
  return ChooseGemm(types, BestTarget(), Extent(lhs.shape, a.rows));
}

// Computes sums of floats times integers.
void RunDigits(const ArrayRef& floats, const OperandAxes& a, const ArrayRef& integers, const OperandAxes& b,
               float* sums, Executor* executor) {
  const Target target = BestTarget();
  std::shared_ptr<void> gathered_floats, gathered_integers;
  GemmProblem problem = ProblemOf(floats, a, integers, b, DType::kF32, sums);
  problem.lhs = OperandOrCopy(floats, a, gathered_floats);
  const DigitFormat format = {.bits = BitWidth(integers.dtype), .n = problem.n, .k = problem.k};
  const std::shared_ptr<void> panels = AllocateAligned(problem.batch * format.PackedBytes());
  PackDigitWeights(format, OperandOrCopy(integers, b, gathered_integers), {}, panels.get(), executor);
  const std::shared_ptr<void> scratch = AllocateAligned(DigitScratchBytes(target, format, problem.batch, problem.m));
  MultiplyDigits(
      target, problem,
      {.format = format, .rhs = panels.get(), .rhs_batch_bytes = format.PackedBytes(), .scratch = scratch.get()},
      executor);
}

// ---- plain loops

// out = [B,M,K] x [B,K,N] = [B,M,N], row by row, so that the inner loop runs over contiguous elements.
template <class C>
void MatMul(const C* lhs, const C* rhs, int64_t batch, int64_t m, int64_t n, int64_t k, C* out) {
  for (int64_t b = 0; b < batch; ++b, rhs += k * n) {
    for (int64_t i = 0; i < m; ++i, lhs += k, out += n) {
      std::fill(out, out + n, C{});
      for (int64_t kk = 0; kk < k; ++kk) {
        const C a = lhs[kk];
        const C* row = rhs + kk * n;
        for (int64_t j = 0; j < n; ++j) {
          if constexpr (std::is_integral_v<C>) {
            out[j] = static_cast<C>(static_cast<uint32_t>(out[j]) +
                                    static_cast<uint32_t>(a) * static_cast<uint32_t>(row[j]));
          } else {
            out[j] += a * row[j];
          }
        }
      }
    }
  }
}

template <class C>
void RunPlain(const ArrayRef& lhs, const OperandAxes& a, const ArrayRef& rhs, const OperandAxes& b, C* sums) {
  const Array left = Gather(lhs, kDTypeOf<C>, a.batch, a.rows, a.k);
  const Array right = Gather(rhs, kDTypeOf<C>, b.batch, b.k, b.rows);
  MatMul<C>(left.View<C>().data(), right.View<C>().data(), Extent(lhs.shape, a.batch), Extent(lhs.shape, a.rows),
            Extent(rhs.shape, b.rows), Extent(lhs.shape, a.k), sums);
}

}  // namespace

OperandAxes OperandAxesOf(const DotDims& dims, Side side, int64_t rank) {
  const bool lhs = side == Side::kLhs;
  OperandAxes axes{.batch = lhs ? dims.lhs_batch : dims.rhs_batch,
                   .k = lhs ? dims.lhs_contracting : dims.rhs_contracting};
  axes.rows = RemainingAxes(rank, axes.k, axes.batch);
  return axes;
}

int64_t Extent(const Shape& shape, const Axes& axes) {
  int64_t extent = 1;
  for (const int64_t axis : axes) extent *= shape[axis];
  return extent;
}

Operand OperandOf(const ArrayRef& x, const OperandAxes& axes) {
  Operand operand = {.data = x.data, .dtype = x.dtype};
  for (const int64_t axis : axes.batch) operand.batch.Append(x.shape[axis], x.strides[axis]);
  for (const int64_t axis : axes.rows) operand.rows.Append(x.shape[axis], x.strides[axis]);
  for (const int64_t axis : axes.k) operand.k.Append(x.shape[axis], x.strides[axis]);
  return operand;
}

Operand GatheredOperand(const ArrayRef& x, const OperandAxes& axes, void* buffer) {
  const ArrayRef view = InOrder(x, axes.batch, axes.rows, axes.k);
  AQT_CHECK(CopyArray(view, MutableArrayRef(x.dtype, view.shape, buffer)).ok());
  return Operand::Dense(buffer, x.dtype, Extent(x.shape, axes.rows), Extent(x.shape, axes.k),
                        Extent(x.shape, axes.batch));
}

GemmOutput OutputOf(const MutableArrayRef& out, const OperandAxes& lhs) {
  const int64_t batch = static_cast<int64_t>(lhs.batch.size());
  const int64_t rows_end = batch + static_cast<int64_t>(lhs.rows.size());
  GemmOutput output = {.data = out.data, .dtype = out.dtype};
  for (int64_t axis = 0; axis < out.shape.rank(); ++axis) {
    AxisGroup& group = axis < batch ? output.batch : axis < rows_end ? output.rows : output.cols;
    group.Append(out.shape[axis], out.strides[axis]);
  }
  return output;
}

void Contract(const DotDims& dims, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out,
              Executor* executor) {
  if (out.shape.num_elements() == 0) return;  // an empty operand may have 2^40 rows
  const OperandAxes a = OperandAxesOf(dims, Side::kLhs, lhs.shape.rank());
  const OperandAxes b = OperandAxesOf(dims, Side::kRhs, rhs.shape.rank());
  if (lhs.dtype == DType::kF64) {
    ArrayBuilder sums = ArrayBuilder::ForOverwrite({DType::kF64, out.shape});
    RunPlain<double>(lhs, a, rhs, b, sums.Mutable<double>().data());
    AQT_CHECK(CastArray(sums.ref(), out).ok());
  } else if (IsFloat(lhs.dtype)) {
    ArrayBuilder sums = ArrayBuilder::ForOverwrite({DType::kF32, out.dtype == DType::kF32 ? Shape{0} : out.shape});
    const MutableArrayRef target = out.dtype == DType::kF32 ? out : sums.ref();
    if (IsInteger(rhs.dtype)) {
      RunDigits(lhs, a, rhs, b, static_cast<float*>(target.data), executor);
    } else {
      RunKernel(Kernel(GemmSums::kF32, lhs, a, rhs), lhs, a, rhs, b, DType::kF32, target.data, executor);
    }
    if (target.data != out.data) AQT_CHECK(CastArray(target, out).ok());
  } else if (IsByteInteger(lhs.dtype) && IsByteInteger(rhs.dtype)) {
    RunKernel(Kernel(GemmSums::kS32, lhs, a, rhs), lhs, a, rhs, b, DType::kS32, out.data, executor);
  } else {
    RunPlain<int32_t>(lhs, a, rhs, b, out.As<int32_t>());
  }
}

ContractPlan::ContractPlan(const DotDims& dims, const Aval& lhs, const Aval& rhs, const Aval& out)
    : dims_(dims),
      lhs_(lhs.dtype, lhs.shape, nullptr),
      rhs_(rhs.dtype, rhs.shape, nullptr),
      out_(out.dtype, out.shape, nullptr) {
  const bool is_finished = out.dtype == DType::kF32 || out.dtype == DType::kBF16 || out.dtype == DType::kF16;
  const bool is_float = IsFloat(lhs.dtype) && IsFloat(rhs.dtype) && lhs.dtype != DType::kF64 && is_finished;
  const bool is_integer = IsByteInteger(lhs.dtype) && IsByteInteger(rhs.dtype);
  const bool fits = !HasTooManyAxes(lhs.shape) && !HasTooManyAxes(rhs.shape);
  if ((!is_float && !is_integer) || !fits || out.shape.num_elements() == 0) return;
  const OperandAxes a = OperandAxesOf(dims, Side::kLhs, lhs.shape.rank());
  const OperandAxes b = OperandAxesOf(dims, Side::kRhs, rhs.shape.rank());
  kernel_ = &Kernel(is_float ? GemmSums::kF32 : GemmSums::kS32, lhs_, a, rhs_);
  problem_ = ProblemOf(lhs_, a, rhs_, b, out.dtype, nullptr);
  problem_.lhs = OperandOf(lhs_, a);
  problem_.rhs = OperandOf(rhs_, b);
  const ProductBytes bytes = ProductBytesOf(*kernel_, problem_.batch, problem_.m, problem_.n, problem_.k);
  rhs_at_ = RoundUp(bytes.lhs, 64);
  scratch_bytes_ = rhs_at_ + RoundUp(bytes.rhs, 64);
}

void ContractPlan::Run(const void* lhs, const void* rhs, void* out, void* scratch, Executor* executor,
                       BlockEpilogue* block) const {
  if (scratch_bytes_ == 0) {
    ArrayRef left = lhs_, right = rhs_;
    MutableArrayRef to = out_;
    left.data = lhs;
    right.data = rhs;
    to.data = out;
    return Contract(dims_, left, right, to, executor);
  }
  GemmProblem problem = problem_;
  problem.lhs.data = lhs;
  problem.rhs.data = rhs;
  problem.out.data = out;
  problem.epilogue.block = block;
  char* const memory = static_cast<char*>(scratch);
  PackAndMultiply(*kernel_, problem, {}, {memory, memory + rhs_at_}, executor);
}

}  // namespace aqt::kernels
