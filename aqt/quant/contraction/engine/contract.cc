#include "aqt/quant/contraction/engine/contract.h"

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/contraction.h"
#include "aqt/kernels/digits/digits.h"
#include "aqt/kernels/gemm/product.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {
namespace {

using kernels::Extent;

// ---- dtypes

// Greatest exponent, bits of precision, least exponent (of the smallest subnormal; 0 for integers).
struct Range {
  int max_exponent, precision, min_exponent;
};

Range RangeOf(DType dtype) {
  switch (dtype) {
    case DType::kE4M3FN: return {8, 4, -9};
    case DType::kE5M2: return {15, 3, -16};
    case DType::kF16: return {15, 11, -24};
    case DType::kBF16: return {127, 8, -133};
    case DType::kF32: return {127, 24, -149};
    default: break;
  }
  AQT_DCHECK(IsInteger(dtype));
  // -2^(bits - 1) is a power of two.
  return {BitWidth(dtype) - 1, BitWidth(dtype) - 1, 0};
}

DType Larger(DType a, DType b) {
  const auto rank = [](DType dtype) {
    const Range range = RangeOf(dtype);
    return std::make_tuple(IsFloat(dtype), range.max_exponent, range.precision);
  };
  return rank(a) >= rank(b) ? a : b;
}

ArrayRef CastIntoSlot(const ArrayRef& x, DType dtype, ScratchSlot slot, Workspace& workspace) {
  const Aval aval{dtype, x.shape};
  const MutableArrayRef result(aval.dtype, aval.shape, workspace.Get(slot, aval.num_bytes()));
  AQT_CHECK(CastArray(x, result).ok());
  return result;
}

// The dtype that an operand of a float product is converted to; null if it is not converted. The kernels do not take
// s32, so it becomes f32.
std::optional<DType> ConvertedDType(const Contraction& contraction, DType dtype) {
  const std::optional<DType> to = contraction.converts_to;
  if (to.has_value() && !HoldsAllOf(*to, dtype)) return to;
  if (dtype == DType::kS32) return DType::kF32;
  return std::nullopt;
}

// The operand for the kernels: a view, or a copy in the order [batch, rows, k] if it has more axes than they take.
kernels::Operand KernelOrGathered(const ArrayRef& x, Side side, const OperandAxes& axes, Workspace& workspace) {
  if (!kernels::HasTooManyAxes(x.shape)) return kernels::OperandOf(x, axes);
  const ScratchSlot slot = OfSide(side == Side::kLhs, ScratchSlot::kLhsGathered);
  return kernels::GatheredOperand(x, axes, workspace.Get(slot, x.aval().num_bytes()));
}

// The product into `out`, without operands: a call may have packed ones.
kernels::GemmProblem ProblemOf(const Contraction& contraction, const Shape& lhs, const Shape& rhs,
                               const kernels::GemmOutput& out, const kernels::Epilogue& epilogue) {
  kernels::GemmProblem problem = {.batch = Extent(lhs, contraction.lhs.batch),
                                  .m = Extent(lhs, contraction.lhs.rows),
                                  .n = Extent(rhs, contraction.rhs.rows),
                                  .k = Extent(lhs, contraction.lhs.k),
                                  .out = out,
                                  .epilogue = epilogue,
                                  .subnormals_are_zero = true};
  if (!problem.HasBlocks()) problem.epilogue.block = nullptr;
  return problem;
}

// ---- a float lhs and an rhs of integers on digits

kernels::DigitFormat DigitFormatOf(const Contraction& contraction, const Shape& rhs, const OperandAxes& axes) {
  return {.bits = contraction.digit_bits,
          .n = Extent(rhs, axes.rows),
          .k = Extent(rhs, axes.k),
          .scale_group = contraction.scale_group};
}

// Scales in the order [group, batch, column], or row instead of column.
kernels::DigitScales GroupScales(const float* scales, int64_t batch, int64_t n) {
  return {.data = scales, .batch_stride = n, .group_stride = batch * n};
}

// `rhs_panels` is null if the rhs is not packed yet.
void RunDigits(const Contraction& contraction, kernels::GemmProblem& problem, const ArrayRef& lhs, const ArrayRef& rhs,
               const void* rhs_panels, Workspace& workspace, const Runtime& runtime) {
  const kernels::DigitFormat format = DigitFormatOf(contraction, rhs.shape, contraction.rhs);
  const bool integers = contraction.sums_are_integers();
  kernels::Epilogue& epilogue = problem.epilogue;
  problem.lhs = KernelOrGathered(lhs, Side::kLhs, contraction.lhs, workspace);
  if (rhs_panels == nullptr) {
    void* panels = workspace.Get(ScratchSlot::kRhsPacked, problem.batch * format.PackedBytes());
    CountPack(Side::kRhs, runtime);
    kernels::PackDigitWeights(format, KernelOrGathered(rhs, Side::kRhs, contraction.rhs, workspace),
                              GroupScales(epilogue.rhs_scale, problem.batch, format.n), panels, runtime.executor);
    rhs_panels = panels;
  }
  CountPack(Side::kLhs, runtime);
  kernels::DigitArgs args = {.format = format, .rhs = rhs_panels, .rhs_batch_bytes = format.PackedBytes()};
  args.scratch = workspace.Get(ScratchSlot::kLhsPacked, kernels::DigitScratchBytes(contraction.target, format,
                                                                                   problem.batch, problem.m, integers));
  // These scales are applied with the groups.
  if (format.has_scales()) epilogue.rhs_scale = nullptr;
  if (integers) {
    args.lhs_scales = GroupScales(epilogue.lhs_scale, problem.batch, problem.m);
    epilogue.lhs_scale = nullptr;
  }
  kernels::MultiplyDigits(contraction.target, problem, args, runtime.executor);
}

// The matrix kernel for an rhs that is packed, or not.
const kernels::GemmKernel& KernelFor(const Contraction& contraction, const PackedOperands& packed) {
  return packed.rhs != nullptr ? *contraction.gemm_of_packed_rhs : *contraction.gemm;
}

// The product of operands as the kernels take them, unless windows slide over one.
void RunDense(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs, const PackedOperands& packed,
              const kernels::Epilogue& epilogue, const kernels::GemmOutput& out, Workspace& workspace,
              const Runtime& runtime) {
  kernels::GemmProblem problem = ProblemOf(contraction, lhs.shape, rhs.shape, out, epilogue);
  if (contraction.on_digits()) return RunDigits(contraction, problem, lhs, rhs, packed.rhs, workspace, runtime);
  if (packed.lhs == nullptr) problem.lhs = KernelOrGathered(lhs, Side::kLhs, contraction.lhs, workspace);
  if (packed.rhs == nullptr) problem.rhs = KernelOrGathered(rhs, Side::kRhs, contraction.rhs, workspace);
  kernels::GemmPanels panels = {.lhs = packed.lhs, .rhs = packed.rhs};
  if (contraction.exchanges_operands) {
    problem.ExchangeOperands();
    std::swap(panels.lhs, panels.rhs);
  }
  PackAndMultiply(KernelFor(contraction, packed), problem, panels, workspace, runtime);
}

// The same with windows.
void RunWindows(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs, const PackedOperands& packed,
                const kernels::Epilogue& epilogue, const MutableArrayRef& out, Workspace& workspace,
                const Runtime& runtime) {
  const WindowScales scales{.example = epilogue.lhs_scale, .channel = epilogue.rhs_scale, .epilogue = epilogue};
  ContractWindows(KernelFor(contraction, packed), *contraction.windows, lhs, rhs, packed.rhs, out, scales, workspace,
                  runtime);
}

// The sums, dense.
void Sum(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs, const PackedOperands& packed,
         const kernels::Epilogue& epilogue, const MutableArrayRef& sums, Workspace& workspace, const Runtime& runtime) {
  if (contraction.windows.has_value()) {
    return RunWindows(contraction, lhs, rhs, packed, epilogue, sums, workspace, runtime);
  }
  const auto out =
      kernels::GemmOutput::Dense(sums.data, sums.dtype, Extent(lhs.shape, contraction.lhs.rows),
                                 Extent(rhs.shape, contraction.rhs.rows), Extent(lhs.shape, contraction.lhs.batch));
  RunDense(contraction, lhs, rhs, packed, epilogue, out, workspace, runtime);
}

// An operand in the dtype that the kernels take. A packed operand has it already; `panels` is null otherwise.
ArrayRef Converted(const Contraction& contraction, Side side, const ArrayRef& x, const void* panels,
                   Workspace& workspace) {
  const DType dtype = PackedDType(contraction, x.dtype);
  if (panels != nullptr || dtype == x.dtype) return x;
  return CastIntoSlot(x, dtype, OfSide(side == Side::kLhs, ScratchSlot::kLhsConverted), workspace);
}

// Sets the matrix kernels for a product of operands with these dtypes and this number of rows.
void SetKernels(DType lhs, DType rhs, int64_t rows, kernels::Target target, bool adds_one_by_one,
                Contraction& contraction) {
  kernels::GemmTypes types{.sums = contraction.sums_are_integers() ? kernels::GemmSums::kS32 : kernels::GemmSums::kF32,
                           .lhs = kernels::NarrowestElement(PackedDType(contraction, lhs)),
                           .rhs = kernels::NarrowestElement(PackedDType(contraction, rhs))};
  if (adds_one_by_one && types.sums == kernels::GemmSums::kF32) types.lhs = kernels::PanelFormat::Element::kF32;
  contraction.gemm = &kernels::ChooseGemm(types, target, rows);
  types.rhs_is_packed_ahead = true;
  contraction.gemm_of_packed_rhs = &kernels::ChooseGemm(types, target, rows);
}

}  // namespace

