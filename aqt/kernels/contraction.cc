#include "aqt/kernels/contraction.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

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

// The axes of one operand, grouped by their role in the contraction, in output order.
struct Groups {
  Axes batch, free, contract;
};

Groups GroupsOf(const ArrayRef& x, const Axes& contracting, const Axes& batch) {
  return {batch, RemainingAxes(x.shape.rank(), contracting, batch), contracting};
}

int64_t Count(const ArrayRef& x, const Axes& axes) {
  int64_t count = 1;
  for (const int64_t axis : axes) count *= x.shape[axis];
  return count;
}

// A dense copy, converted to `dtype`, with the axes of the three groups in this order.
Array Gather(const ArrayRef& x, DType dtype, const Axes& first, const Axes& second, const Axes& third) {
  ArrayRef view = x;
  view.shape = Shape();
  view.strides.clear();
  for (const Axes* axes : {&first, &second, &third}) {
    for (const int64_t axis : *axes) {
      view.shape.push_back(x.shape[axis]);
      view.strides.push_back(x.strides[axis]);
    }
  }
  return Cast(view, dtype);
}

// ---- the matrix kernels

AxisGroup GroupOf(const ArrayRef& x, const Axes& axes) {
  AxisGroup group;
  for (const int64_t axis : axes) group.Append(x.shape[axis], x.strides[axis]);
  return group;
}

// The kernels' view of the operand. If it has more axes than they support, this is a copy that `gathered` keeps.
Operand OperandOf(const ArrayRef& x, const Groups& groups, Array& gathered) {
  if (x.shape.rank() <= AxisGroup::kMaxRank) {
    return {x.data, x.dtype, GroupOf(x, groups.batch), GroupOf(x, groups.free), GroupOf(x, groups.contract)};
  }
  gathered = Gather(x, x.dtype, groups.batch, groups.free, groups.contract);
  return Operand::Dense(gathered.data(), x.dtype, Count(x, groups.free), Count(x, groups.contract),
                        Count(x, groups.batch));
}

std::shared_ptr<void> PackOperand(const GemmKernel& kernel, const PanelFormat& format, const ArrayRef& x,
                                  const Groups& groups, Executor* executor) {
  const int64_t batch = Count(x, groups.batch), rows = Count(x, groups.free), k = Count(x, groups.contract);
  Array gathered;
  const Operand operand = OperandOf(x, groups, gathered);
  std::shared_ptr<void> panels = AllocateUninitialized(batch * format.PackedBytes(rows, k));
  Pack(kernel.target, format, operand, panels.get(), executor);
  return panels;
}

void RunKernel(const GemmKernel& kernel, const ArrayRef& lhs, const Groups& a, const ArrayRef& rhs, const Groups& b,
               DType sum_dtype, void* sums, Executor* executor) {
  const std::shared_ptr<void> lhs_panels = PackOperand(kernel, kernel.lhs, lhs, a, executor);
  const std::shared_ptr<void> rhs_panels = PackOperand(kernel, kernel.rhs, rhs, b, executor);
  GemmArgs args = GemmArgs::Dense(Count(lhs, a.batch), Count(lhs, a.free), Count(rhs, b.free), Count(lhs, a.contract),
                                  sum_dtype, sums);
  args.lhs = lhs_panels.get();
  args.rhs = rhs_panels.get();
  args.lhs_batch_bytes = kernel.lhs.PackedBytes(args.m, args.k);
  args.rhs_batch_bytes = kernel.rhs.PackedBytes(args.n, args.k);
  RunGemm(kernel, args, executor);
}

const GemmKernel& Kernel(GemmSums sums, const ArrayRef& lhs, const Groups& a, const ArrayRef& rhs) {
  const GemmTypes types{.sums = sums, .lhs = NarrowestElement(lhs.dtype), .rhs = NarrowestElement(rhs.dtype)};
  return ChooseGemm(types, BestTarget(), Count(lhs, a.free));
}

