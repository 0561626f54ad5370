#ifndef AQT_QUANT_CONTRACTION_ENGINE_PACKED_SIDE_H_
#define AQT_QUANT_CONTRACTION_ENGINE_PACKED_SIDE_H_

// Between arrays and the matrix kernels: panels, products in a workspace, scales per row. Internal.

#include <cstdint>
#include <memory>
#include <optional>

#include "aqt/core/array_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/contraction.h"
#include "aqt/kernels/gemm/by_lines.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/kernels/panels/panel_format.h"
#include "aqt/kernels/random/noise.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/contraction/engine/workspace.h"
#include "aqt/quant/tensor/quantize_spec.h"

namespace aqt::internal {

using kernels::OperandAxes;
using kernels::OperandAxesOf;

// x as the kernels see it, with its noise: `numbers` of a dense tensor of the shape `draws`, which broadcasts to x. At
// most AxisGroup::kMaxRank axes.
struct NoisyOperand {
  kernels::Operand source;
  kernels::NoiseOperand noise;
};
NoisyOperand NoisyOperandOf(const ArrayRef& x, const OperandAxes& axes, const kernels::RandomNumbers& numbers,
                            const Shape& draws);

// Everything that the bytes of a packed operand depend on, besides the tensor that was packed.
struct PanelKey {
  kernels::PanelFormat format;
  bool digits = false;      // instead of `format`: a DigitFormat of the operand's extents and the bits of `dtype`
  int64_t scale_group = 0;  // for digits: DigitFormat::scale_group; if not 0, the panels also hold the scales
  OperandAxes axes;
  int64_t feature_groups = 1;  // of a convolution's kernel
  int64_t hadamard_block = 0;  // with which the tensor was rotated; 0: not at all
  // The packed numbers: the tensor's qvalue or value, dequantized if `dequantized`, then converted to this dtype.
  bool dequantized = false;
  DType dtype = DType::kF32;
  bool operator==(const PanelKey&) const = default;
};

// A packed operand, kept by a PreparedOperand.
struct Panels {
  PanelKey key;
  Aval source;  // of the qvalue or value
  std::shared_ptr<const void> data;
  int64_t bytes = 0;
  // ScalesInMemory::smallest of the tensor's only scale, so that no call has to search for it. 0: unknown.
  float smallest_scale = 0;
};

// Bytes of panels for all matrices of an operand.
int64_t PanelBytes(const kernels::PanelFormat& format, const Shape& shape, const OperandAxes& axes);

// kernels::PackAndMultiply with buffers of a workspace. Operands without panels are packed first; with `lines`, the lhs
// is stored by lines.
void PackAndMultiply(const kernels::GemmKernel& kernel, const kernels::GemmProblem& problem,
                     const kernels::GemmPanels& packed, Workspace& workspace, const Runtime& runtime,
                     const kernels::LinesPlan* lines = nullptr);

// The same for a long k (kernels/gemm/long_k.h), without panels: the slot kLhsPacked has LongKBytes.
void MultiplyLongK(const kernels::GemmKernel& kernel, const kernels::GemmProblem& problem, Workspace& workspace,
                   const Runtime& runtime);

// x packed for one side of the kernel. Subnormal f32 and bf16 operands of a product of floats become zero.
void PackOperand(const kernels::GemmKernel& kernel, Side side, const kernels::Operand& x, void* panels,
                 const Runtime& runtime);
// For callers that pack an operand by other means.
void CountPack(Side side, const Runtime& runtime);

// Scales of an operand in the order [batch, rows], as floats: the form that the kernels' epilogue and kGiven read.
// `scale` has the rank of the operand, with extent 1 along contracting axes; `operand` is its shape.
//   GatherScales: rows[i] = scale, subnormals of f32 and bf16 as zero
//   ScatterScales: scale (dense, of the full [batch, rows] extents or one element) = rows[i]
void GatherScales(const ArrayRef& scale, const Shape& operand, const OperandAxes& axes, float* rows);
// The same with subnormals unchanged.
void GatherRows(const ArrayRef& scale, const Shape& operand, const OperandAxes& axes, float* rows);
void ScatterScales(const float* rows, const OperandAxes& axes, const MutableArrayRef& scale);

// The smallest magnitude of the nonzero values; infinity if there are none. NaNs do not count.
float SmallestMagnitude(const float* values, int64_t count);

// The scales that GatherScales would write, if memory already holds them in that form; otherwise null.
struct ScalesInMemory {
  const float* values = nullptr;
  float smallest = 0;  // their SmallestMagnitude
};
ScalesInMemory ScalesInPlace(const ArrayRef& scale, const Shape& operand, const OperandAxes& axes);

// Whether x * a and x * a * b are never subnormal for |x| >= least and nonzero a and b from two lists without
// subnormals, whose smallest magnitudes are given.
bool ProductsAreNormal(double least, float smallest_a, float smallest_b);
// The same for sums of such x * a * b: if these are at least 2^-102, they are multiples of 2^-125, and so are their
// differences from larger numbers.
bool SumsOfProductsAreNormal(double least, float smallest_a, float smallest_b);

// The step with which QuantizePack gives the result of QuantizeInto: integers of at most 8 bits, clipped to a symmetric
// range, rounded, without bias; 8-bit floats rounded to nearest, without bias. Null for others, and where scaled values
// are quotients.
std::optional<kernels::QuantizeStep> FusedStep(const QuantizeSpec& spec, const Semantics& semantics);

// How scales can be found while packing: AbsMax with one scale per [batch, row], or a single one.
enum class FusedScales : uint8_t { kNo, kPerRow, kSingle };
FusedScales FusedScalesOf(const QuantizeSpec& spec, const OperandAxes& axes);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_PACKED_SIDE_H_
