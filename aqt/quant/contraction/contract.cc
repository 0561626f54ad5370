#include "aqt/quant/contraction/contract.h"

#include <cstdint>

#include "aqt/core/check.h"
#include "aqt/kernels/gemm_f32.h"
#include "aqt/kernels/gemm_s8.h"
#include "aqt/kernels/operand.h"
#include "aqt/quant/contraction/contract_s32.h"
#include "aqt/quant/contraction/gemm_call.h"
#include "aqt/quant/contraction/product_types.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {
namespace {

ArrayRef CastIntoSlot(const ArrayRef& x, DType dtype, ScratchSlot slot, Workspace& workspace) {
  const Aval aval{dtype, x.shape};
  const MutableArrayRef result(aval.dtype, aval.shape, workspace.Get(slot, aval.num_bytes()));
  AQT_CHECK(CastArray(x, result).ok());
  return result;
}

// The dtypes that an operand of a product of floats is converted to, one after the other; null where it is not. The
// kernels do not take s32: it becomes f32.
std::optional<DType> ConvertedDType(const Contraction& contraction, DType dtype) {
  const std::optional<DType> to = contraction.converts_to;
  if (to.has_value() && !HoldsAllOf(*to, dtype)) return to;
  if (dtype == DType::kS32) return DType::kF32;
  return std::nullopt;
}

bool HasTooManyAxes(const Shape& shape) { return shape.rank() > kernels::AxisGroup::kMaxRank; }

// The operand for the kernels: as it is, or copied in the order [batch, rows, k] if it has more axes than they take.
kernels::Operand KernelOrGathered(const ArrayRef& x, Side side, const OperandAxes& axes, Workspace& workspace) {
  if (!HasTooManyAxes(x.shape)) return KernelOperand(x, axes);
  ArrayRef view(x.dtype, {}, {}, x.data);
  int64_t extents[3] = {1, 1, 1};
  const Axes* groups[] = {&axes.batch, &axes.rows, &axes.k};
  for (int i = 0; i < 3; ++i) {
    for (const int64_t axis : *groups[i]) {
      view.shape.push_back(x.shape[axis]);
      view.strides.push_back(x.strides[axis]);
      extents[i] *= x.shape[axis];
    }
  }
  const MutableArrayRef gathered(
      x.dtype, view.shape, workspace.Get(OfSide(side == Side::kLhs, ScratchSlot::kLhsGathered), x.aval().num_bytes()));
  AQT_CHECK(CopyArray(view, gathered).ok());
  return kernels::Operand::Dense(gathered.data, x.dtype, extents[1], extents[2], extents[0]);
}

// The sums themselves, dense.
void Sum(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs, DType dtype, const Shape& shape,
         void* sums, Workspace& workspace, Executor* executor) {
  const MutableArrayRef out(dtype, shape, sums);
  if (contraction.windows.has_value()) {
    return ContractWindows(*contraction.gemm, *contraction.windows, lhs, rhs, out, {}, workspace, executor);
  }
  GemmCall call;
  call.lhs = KernelOrGathered(lhs, Side::kLhs, contraction.lhs, workspace);
  call.rhs = KernelOrGathered(rhs, Side::kRhs, contraction.rhs, workspace);
  call.out = sums;
  call.out_dtype = dtype;
  const int64_t batch = call.lhs.batch.Count(), m = call.lhs.rows.Count(), n = call.rhs.rows.Count();
  call.out_axes = {kernels::AxisGroup::Of(batch, m * n), kernels::AxisGroup::Of(m, n), kernels::AxisGroup::Of(n, 1)};
  RunGemmCall(*contraction.gemm, call, workspace, executor);
}

}  // namespace

Contraction MakeContraction(const DotDims& dims, const Aval& lhs, const Aval& rhs, DType product,
                            kernels::Target target) {
  const ProductTypes types = ProductTypesOf(lhs.dtype, rhs.dtype, product);
  Contraction contraction{.dims = dims,
                          .lhs = OperandAxesOf(dims, Side::kLhs, lhs.shape.rank()),
                          .rhs = OperandAxesOf(dims, Side::kRhs, rhs.shape.rank()),
                          .product = product,
                          .rounds_to_bf16_first = types.rounds_to_bf16_first};
  if (types.converts_operands) contraction.converts_to = product;
  const bool wide = lhs.dtype == DType::kS32 || rhs.dtype == DType::kS32;
  if (!contraction.sums_are_integers()) {
    contraction.gemm = &kernels::GemmF32(target);
  } else if (!wide) {
    contraction.gemm = &kernels::GemmS8(target);
  }
  return contraction;
}