ProductTypes ProductTypesOf(DType lhs, DType rhs, std::optional<DType> accumulator) {
  ProductTypes types;
  types.product = accumulator.value_or(Larger(lhs, rhs));
  if (!IsFloat(types.product)) return types;
  types.converts_operands = lhs != rhs || (lhs == DType::kF16 && types.product == DType::kBF16);
  if (lhs == DType::kBF16 && rhs == DType::kBF16 && types.product == DType::kF16) types.rounds_first_to = DType::kBF16;
  if (SizeOf(types.product) == 1) types.rounds_first_to = DType::kF16;
  return types;
}

bool HoldsAllOf(DType to, DType from) {
  const Range wide = RangeOf(to), narrow = RangeOf(from);
  return wide.max_exponent >= narrow.max_exponent && wide.precision >= narrow.precision &&
         wide.min_exponent <= narrow.min_exponent;
}

Contraction MakeContraction(const DotDims& dims, const Aval& lhs, const Aval& rhs, DType product,
                            kernels::Target target, const ContractionOptions& options) {
  const ProductTypes types = ProductTypesOf(lhs.dtype, rhs.dtype, product);
  Contraction contraction{.dims = dims,
                          .lhs = OperandAxesOf(dims, Side::kLhs, lhs.shape.rank()),
                          .rhs = OperandAxesOf(dims, Side::kRhs, rhs.shape.rank()),
                          .product = product,
                          .rounds_first_to = types.rounds_first_to,
                          .exchanges_operands = options.exchanges_operands};
  if (types.converts_operands) contraction.converts_to = product;
  if (options.weight_only == WeightOnly::kDigits && MeetOnDigits(lhs.dtype, rhs.dtype, product)) {
    contraction.digit_bits = BitWidth(rhs.dtype);
    contraction.exchanges_operands = false;  // digits store any layout
  }
  contraction.target = target;
  const bool wide = lhs.dtype == DType::kS32 || rhs.dtype == DType::kS32;
  if (!contraction.sums_are_integers() || !wide) {
    const int64_t m = Extent(lhs.shape, contraction.lhs.rows), n = Extent(rhs.shape, contraction.rhs.rows);
    const bool exchanges = contraction.exchanges_operands;
    SetKernels(exchanges ? rhs.dtype : lhs.dtype, exchanges ? lhs.dtype : rhs.dtype, exchanges ? n : m, target,
               options.adds_one_by_one, contraction);
  }
  return contraction;
}

