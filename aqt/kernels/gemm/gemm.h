#ifndef AQT_KERNELS_GEMM_GEMM_H_
#define AQT_KERNELS_GEMM_GEMM_H_

// The matrix product of packed operands, common to all element types:
//   out[b, m, n] = epilogue(sum over k of lhs[b, m, k] * rhs[b, n, k])
// A caller that quantizes the lhs in each call and packs the rhs once:
//   const GemmKernel& kernel = ChooseGemm({}, BestTarget(), m);  // gemm_table.h
//   Pack(kernel.target, kernel.rhs, weights, rhs_panels, executor);
//   QuantizePack(kernel.target, kernel.lhs, {.src = x, .scale = x_scale, .panels = lhs_panels}, rule, executor);
//   RunGemm(kernel, args, executor);

#include <cstdint>

#include "aqt/core/block_epilogue.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// What happens to a sum before it is stored. In this order, each conversion and product rounded to nearest, ties to
// even:
//   1. convert to f32, then to sum_dtype;
//   2. multiply by the scale of lhs in f32, then convert to first_dtype;
//   3. multiply by the scale of rhs in f32, then convert to second_dtype;
//   4. convert to the output's dtype.
// A step whose scale is absent does nothing. A product and a sum are never fused into one rounding.
struct Epilogue {
  // lhs_scale[b * lhs_batch_stride + m * lhs_stride] is the scale of a row of the product, rhs_scale[b *
  // rhs_batch_stride + n * rhs_stride] that of a column. Null if absent. Inner strides are 0 (one scale for all) or 1.
  const float* lhs_scale = nullptr;
  const float* rhs_scale = nullptr;
  int64_t lhs_stride = 1, lhs_batch_stride = 0;
  int64_t rhs_stride = 1, rhs_batch_stride = 0;
  // f32, bf16 or f16.
  DType sum_dtype = DType::kF32, first_dtype = DType::kF32, second_dtype = DType::kF32;
  // Step 3 comes before step 2. For a caller who exchanges lhs and rhs, so that the output is contiguous along columns.
  bool rhs_first = false;
  // Before step 1, after steps 2 and 3, and after an addition, a subnormal f32 becomes a zero with its sign (like XLA
  // on CPU).
  bool subnormals_are_zero = false;
  // Instead of step 4: out = out + value, rounded. The output is f32. Matrices of a batch may have the same output:
  // they are added in order.
  bool adds = false;
  // Null, or run on each block of the output when it is stored; GemmArgs::HasBlocks must hold. The output begins at
  // element block_offset of that which blocks are a part of.
  BlockEpilogue* block = nullptr;
  int64_t block_offset = 0;

  // Whether all steps are in f32: tiles do these in registers.
  bool IsF32() const { return sum_dtype == DType::kF32 && first_dtype == DType::kF32 && second_dtype == DType::kF32; }
};

// Whether an output has blocks as OutputBlock says.
inline bool HasBlocks(const AxisGroup& out_rows, const AxisGroup& out_cols) {
  return out_rows.rank <= 1 && out_cols.rank <= 1 && out_cols.InnerStride() == 1;
}

// An lhs whose rows overlap, as windows of a convolution do: each line of 64 bytes is stored once, not once for every
// row that has it (gemm_by_lines.h). Step i of 16 groups of row m is the line at
//   GemmArgs::lhs + 64 * (positions.Offset(m) - first) + steps[i]
// Rows of a run, the last axis, have their lines side by side, as in a panel. No tile goes beyond the end of a run.
struct LhsLines {
  AxisGroup positions;  // its last axis has stride 1
  int64_t first = 0;
  const int32_t* steps = nullptr;  // in bytes
};

// Memory that is read after a product: `rows` rows of row_bytes bytes, `pitch` bytes apart. A tile fetches at most so
// many of their lines: more would hold up its products.
struct RowsAhead {
  const char* data = nullptr;
  int64_t rows = 0, row_bytes = 0, pitch = 0;
  int64_t most_lines = 32;
};

struct GemmArgs {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  // Panels in the kernel's formats. The distance between the matrices of a batch is in bytes; 0 if all share one.
  const void* lhs = nullptr;
  const void* rhs = nullptr;
  int64_t lhs_batch_bytes = 0, rhs_batch_bytes = 0;
  const LhsLines* lhs_lines = nullptr;  // if not null, `lhs` holds lines instead, as a block of gemm_by_lines.h may
  RowsAhead ahead;                      // a block may fetch them into L2 meanwhile

  // Output: s32 (the sums themselves, no epilogue; s8 kernels only), f32, bf16 or f16. Any strides that address each
  // element once (but see Epilogue::adds); fastest if columns have stride 1.
  void* out = nullptr;
  DType out_dtype = DType::kF32;
  AxisGroup out_batch, out_rows, out_cols;

  Epilogue epilogue;

  // Whether Epilogue::block can be run.
  bool HasBlocks() const { return kernels::HasBlocks(out_rows, out_cols) && !epilogue.adds; }

  // With a dense output, and without panels.
  static GemmArgs Dense(int64_t batch, int64_t m, int64_t n, int64_t k, DType out_dtype, void* out) {
    GemmArgs args;
    args.batch = batch;
    args.m = m;
    args.n = n;
    args.k = k;
    args.out = out;
    args.out_dtype = out_dtype;
    args.out_batch = AxisGroup::Of(batch, m * n);
    args.out_rows = AxisGroup::Of(m, n);
    args.out_cols = AxisGroup::Of(n, 1);
    return args;
  }
};

enum class GemmSums : uint8_t { kS32, kF32 };

// One way to compute the product. All objects are constants with static lifetime.
struct GemmKernel {
  const char* name;  // "s8_avx512_vnni", "f32_avx2", "emulated_s8_avx2", ...
  GemmSums sums;
  Target target;  // the capabilities that it needs; also the target to pack for
  PanelFormat lhs, rhs;
  bool emulated;  // plain C++ with the arithmetic of another kernel, for tests
  // What it costs: products per cycle of a core where all goes well. Rows beyond the last multiple of row_unit cost as
  // much as row_unit of them.
  int32_t products_per_cycle, row_unit;
  // The largest part of the work in rows, a multiple of lhs.width, and in bytes of lhs panels (as far as rows of this
  // k fit).
  int32_t block_rows, block_bytes;
  // One part of the work: rows [m0, m1) and columns [n0, n1) of matrix b; m0 and n0 are multiples of the panel widths.
  void (*block)(const GemmArgs& args, int64_t b, int64_t m0, int64_t m1, int64_t n0, int64_t n1);
  // Kernels that sum in f32 and, block of k by block of k, in memory: how many groups of k a block has, a multiple of
  // 16, and what adds one to the sums of `rows` rows and a panel of columns. The panels hold these groups, of the lhs
  // lhs_panel_bytes apart. The sum of row r and column j is sums[r * rhs.width + j], which `first` sets; there is room
  // for whole panels of rows. Meanwhile it may fetch what comes next into L2. Null if the kernel has none.
  int32_t block_groups = 0;
  void (*add_block)(const void* lhs, int64_t lhs_panel_bytes, const void* rhs, int64_t groups, int64_t rows, bool first,
                    float* sums, const RowsAhead& columns_ahead, const RowsAhead& rows_ahead) = nullptr;
  bool reads_lines = false;  // whether `block` takes GemmArgs::lhs_lines
};

// Runs the kernel on all of args, split over the executor's threads if that is worth waking them. Sums of integers are
// the same for any split; floats are summed in the order of k, whatever m, n, the batch and the split are.
void RunGemm(const GemmKernel& kernel, const GemmArgs& args, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_GEMM_H_
