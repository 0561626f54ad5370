#include "aqt/quant/contraction/contract.h"

#include <cstdint>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/executor.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/gemm_f32.h"
#include "aqt/kernels/gemm_s8.h"
#include "aqt/kernels/operand.h"
#include "aqt/kernels/pack.h"
#include "aqt/kernels/target.h"
#include "aqt/quant/contraction/contract_s32.h"
#include "aqt/quant/contraction/packed_side.h"
#include "aqt/quant/contraction/product_types.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {
namespace {

// Writes the operand in the order [batch, free, contract] as elements of type T (float, or int8_t for integers).
template <class T>
void Gather(const ArrayRef& x, const LoopNest& batch, const LoopNest& free, const LoopNest& contract, bool is_lhs,
            T* out) {
  Shape shape;
  Strides strides;
  for (const LoopNest* nest : {&batch, &free, &contract}) {
    for (const LoopAxis& axis : *nest) {
      shape.push_back(axis.extent);
      strides.push_back(is_lhs ? axis.a_stride : axis.b_stride);
    }
  }
  const StridesSpan spans[] = {strides};
  const int64_t inner = InnerStride(strides);
  ForEachPiece(shape, spans, [&](const int64_t* offsets, int64_t n, int64_t linear) {
    if constexpr (std::is_same_v<T, float>) {
      LoadRow(x.dtype, x.data, offsets[0], inner, n, out + linear);
    } else {  // s2, s4 and s8 are one byte each
      const int8_t* in = static_cast<const int8_t*>(x.data) + offsets[0];
      for (int64_t i = 0; i < n; ++i) out[linear + i] = in[i * inner];
    }
  });
}

// The operand for the kernels: as it is, or gathered to [batch, rows, k] if it has more axes than they take.
template <class T>
kernels::Operand KernelOrGathered(const ArrayRef& x, Side side, const DotDims& dims, const DotNormalForm& form,
                                  Workspace& workspace) {
  if (x.shape.rank() <= kernels::AxisGroup::kMaxRank) return KernelOperand(x, side, dims);
  const bool lhs = side == Side::kLhs;
  const LoopNest& free = lhs ? form.lhs_free : form.rhs_free;
  const int64_t batch = NumIterations(form.batch), rows = NumIterations(free), k = NumIterations(form.contract);
  T* data = static_cast<T*>(workspace.Get(lhs ? Workspace::kLhsGathered : Workspace::kRhsGathered,
                                          batch * rows * k * static_cast<int64_t>(sizeof(T))));
  Gather(x, form.batch, free, form.contract, lhs, data);
  return kernels::Operand::Dense(data, std::is_same_v<T, float> ? DType::kF32 : DType::kS8, rows, k, batch);
}

// sums = lhs x rhs, dense, as s32 (T = int8_t) or f32 (T = float).
template <class T>
void Multiply(const kernels::GemmKernel& kernel, const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims,
              Workspace& workspace, Executor* executor, void* sums) {
  const DotNormalForm form = MakeDotNormalForm(dims, lhs.shape, lhs.strides, rhs.shape, rhs.strides);
  const kernels::Operand a = KernelOrGathered<T>(lhs, Side::kLhs, dims, form, workspace);
  const kernels::Operand b = KernelOrGathered<T>(rhs, Side::kRhs, dims, form, workspace);
  void* a_panels = workspace.Get(Workspace::kLhsPacked, PanelBytes(kernel.lhs, a));
  void* b_panels = workspace.Get(Workspace::kRhsPacked, PanelBytes(kernel.rhs, b));
  const bool subnormals_are_zero = std::is_same_v<T, float>;
  kernels::Pack(kernel.target, kernel.lhs, a, a_panels, executor, subnormals_are_zero);
  kernels::Pack(kernel.target, kernel.rhs, b, b_panels, executor, subnormals_are_zero);

  kernels::GemmArgs args;
  args.batch = a.batch.Count();
  args.m = a.rows.Count();
  args.n = b.rows.Count();
  args.k = a.k.Count();
  args.lhs = a_panels;
  args.rhs = b_panels;
  args.lhs_batch_bytes = kernel.lhs.PackedBytes(args.m, args.k);
  args.rhs_batch_bytes = kernel.rhs.PackedBytes(args.n, args.k);
  args.out = sums;
  args.out_dtype = std::is_same_v<T, float> ? DType::kF32 : DType::kS32;
  args.out_batch = kernels::AxisGroup::Of(args.batch, args.m * args.n);
  args.out_rows = kernels::AxisGroup::Of(args.m, args.n);
  args.out_cols = kernels::AxisGroup::Of(args.n, 1);
  kernels::RunGemm(kernel, args, executor);
}

// The operand of a product of floats: cast to the product's dtype if the rule says so and the cast could change it. The
// kernels do not take s32: it becomes f32.
ArrayRef FloatOperand(const ArrayRef& x, const ProductTypes& types, Workspace::Slot slot, Workspace& workspace) {
  const bool converts = types.converts_operands && !HoldsAllOf(types.product, x.dtype);
  const ArrayRef operand = converts ? CastIntoSlot(x, types.product, slot, workspace) : x;
  return operand.dtype == DType::kS32 ? CastIntoSlot(operand, DType::kF32, slot, workspace) : operand;
}

}  // namespace