Contraction MakeWindowContraction(const Windows& windows, DType dtype, DType product, kernels::Target target) {
  Contraction contraction{.windows = windows, .product = product};
  if (contraction.sums_are_integers()) {
    contraction.gemm = &kernels::GemmS8(target);
  } else {
    contraction.converts_to = dtype;
    contraction.gemm = &kernels::GemmF32(target);
  }
  return contraction;
}

void Contract(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out,
              Workspace& workspace, Executor* executor) {
  AQT_DCHECK(out.IsDense() && out.dtype == contraction.product);
  if (contraction.gemm == nullptr) return ContractS32(lhs, rhs, contraction.dims, out);
  const int64_t n = out.shape.num_elements();
  if (out.dtype == DType::kS32) {
    return Sum(contraction, lhs, rhs, DType::kS32, out.shape, out.data, workspace, executor);
  }
  // Sums of four bytes each, then narrowed.
  if (contraction.sums_are_integers()) {
    int32_t* sums = static_cast<int32_t*>(workspace.Get(ScratchSlot::kSums, n * 4));
    Sum(contraction, lhs, rhs, DType::kS32, out.shape, sums, workspace, executor);
    const int unused_bits = 32 - BitWidth(out.dtype);
    int8_t* narrow = static_cast<int8_t*>(out.data);
    for (int64_t i = 0; i < n; ++i) {
      narrow[i] =
          static_cast<int8_t>(static_cast<int32_t>(static_cast<uint32_t>(sums[i]) << unused_bits) >> unused_bits);
    }
    return;
  }
  const auto converted = [&](const ArrayRef& x, ScratchSlot slot) {
    const std::optional<DType> dtype = ConvertedDType(contraction, x.dtype);
    return dtype.has_value() ? CastIntoSlot(x, *dtype, slot, workspace) : x;
  };
  float* sums = static_cast<float*>(out.dtype == DType::kF32 ? out.data : workspace.Get(ScratchSlot::kSums, n * 4));
  Sum(contraction, converted(lhs, ScratchSlot::kLhsConverted), converted(rhs, ScratchSlot::kRhsConverted), DType::kF32,
      out.shape, sums, workspace, executor);
  FlushRow(DType::kF32, sums, n);
  if (contraction.rounds_to_bf16_first) RoundRow(DType::kBF16, sums, n);
  if (sums != out.data) StoreRow(out.dtype, sums, n, out.data, 0, 1);
}

void AddContractSlots(const Contraction& contraction, const Aval& lhs, const Aval& rhs, int64_t product_elements,
                      SlotSizes& sizes) {
  if (contraction.gemm == nullptr) return;
  const bool integers = contraction.sums_are_integers();
  if (contraction.product != (integers ? DType::kS32 : DType::kF32))
    sizes.Add(ScratchSlot::kSums, product_elements * 4);
  DType slid = DType::kF32;
  for (const Side side : kSides) {
    const bool is_lhs = side == Side::kLhs;
    const Aval& x = is_lhs ? lhs : rhs;
    const std::optional<DType> dtype = integers ? std::nullopt : ConvertedDType(contraction, x.dtype);
    if (dtype.has_value()) {
      sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsConverted), x.shape.num_elements() * SizeOf(*dtype));
    }
    if (contraction.windows.has_value()) {
      if (is_lhs == (contraction.windows->pass != Pass::kDrhs)) slid = dtype.value_or(x.dtype);
      continue;
    }
    if (HasTooManyAxes(x.shape)) {
      sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsGathered), x.shape.num_elements() * SizeOf(dtype.value_or(x.dtype)));
    }
    sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsPacked),
              PanelBytes(is_lhs ? contraction.gemm->lhs : contraction.gemm->rhs, x.shape,
                         is_lhs ? contraction.lhs : contraction.rhs));
  }
  if (contraction.windows.has_value()) {
    AddWindowSlots(*contraction.gemm, *contraction.windows, slid, /*scaled=*/false, sizes);
  }
}

}  // namespace aqt::internal