bool MeetInBf16(DType lhs, DType rhs) {
  const auto fits = [](DType dtype) { return kernels::NarrowestElement(dtype) != kernels::PanelFormat::Element::kF32; };
  return fits(lhs) && fits(rhs);
}

bool MeetOnDigits(DType lhs, DType rhs, DType product) {
  return IsArithmeticFloat(lhs) && IsByteInteger(rhs) && IsArithmeticFloat(product);
}

Contraction MakeWindowContraction(const Windows& windows, DType dtype, DType lhs, DType rhs, DType product,
                                  kernels::Target target) {
  Contraction contraction{.windows = windows, .product = product};
  if (!contraction.sums_are_integers()) contraction.converts_to = dtype;
  SetKernels(lhs, rhs, RowsOf(windows), target, /*adds_one_by_one=*/false, contraction);
  return contraction;
}

DType PackedDType(const Contraction& contraction, DType operand) {
  return contraction.sums_are_integers() ? operand : ConvertedDType(contraction, operand).value_or(operand);
}

const kernels::PanelFormat& PackedFormat(const Contraction& contraction, Side side) {
  return side == Side::kLhs ? contraction.gemm->lhs : contraction.gemm_of_packed_rhs->rhs;
}

std::shared_ptr<const void> PackAhead(const Contraction& contraction, Side side, const ArrayRef& x,
                                      const OperandAxes& axes, const float* group_scales, const Runtime& runtime) {
  Workspace workspace(ScratchOf(runtime));
  const bool is_lhs = side == Side::kLhs;
  const ArrayRef converted = Converted(contraction, side, x, /*panels=*/nullptr, workspace);
  if (side == Side::kRhs && contraction.on_digits()) {
    const kernels::Operand integers = KernelOrGathered(x, side, axes, workspace);
    std::shared_ptr<void> panels = AllocateUninitialized(PackedBytes(contraction, side, x.shape, axes));
    CountPack(side, runtime);
    const kernels::DigitFormat format = DigitFormatOf(contraction, x.shape, axes);
    kernels::PackDigitWeights(format, integers, GroupScales(group_scales, integers.batch.Count(), format.n),
                              panels.get(), runtime.executor);
    return panels;
  }
  const kernels::Operand operand = contraction.windows.has_value() ? WindowKernel(contraction.windows->conv, converted)
                                                                   : KernelOrGathered(converted, side, axes, workspace);
  const kernels::GemmKernel& kernel = is_lhs ? *contraction.gemm : *contraction.gemm_of_packed_rhs;
  std::shared_ptr<void> panels = AllocateUninitialized(PackedBytes(contraction, side, x.shape, axes));
  PackOperand(kernel, side, operand, panels.get(), runtime);
  return panels;
}