ArrayRef CastIntoSlot(const ArrayRef& x, DType dtype, Workspace::Slot slot, Workspace& workspace) {
  const Aval aval{dtype, x.shape};
  const MutableArrayRef result(aval.dtype, aval.shape, workspace.Get(slot, aval.num_bytes()));
  AQT_CHECK(CastArray(x, result).ok());
  return result;
}

void Contract(const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims, const MutableArrayRef& out,
              Workspace& workspace, const Execution& runtime) {
  AQT_DCHECK(out.IsDense());
  const kernels::Target target = runtime.target.value_or(kernels::BestTarget());
  const kernels::GemmKernel& s8 = kernels::GemmS8(target);
  const int64_t n = out.shape.num_elements();
  if (out.dtype == DType::kS32 && (lhs.dtype == DType::kS32 || rhs.dtype == DType::kS32)) {
    return ContractS32(lhs, rhs, dims, out);
  }
  if (out.dtype == DType::kS32) return Multiply<int8_t>(s8, lhs, rhs, dims, workspace, runtime.executor, out.data);
  // Sums of four bytes each, then narrowed.
  if (IsByteInteger(out.dtype)) {
    int32_t* sums = static_cast<int32_t*>(workspace.Get(Workspace::kSums, n * 4));
    Multiply<int8_t>(s8, lhs, rhs, dims, workspace, runtime.executor, sums);
    const int unused_bits = 32 - BitWidth(out.dtype);
    int8_t* narrow = static_cast<int8_t*>(out.data);
    for (int64_t i = 0; i < n; ++i) {
      narrow[i] =
          static_cast<int8_t>(static_cast<int32_t>(static_cast<uint32_t>(sums[i]) << unused_bits) >> unused_bits);
    }
    return;
  }
  float* sums = static_cast<float*>(out.dtype == DType::kF32 ? out.data : workspace.Get(Workspace::kSums, n * 4));
  const ProductTypes types = ProductTypesOf(lhs.dtype, rhs.dtype, out.dtype);
  const ArrayRef a = FloatOperand(lhs, types, Workspace::kLhsConverted, workspace);
  const ArrayRef b = FloatOperand(rhs, types, Workspace::kRhsConverted, workspace);
  Multiply<float>(kernels::GemmF32(target), a, b, dims, workspace, runtime.executor, sums);
  FlushRow(DType::kF32, sums, n);
  if (types.rounds_to_bf16_first) RoundRow(DType::kBF16, sums, n);
  if (sums != out.data) StoreRow(out.dtype, sums, n, out.data, 0, 1);
}

}  // namespace aqt::internal
