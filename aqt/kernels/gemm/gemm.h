#ifndef AQT_KERNELS_GEMM_GEMM_H_
#define AQT_KERNELS_GEMM_GEMM_H_

// The matrix product of packed operands, common to all element types:
//   out[b, m, n] = epilogue(sum over k of lhs[b, m, k] * rhs[b, n, k])
// A caller that quantizes the lhs on each call and packs the rhs once:
//   const GemmKernel& kernel = ChooseGemm({}, BestTarget(), m);  // table.h
//   Pack(kernel.target, kernel.rhs, weights, rhs_panels, executor);
//   QuantizePack(kernel.target, kernel.lhs, {.src = x, .scale = x_scale, .panels = lhs_panels}, rule, executor);
//   RunGemm(kernel, problem, {.lhs = lhs_panels, .rhs = rhs_panels}, executor);

#include <cstdint>

#include "aqt/core/block_epilogue.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// The steps applied to a sum before it is stored. In this order, with each conversion and product rounded to nearest,
// ties to even:
//   1. convert to f32, then to sum_dtype;
//   2. multiply by the scale of lhs in f32, then convert to first_dtype;
//   3. multiply by the scale of rhs in f32, then convert to second_dtype;
//   4. convert to the output's dtype.
// A step whose scale is absent does nothing. A product and a sum are never fused into one rounding.
struct Epilogue {
  // lhs_scale[b * lhs_batch_stride + m * lhs_stride] is the scale of row m of the product, and rhs_scale[b *
  // rhs_batch_stride + n * rhs_stride] that of column n. Null if absent. Inner strides are 0 (one scale for all) or 1.
  const float* lhs_scale = nullptr;
  const float* rhs_scale = nullptr;
  int64_t lhs_stride = 1, lhs_batch_stride = 0;
  int64_t rhs_stride = 1, rhs_batch_stride = 0;
  // f32, bf16 or f16.
  DType sum_dtype = DType::kF32, first_dtype = DType::kF32, second_dtype = DType::kF32;
  // Step 3 precedes step 2. For a caller that swaps lhs and rhs so that the output is contiguous along columns.
  bool rhs_first = false;
  // Before step 1, after steps 2 and 3, and after an addition, a subnormal f32 becomes a zero of its sign (like XLA on
  // CPU).
  bool subnormals_are_zero = false;
  // Accumulate instead of step 4: out = out + value, rounded. The output is f32. Matrices of a batch may share an
  // output; they are accumulated in order.
  bool adds = false;
  // Null, or run on each block of the output after it is stored; GemmProblem::HasBlocks must hold. block_offset is the
  // offset of this output within the full output that the blocks index.
  BlockEpilogue* block = nullptr;
  int64_t block_offset = 0;

  // Whether all steps are in f32. Tiles then apply them in registers.
  bool IsF32() const { return sum_dtype == DType::kF32 && first_dtype == DType::kF32 && second_dtype == DType::kF32; }
};

// Where a product is stored: element (b, m, n) at data + batch.Offset(b) + rows.Offset(m) + cols.Offset(n) elements.
// Any strides that address each element once (but see Epilogue::adds); fastest if columns have stride 1.
struct GemmOutput {
  void* data = nullptr;
  DType dtype = DType::kF32;  // s32 (the sums themselves, no epilogue; s8 kernels only), f32, bf16 or f16
  AxisGroup batch = {}, rows = {}, cols = {};

  // A dense row-major matrix [m, n], or a batch of them.
  static GemmOutput Dense(void* data, DType dtype, int64_t m, int64_t n, int64_t batch = 1) {
    return {data, dtype, AxisGroup::Of(batch, m * n), AxisGroup::Of(m, n), AxisGroup::Of(n, 1)};
  }
  // Whether it consists of rows of contiguous elements.
  bool HasRows() const { return rows.rank <= 1 && cols.rank <= 1 && cols.InnerStride() == 1; }
};

// One description of a product, passed by reference from its plan down to the tiles.
struct GemmProblem {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  // [batch, m, k] and [batch, n, k]. An operand that is packed already (GemmPanels) is not read.
  Operand lhs = {}, rhs = {};
  GemmOutput out = {};
  Epilogue epilogue = {};
  bool lhs_rows_overlap = false;     // as windows of a convolution do
  bool subnormals_are_zero = false;  // of operands, when they are packed, as Pack says