int64_t PackedBytes(const Contraction& contraction, Side side, const Shape& x, const OperandAxes& axes) {
  if (side == Side::kRhs && contraction.on_digits()) {
    return Extent(x, axes.batch) * DigitFormatOf(contraction, x, axes).PackedBytes();
  }
  const kernels::PanelFormat& format = PackedFormat(contraction, side);
  if (!contraction.windows.has_value()) return PanelBytes(format, x, axes);
  const int64_t groups = contraction.windows->conv.groups;
  return groups * format.PackedBytes(Extent(x, axes.rows) / groups, Extent(x, axes.k));
}

void Contract(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out,
              Workspace& workspace, const Runtime& runtime, const PackedOperands& packed) {
  AQT_DCHECK(out.IsDense() && out.dtype == contraction.product);
  if (out.shape.num_elements() == 0) return;  // an operand without elements may have 2^40 rows
  if (contraction.gemm == nullptr) return kernels::Contract(contraction.dims, lhs, rhs, out);
  const int64_t n = out.shape.num_elements();
  if (out.dtype == DType::kS32) return Sum(contraction, lhs, rhs, packed, {}, out, workspace, runtime);
  // Sums take four bytes each and are then narrowed.
  if (contraction.sums_are_integers()) {
    int32_t* sums = static_cast<int32_t*>(workspace.Get(ScratchSlot::kSums, n * 4));
    Sum(contraction, lhs, rhs, packed, {}, MutableArrayRef(DType::kS32, out.shape, sums), workspace, runtime);
    const int unused_bits = 32 - BitWidth(out.dtype);
    int8_t* narrow = static_cast<int8_t*>(out.data);
    for (int64_t i = 0; i < n; ++i) {
      narrow[i] =
          static_cast<int8_t>(static_cast<int32_t>(static_cast<uint32_t>(sums[i]) << unused_bits) >> unused_bits);
    }
    return;
  }
  float* sums = static_cast<float*>(out.dtype == DType::kF32 ? out.data : workspace.Get(ScratchSlot::kSums, n * 4));
  Sum(contraction, Converted(contraction, Side::kLhs, lhs, packed.lhs, workspace),
      Converted(contraction, Side::kRhs, rhs, packed.rhs, workspace), packed, {.subnormals_are_zero = true},
      MutableArrayRef(DType::kF32, out.shape, sums), workspace, runtime);
  if (contraction.rounds_first_to.has_value()) RoundRow(*contraction.rounds_first_to, sums, n);
  if (sums != out.data) StoreRow(out.dtype, sums, n, out.data, 0, 1);
}

