#ifndef AQT_QUANT_CONTRACTION_PACKED_SIDE_H_
#define AQT_QUANT_CONTRACTION_PACKED_SIDE_H_

// Between arrays and the matrix kernels: axis groups, panels, scales per row. Internal.

#include <cstdint>
#include <memory>
#include <optional>

#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/operand.h"
#include "aqt/kernels/pack.h"
#include "aqt/kernels/panel_format.h"
#include "aqt/quant/tensor/quantize_spec.h"

namespace aqt::internal {

// A packed operand, kept by a PreparedOperand: what its bytes depend on, besides the qvalue.
struct Panels {
  kernels::PanelFormat format;
  Axes contracting, batch;  // of the operand
  std::shared_ptr<const void> data;

  bool Fits(const kernels::PanelFormat& wanted, Side side, const DotDims& dims) const {
    const bool lhs = side == Side::kLhs;
    return format == wanted && contracting == (lhs ? dims.lhs_contracting : dims.rhs_contracting) &&
           batch == (lhs ? dims.lhs_batch : dims.rhs_batch);
  }
};

// x as the kernels see operand `side` of a contraction. Ranks up to AxisGroup::kMaxRank.
kernels::Operand KernelOperand(const ArrayRef& x, Side side, const DotDims& dims);

// How the product's elements lie in memory, by batch, row (lhs) and column (rhs).
struct OutputAxes {
  kernels::AxisGroup batch, rows, cols;
};
OutputAxes KernelOutput(const MutableArrayRef& out, const DotDims& dims, int64_t lhs_rank);

// Bytes of panels for all matrices of an operand.
int64_t PanelBytes(const kernels::PanelFormat& format, const kernels::Operand& operand);

// Scales of operand `side` in the order [batch, rows], as floats: what the kernels' epilogue and kGiven read. `scale`
// has the rank of the operand, with extent 1 along contracting axes; `operand` is its shape.
//   GatherScales: rows[i] = scale, subnormals of f32 and bf16 as zero
//   ScatterScales: scale (dense, of the full [batch, rows] extents or one element) = rows[i]
void GatherScales(const ArrayRef& scale, const Shape& operand, Side side, const DotDims& dims, float* rows);
void ScatterScales(const float* rows, Side side, const DotDims& dims, const MutableArrayRef& scale);

// Whether a * b is never subnormal for nonzero a and b from the two lists, which hold no subnormals.
bool ProductsAreNormal(const float* a, int64_t a_count, const float* b, int64_t b_count);

// How QuantizePack can do what QuantizeInto would: integers of at most 8 bits, clipped, rounded, without noise or bias.
std::optional<kernels::QuantizeStep> FusedStep(const QuantizeSpec& spec);

// How scales can be found while packing: AbsMax with one scale per [batch, row], or a single one.
enum class FusedScales { kNo, kPerRow, kSingle };
FusedScales FusedScalesOf(const QuantizeSpec& spec, Side side, const DotDims& dims);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_PACKED_SIDE_H_