  // With the extents of its operands.
  static GemmProblem Of(const Operand& lhs, const Operand& rhs, const GemmOutput& out) {
    return {.batch = lhs.batch.Count(),
            .m = lhs.rows.Count(),
            .n = rhs.rows.Count(),
            .k = lhs.k.Count(),
            .lhs = lhs,
            .rhs = rhs,
            .out = out};
  }
  // With a dense output, and without operands.
  static GemmProblem Dense(int64_t batch, int64_t m, int64_t n, int64_t k, DType out_dtype, void* out) {
    return {.batch = batch, .m = m, .n = n, .k = k, .out = GemmOutput::Dense(out, out_dtype, m, n, batch)};
  }
  // Makes it out^T = rhs x lhs, which has the same bits.
  void ExchangeOperands();
  // Whether Epilogue::block can run.
  bool HasBlocks() const { return out.HasRows() && !epilogue.adds; }
};

// An lhs whose rows overlap, like the windows of a convolution. Each line of 64 bytes is stored once instead of once
// per row that contains it (by_lines.h). Step i of 16 groups of row m is the line at
//   GemmPanels::lhs + 64 * (positions.Offset(m) - first) + steps[i]
// The rows of a run, the last axis, have their lines side by side, as in a panel. A tile never crosses the end of a
// run.
struct LhsLines {
  AxisGroup positions;  // its last axis has stride 1
  int64_t first = 0;
  const int32_t* steps = nullptr;  // in bytes
};

// Memory that will be read after a product: `rows` rows of row_bytes bytes, `pitch` bytes apart. A tile prefetches at
// most `most_lines` lines of it; more would stall the multiplies.
struct RowsAhead {
  const char* data = nullptr;
  int64_t rows = 0, row_bytes = 0, pitch = 0;
  int64_t most_lines = 32;
};

// Packed operands of a product, or of a part of it, in the formats of a kernel.
struct GemmPanels {
  const void* lhs = nullptr;
  const void* rhs = nullptr;
  // From a matrix of the batch to the next; 0 if all share one.
  int64_t lhs_batch_bytes = 0, rhs_batch_bytes = 0;
  const LhsLines* lhs_lines = nullptr;  // if not null, `lhs` holds lines instead, as a block of by_lines.h may
  RowsAhead ahead = {};                 // prefetched into L2 by a block
};

// The type in which a kernel sums products.
enum class GemmSums : uint8_t { kS32, kF32 };

// One implementation of the product. All kernels are constants with static lifetime.
struct GemmKernel {
  const char* name;  // "s8_avx512_vnni", "f32_avx2", "emulated_s8_avx2", ...
  GemmSums sums;
  Target target;  // the capabilities it needs, and the target to pack for
  PanelFormat lhs, rhs;
  bool emulated;  // plain C++ with the arithmetic of another kernel, for tests
  // Cost model: products per cycle of one core under ideal conditions. Rows beyond the last multiple of row_unit cost
  // as much as row_unit rows.
  int32_t products_per_cycle, row_unit;
  // The largest unit of work: in rows, a multiple of lhs.width, and in bytes of lhs panels (if rows of this k fit).
  int32_t block_rows, block_bytes;
  // Computes one unit of work: rows [m0, m1) and columns [n0, n1) of matrix b; m0 and n0 are multiples of the panel
  // widths.
  void (*block)(const GemmProblem& problem, const GemmPanels& panels, int64_t b, int64_t m0, int64_t m1, int64_t n0,
                int64_t n1);
  // For kernels that can sum in f32 in memory, one block of k at a time: the number of groups of k in a block, a
  // multiple of 16, and the function that adds one block to the sums of `rows` rows and a panel of columns. The panels
  // hold just these groups; those of the lhs are lhs_panel_bytes apart. The sum of row r and column j is sums[r *
  // rhs.width + j]; if `first`, it is set instead of added to. `sums` has room for whole panels of rows. The function
  // may prefetch the two RowsAhead into L2. Null if the kernel does not support this.
  int32_t block_groups = 0;
  void (*add_block)(const void* lhs, int64_t lhs_panel_bytes, const void* rhs, int64_t groups, int64_t rows, bool first,
                    float* sums, const RowsAhead& columns_ahead, const RowsAhead& rows_ahead) = nullptr;
  bool reads_lines = false;  // whether `block` takes GemmPanels::lhs_lines
};

// Runs the kernel on a problem whose operands are both packed, split over the executor's threads if that is worth
// waking them. Sums of integers are the same for any split; floats are summed in the order of k, whatever m, n, the
// batch and the split are.
void RunGemm(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& panels, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_GEMM_H_
