#ifndef AQT_QUANT_CONTRACTION_ENGINE_QUANTIZE_SIDE_H_
#define AQT_QUANT_CONTRACTION_ENGINE_QUANTIZE_SIDE_H_

// Quantizing one operand of a contraction, into a workspace. Internal; shared by all contractions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/workspace.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantize_spec.h"
#include "aqt/quant/tensor/statistics.h"

namespace aqt::internal {

// The plan of one operand.
struct SidePlan {
  TensorConfig config;
  Aval x;                             // tiled, if there is a tiling
  OperandAxes axes;                   // by their role in the product; empty for a convolution
  std::optional<QuantizeSpec> spec;   // null: not quantized
  DType operand_dtype = DType::kF32;  // of the operand that the contraction receives
  // How the vector kernels quantize it; null if they cannot. `row_scales`: whether they also find the scales.
  std::optional<kernels::QuantizeStep> step;
  FusedScales row_scales = FusedScales::kNo;
  int64_t hadamard_block = 0;  // of DotGeneralRawConfig::hadamard; 0: not rotated

  bool is_quantized() const { return spec.has_value(); }
  // Whether scales and qvalues are found while packing for a product that fuses, without a float array.
  bool PacksDirectly() const { return step.has_value() && row_scales != FusedScales::kNo; }
  bool has_state() const { return spec.has_value() && spec->has_state(); }
  bool draws() const { return spec.has_value() && spec->draws_shape.has_value(); }
  // Whether its scales multiply the product.
  bool scales_output() const { return spec.has_value() && config.dequant_mode == DequantMode::kOutput; }
};

// The axes of an operand that share a scale, unless its quantizer names others.
Axes CalibrationAxes(CalibrationMode mode, const OperandAxes& axes);

// `shared` axes share a scale unless the quantizer names others. Checks everything that depends neither on data nor on
// the other operand; messages begin with PASS.SIDE.
absl::StatusOr<SidePlan> MakeSidePlan(Pass pass, Side side, const TensorConfig& tensor, const Aval& x, OperandAxes axes,
                                      absl::Span<const int64_t> shared, const Semantics& semantics);

// Multiplies the sparsity mask into the qvalue and removes it: a product reads qvalue * mask, and dequantizing gives
// the same either way. Does nothing without a mask. InvalidArgument, beginning with `where`, for a mask that does not
// fit the qvalue or holds numbers other than 0 and 1; Unimplemented for a mask without a qvalue.
absl::Status ApplySparsityMask(absl::string_view where, QTensor& qtensor);

// Checks that `qtensor` can replace an operand, but not where the contraction applies the scales. `packed` is its
// packed form, null if there is none; the qvalue may exist only there. InvalidArgument and Unimplemented messages begin
// with `where`. Does not allocate on success.
absl::Status CheckPrepared(absl::string_view where, const SidePlan& plan, const QTensor& qtensor, const Panels* packed);

// The largest |qvalue| of an integer container.
double MaxMagnitude(const SidePlan& side, const Compat& compat);

// One operand of a call.
struct CallOperand {
  ArrayRef x;  // planned aval; not read when `prepared` has a qvalue
  // Replaces the data of x if the side PacksDirectly and there is no observer or user's product: integers of one byte
  // each, whose values are x.
  ArrayRef integers;
  // Under the same conditions, x is first multiplied by this array and rounded to its dtype. Has extent 1 along the row
  // axes.
  ArrayRef factor;
  const QTensor* prepared = nullptr;  // from the caller: a qvalue with scales, only scales, or a float value
  const void* panels = nullptr;       // the operand itself, packed
  float smallest_scale = 0;           // Panels::smallest_scale
  std::optional<Key> key;             // of this operand
  // For a calibration with state, unless `prepared`.
  QuantMode mode = QuantMode::kTrain;
  StatisticData statistics;
  // Where to store the qvalue, the scale and the clip mask (dense); null: nowhere.
  void* keep_qvalue = nullptr;
  void* keep_scale = nullptr;
  int8_t* keep_mask = nullptr;
  // With mid scales, instead of the qvalue: numbers of the operand's dtype (ResidualSlot).
  void* keep_forward_operand = nullptr;

  // Whether `prepared` or `panels` replaces the operand.
  bool has_qvalue() const { return panels != nullptr || (prepared != nullptr && prepared->IsFull()); }
};

// The inputs of a running call besides its operands.
struct CallContext {
  const Semantics& semantics;
  kernels::Target target;
  const Runtime& runtime;
  Workspace& workspace;

  void Observe(absl::string_view name, const ArrayRef& value) const {
    if (runtime.observer != nullptr) runtime.observer->OnTensor(name, value);
  }
};

// Appends the statistics of one operand, in order.
void AppendStateSlots(Pass pass, Side side, const SidePlan& plan, std::vector<StateSlot>& slots);

// Checks and fills in the statistics of one operand, and fills in its mode. `slots` are those of the call; this
// operand's begin at `begin`. Errors begin with `call`. Does not allocate on success.
absl::Status FillStatistics(absl::string_view call, absl::Span<const StateSlot> slots, size_t begin,
                            const QuantizeSpec& spec, Side side, const Context& context, const Compat& compat,
                            const StateArrays& state, CallOperand* operand);

// The scratch memory of SideQuantizer for an operand. With `packs` its qvalues go directly into panels, and scales per
// row into the epilogue.
void AddQuantizeSlots(const SidePlan& plan, Side side, bool packs, SlotSizes& sizes);

// A side after quantization.
struct QuantizedSide {
  ArrayRef operand;                        // operand of the contraction
  ArrayRef qvalue;                         // the operand if the side is not quantized
  absl::InlinedVector<ArrayRef, 1> scale;  // in the layout of x
};

// One operand of a running call: its scale, qvalue and operand, in buffers of the workspace. All arguments must outlive
// this object.
class SideQuantizer {
 public:
  SideQuantizer(const SidePlan& plan, Side side, const CallOperand& in, const SideNames& names,
                const CallContext& context)
      : plan_(plan), side_(side), in_(in), names_(names), context_(context) {}

  // Finds the scale for `calibrated` and quantizes `quantized`. Both are in.x, unless mid scales rescale it. If the
  // side is not quantized, the operand is `calibrated`.
  QuantizedSide Quantize(const ArrayRef& calibrated, const ArrayRef& quantized);
  // Computes only the scale, in in.keep_scale if set.
  ArrayRef ComputeScaleOf(const ArrayRef& calibrated);
  // The random numbers that its numerics draw, if any.
  std::optional<TensorDraws> Draws() const;

 private:
  ArrayRef ComputeQvalueOf(const ArrayRef& calibrated, const ArrayRef& x, const Affine& affine);
  // Scale and qvalue in one pass of the vector kernels, if these give the same bits: AbsMax scales, integers and floats
  // of at most 8 bits (FusedStep), a dense operand. Otherwise null.
  struct ScaleAndQvalue {
    ArrayRef scale, qvalue;
  };
  std::optional<ScaleAndQvalue> QuantizeByKernel(const ArrayRef& x);
  double* ScaleWork();
  void* ScaleBuffer();
  void* QvalueBuffer(const Aval& aval);
  void ObserveDraws(const TensorDraws& draws);
  void* Buffer(ScratchSlot lhs, int64_t bytes) {
    return context_.workspace.Get(OfSide(side_ == Side::kLhs, lhs), bytes);
  }

  const SidePlan& plan_;
  const Side side_;
  const CallOperand& in_;
  const SideNames& names_;
  const CallContext& context_;
};

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_QUANTIZE_SIDE_H_