// Computes sums of floats times integers.
void RunDigits(const ArrayRef& floats, const Groups& a, const ArrayRef& integers, const Groups& b, float* sums,
               Executor* executor) {
  const Target target = BestTarget();
  Array gathered_floats, gathered_integers;
  const int64_t batch = Count(floats, a.batch), rows = Count(floats, a.free), columns = Count(integers, b.free);
  DigitArgs args;
  args.format = {.bits = BitWidth(integers.dtype), .n = columns, .k = Count(floats, a.contract)};
  const std::shared_ptr<void> panels = AllocateAligned(batch * args.format.PackedBytes());
  PackDigitWeights(args.format, OperandOf(integers, b, gathered_integers), {}, panels.get(), executor);
  const std::shared_ptr<void> scratch = AllocateAligned(DigitScratchBytes(target, args.format, batch, rows));
  args.lhs = OperandOf(floats, a, gathered_floats);
  args.rhs = panels.get();
  args.rhs_batch_bytes = args.format.PackedBytes();
  args.out = sums;
  args.out_batch = AxisGroup::Of(batch, rows * columns);
  args.out_rows = AxisGroup::Of(rows, columns);
  args.out_cols = AxisGroup::Of(columns, 1);
  args.scratch = scratch.get();
  MultiplyDigits(target, args, executor);
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
void RunPlain(const ArrayRef& lhs, const Groups& a, const ArrayRef& rhs, const Groups& b, C* sums) {
  const Array left = Gather(lhs, kDTypeOf<C>, a.batch, a.free, a.contract);
  const Array right = Gather(rhs, kDTypeOf<C>, b.batch, b.contract, b.free);
  MatMul<C>(left.View<C>().data(), right.View<C>().data(), Count(lhs, a.batch), Count(lhs, a.free), Count(rhs, b.free),
            Count(lhs, a.contract), sums);
}

}  // namespace

void Contract(const DotDims& dims, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out,
              Executor* executor) {
  if (out.shape.num_elements() == 0) return;  // an empty operand may have 2^40 rows
  const Groups a = GroupsOf(lhs, dims.lhs_contracting, dims.lhs_batch);
  const Groups b = GroupsOf(rhs, dims.rhs_contracting, dims.rhs_batch);
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
  const bool fits = lhs.shape.rank() <= AxisGroup::kMaxRank && rhs.shape.rank() <= AxisGroup::kMaxRank;
  if ((!is_float && !is_integer) || !fits || out.shape.num_elements() == 0) return;
  const Groups a = GroupsOf(lhs_, dims.lhs_contracting, dims.lhs_batch);
  const Groups b = GroupsOf(rhs_, dims.rhs_contracting, dims.rhs_batch);
  kernel_ = &Kernel(is_float ? GemmSums::kF32 : GemmSums::kS32, lhs_, a, rhs_);
  batch_ = Count(lhs_, a.batch);
  m_ = Count(lhs_, a.free);
  n_ = Count(rhs_, b.free);
  k_ = Count(lhs_, a.contract);
  const auto round_up = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const ProductBytes bytes = ProductBytesOf(*kernel_, batch_, m_, n_, k_);
  rhs_at_ = round_up(bytes.lhs);
  scratch_bytes_ = rhs_at_ + round_up(bytes.rhs);
}

void ContractPlan::Run(const void* lhs, const void* rhs, void* out, void* scratch, Executor* executor,
                       BlockEpilogue* block) const {
  ArrayRef left = lhs_, right = rhs_;
  MutableArrayRef to = out_;
  left.data = lhs;
  right.data = rhs;
  to.data = out;
  if (scratch_bytes_ == 0) return Contract(dims_, left, right, to, executor);
  const Groups a = GroupsOf(left, dims_.lhs_contracting, dims_.lhs_batch);
  const Groups b = GroupsOf(right, dims_.rhs_contracting, dims_.rhs_batch);
  char* const memory = static_cast<char*>(scratch);
  Array gathered;  // remains empty
  GemmArgs args = GemmArgs::Dense(batch_, m_, n_, k_, to.dtype, out);
  args.epilogue.block = block;
  RunProduct(*kernel_, {.lhs = OperandOf(left, a, gathered), .rhs = OperandOf(right, b, gathered)}, args,
             {memory, memory + rhs_at_}, executor);
}

}  // namespace aqt::kernels
