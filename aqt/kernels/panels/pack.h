#ifndef AQT_KERNELS_PANELS_PACK_H_
#define AQT_KERNELS_PANELS_PACK_H_

// Packs operands into panels, either quantized or unchanged.
//
// Everything here gives the same bytes on every target and for any number of threads. Nothing allocates. `panels` has B
// * format.PackedBytes(rows, k) bytes, is aligned to kPanelAlignment, and does not overlap the source. With a null
// executor everything runs on the calling thread. reference.h has slow and obvious versions.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"
#include "aqt/kernels/random/noise.h"

namespace aqt::kernels {

// Converts `count` abs-max values to scales in place. May be called from any thread of the executor.
using ScaleRule = absl::FunctionRef<void(float* absmax_to_scale, int64_t count)>;

// The conversion of a real value x with scale s to a qvalue:
//   x = R_source_dtype(x * k_factor)       with QuantizeArgs::k_factor; also before the abs-max
//   inv = R_scale_dtype(1 / s), or 1 if that is infinite;  y = R_product_dtype(x * inv);
//   y = R_product_dtype(y + noise)          with QuantizeArgs::noise
//   q = y is NaN ? 0 : round_half_even(clamp(y, lo, hi))
// or, for 8-bit floats,
//   q = the 8-bit float nearest to clamp(y, -max, max), ties to even; NaN stays NaN
struct QuantizeStep {
  DType q_dtype = DType::kS8;         // or e4m3fn, e5m2
  float lo = -127.0f, hi = 127.0f;    // integers with -128 <= lo <= hi <= 127; not for 8-bit floats
  DType scale_dtype = DType::kF32;    // f32, bf16 or f16
  DType product_dtype = DType::kF32;  // f32, bf16 or f16: the wider of the source's and the scale's
  bool subnormals_are_zero = true;    // flush f32 subnormals of x, 1 / s, s (like XLA on CPU); else gradual underflow
};

// The noise of an operand: element (b, r, i) gets the noise derived from number batch.Offset(b) + rows.Offset(r) +
// k.Offset(i). Each group has the sizes of the operand's group.
struct NoiseOperand {
  RandomNumbers numbers;
  AxisGroup batch = {}, rows = {}, k = {};
};

// The operand, scales, noise and outputs of QuantizePack.
struct QuantizeArgs {
  Operand src;  // f32, bf16, f16, or byte integers (s8, s4) taken as numbers
  QuantizeStep step;
  // If not null, element (b, r, i) is first multiplied by k_factor[b * k + i], a value of the source's dtype, which
  // must be a float. With subnormals_are_zero, no factor may be a subnormal f32 or bf16.
  const float* k_factor = nullptr;
  // If not 0, each row of the source, which then is a float without k_factor, is first transformed by HadamardRows
  // (quantize/hadamard.h) with this block; everything else applies to the transformed rows. `rotated` has room for
  // them: as many elements as the source, of its dtype. What it then holds is not specified.
  int64_t hadamard_block = 0;
  void* rotated = nullptr;

  enum class Scales : uint8_t {
    kPerRow,  // scale[b * rows + r] = rule(absmax of the row over k)
    kSingle,  // scale[0] = rule(absmax of everything)
    kGiven,   // scale[b * scale_batch_stride + r * scale_row_stride] is read
  };
  Scales scales = Scales::kPerRow;
  float* scale = nullptr;
  int64_t scale_batch_stride = 0;
  int64_t scale_row_stride = 0;

  const NoiseOperand* noise = nullptr;  // null: none

  // If not null, the qvalues are also written here, each at the element offset of its source: a tensor with the layout
  // of src and one byte per element. The source's strides must then address each element only once.
  void* qvalues = nullptr;
  // If not null, the packed operand in `format`. For 8-bit floats the format is kBF16 or kF32, otherwise an integer
  // one.
  void* panels = nullptr;
};

// Computes abs-max, scales, qvalues and panels in one call. Pass 1 reads a block of rows for its abs-max. Pass 2 reads
// it again from cache, multiplies, clamps, rounds and interleaves. For kGiven, `rule` is not called.
void QuantizePack(Target target, const PanelFormat& format, const QuantizeArgs& args, ScaleRule rule,
                  Executor* executor);

// absmax[b * rows + r] = max over k of |x|. The canonical NaN if any element is NaN; 0 for an empty k, and for a
// subnormal maximum with subnormals_are_zero. The source is f32, bf16 or f16.
void AbsMaxRows(Target target, const Operand& src, bool subnormals_are_zero, float* absmax, Executor* executor);

// Packs values without changing them. Formats of integer elements accept s8, s4 and s2; kBF16 accepts these, bf16,
// e4m3fn and e5m2; kF32 accepts all of these, f32 and f16, converted exactly. With subnormals_are_zero, a subnormal f32
// or bf16 becomes a zero of its sign.
void Pack(Target target, const PanelFormat& format, const Operand& src, void* panels, Executor* executor,
          bool subnormals_are_zero = false);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_PANELS_PACK_H_