void ContractScaled(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs,
                    const kernels::Epilogue& epilogue, const MutableArrayRef& out, Workspace& workspace,
                    const Runtime& runtime, const PackedOperands& packed) {
  const ArrayRef left = Converted(contraction, Side::kLhs, lhs, packed.lhs, workspace);
  const ArrayRef right = Converted(contraction, Side::kRhs, rhs, packed.rhs, workspace);
  if (contraction.windows.has_value()) {
    return RunWindows(contraction, left, right, packed, epilogue, out, workspace, runtime);
  }
  RunDense(contraction, left, right, packed, epilogue, kernels::OutputOf(out, contraction.lhs), workspace, runtime);
}

void AddContractSlots(const Contraction& contraction, const Aval& lhs, const Aval& rhs, int64_t product_elements,
                      SlotSizes& sizes) {
  if (contraction.gemm == nullptr || product_elements == 0) return;
  if (contraction.product != (contraction.sums_are_integers() ? DType::kS32 : DType::kF32)) {
    sizes.Add(ScratchSlot::kSums, product_elements * 4);
  }
  AddContractScaledSlots(contraction, lhs, rhs, /*has_lhs_scale=*/false, sizes);
}

void AddContractScaledSlots(const Contraction& contraction, const Aval& lhs, const Aval& rhs, bool has_lhs_scale,
                            SlotSizes& sizes) {
  const bool integers = contraction.sums_are_integers();
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
    if (kernels::HasTooManyAxes(x.shape)) {
      sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsGathered), x.shape.num_elements() * SizeOf(dtype.value_or(x.dtype)));
    }
  }
  if (!contraction.windows.has_value() && !contraction.on_digits()) {
    const int64_t batch = Extent(lhs.shape, contraction.lhs.batch), k = Extent(lhs.shape, contraction.lhs.k);
    int64_t m = Extent(lhs.shape, contraction.lhs.rows), n = Extent(rhs.shape, contraction.rhs.rows);
    if (contraction.exchanges_operands) std::swap(m, n);
    const kernels::ProductBytes bytes = kernels::ProductBytesOf(*contraction.gemm, batch, m, n, k);
    sizes.Add(ScratchSlot::kLhsPacked, bytes.lhs);
    sizes.Add(ScratchSlot::kRhsPacked, bytes.rhs);
  }
  if (contraction.windows.has_value()) {
    AddWindowSlots(*contraction.gemm, *contraction.windows, slid, /*scaled=*/has_lhs_scale, sizes);
  }
  if (contraction.on_digits()) {
    sizes.Add(ScratchSlot::kRhsPacked, PackedBytes(contraction, Side::kRhs, rhs.shape, contraction.rhs));
    sizes.Add(ScratchSlot::kLhsPacked,
              kernels::DigitScratchBytes(contraction.target, DigitFormatOf(contraction, rhs.shape, contraction.rhs),
                                         Extent(lhs.shape, contraction.lhs.batch),
                                         Extent(lhs.shape, contraction.lhs.rows), contraction.sums_are_integers()));
  }
}

}  // namespace aqt::internal
