#ifndef AQT_QUANT_CONTRACTION_QUANTIZE_SIDE_H_
#define AQT_QUANT_CONTRACTION_QUANTIZE_SIDE_H_

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
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/packed_side.h"
#include "aqt/quant/contraction/workspace.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantize_spec.h"
#include "aqt/quant/tensor/statistics.h"

namespace aqt::internal {

enum class Pass { kFwd, kDlhs, kDrhs };
absl::string_view ToString(Pass pass);  // "fwd", "dlhs", "drhs"

// Names that the observer receives, by pass and side.
struct SideNames {
  absl::string_view scale, bias, key, noise, qvalue, operand;
};
struct PassNames {
  SideNames lhs, rhs;
  absl::string_view accum;
  const SideNames& side(Side s) const { return s == Side::kLhs ? lhs : rhs; }
};
const PassNames& NamesOf(Pass pass);

// One operand, resolved.
struct SidePlan {
  Tensor config;
  Aval x;
  std::optional<QuantizeSpec> spec;   // null: not quantized
  DType operand_dtype = DType::kF32;  // of what the contraction receives
};

// `axes` share a scale unless the quantizer names others. Checks everything that can be known without data and without
// the other operand; messages begin with PASS.SIDE.
absl::StatusOr<SidePlan> MakeSidePlan(Pass pass, Side side, const Tensor& tensor, const Aval& x,
                                      absl::Span<const int64_t> axes);

// Multiplies the sparsity mask into the qvalue and removes it: a product reads qvalue * mask, and dequantizing gives
// the same either way. Does nothing without a mask. InvalidArgument, beginning with `where`, for a mask that does not
// fit the qvalue or holds numbers other than 0 and 1; Unimplemented for a mask without a qvalue.
absl::Status ApplySparsityMask(absl::string_view where, QTensor& qtensor);

// Whether `qtensor` can replace an operand; where the contraction applies the scales is not checked. InvalidArgument
// and Unimplemented begin with `where`. Does not allocate if it can.
absl::Status CheckGiven(absl::string_view where, const SidePlan& plan, const QTensor& qtensor);

// The largest |qvalue| of an integer container.
double MaxMagnitude(const SidePlan& side);

// One operand of a call.
struct RawOperand {
  ArrayRef x;                      // planned aval; not read when `given` has a qvalue
  const QTensor* given = nullptr;  // a qvalue, or only scales, from outside
  const Panels* panels = nullptr;  // the qvalue of `given`, packed
  std::optional<Key> key;          // of this operand
  // Of a calibration with state, unless `given`.
  QuantMode mode = QuantMode::kTrain;
  StatisticData statistics;
  // Where to store the qvalue, the scale and the clip mask (dense); null: nowhere.
  void* keep_qvalue = nullptr;
  void* keep_scale = nullptr;
  int8_t* keep_mask = nullptr;
  // With mid scales, instead of the qvalue: numbers of the operand's dtype (ResidualSlot, dot_general.h).
  void* keep_forward_operand = nullptr;
};

// Adds the statistics of one operand, in order.
void AppendStateSlots(Pass pass, Side side, const SidePlan& plan, std::vector<StateSlot>& slots);

// Fills in the statistics of one operand, checked, and its mode; `slots` are those of the call, and this operand's
// begin at `begin`. Errors begin with `call`. Does not allocate when there are none.
absl::Status FillStatistics(absl::string_view call, absl::Span<const StateSlot> slots, size_t begin,
                            const QuantizeSpec& spec, Side side, const Context& context, const Execution& runtime,
                            const StateArrays& state, RawOperand* raw);

// A side after quantization.
struct QuantizedSide {
  ArrayRef operand;                        // what the contraction will receive
  ArrayRef qvalue;                         // the operand if the side is not quantized
  absl::InlinedVector<ArrayRef, 1> scale;  // in the layout of x
};

// One operand of a running call: its scale, qvalue and operand, in buffers of the workspace. Everything that is passed
// in outlives this object.
class SideQuantizer {
 public:
  SideQuantizer(const SidePlan& plan, Side side, const RawOperand& in, PrngLayout layout, const SideNames& names,
                Workspace& workspace, const Execution& runtime)
      : plan_(plan), side_(side), in_(in), layout_(layout), names_(names), workspace_(workspace), runtime_(runtime) {}

  // `calibrated` is what the scale is found for, `quantized` what is quantized: in.x, unless mid scales rescale it. A
  // side that is not quantized enters as `calibrated`.
  QuantizedSide Quantize(const ArrayRef& calibrated, const ArrayRef& quantized);
  QuantizedSide Quantize() { return Quantize(in_.x, in_.x); }
  // Only the scale, in in.keep_scale if that is set.
  ArrayRef ComputeScaleOf(const ArrayRef& calibrated);

 private:
  ArrayRef ComputeQvalueOf(const ArrayRef& x, const Affine& affine);
  // Both at once by the vector kernels, if these give the same bits: AbsMax scales, integers of at most 8 bits, a dense
  // operand. Otherwise null.
  struct ScaleAndQvalue {
    ArrayRef scale, qvalue;
  };
  std::optional<ScaleAndQvalue> QuantizeByKernel(const ArrayRef& x);
  void* ScaleBuffer();
  void* QvalueBuffer(const Aval& aval);
  void ObserveDraws(const TensorDraws& draws);
  std::optional<TensorDraws> Draws() const;
  void Observe(absl::string_view name, const ArrayRef& value) const {
    if (runtime_.observer != nullptr) runtime_.observer->OnTensor(name, value);
  }
  void* Buffer(Workspace::Slot lhs, Workspace::Slot rhs, int64_t bytes) {
    return workspace_.Get(side_ == Side::kLhs ? lhs : rhs, bytes);
  }

  const SidePlan& plan_;
  const Side side_;
  const RawOperand& in_;
  const PrngLayout layout_;
  const SideNames& names_;
  Workspace& workspace_;
  const Execution& runtime_;
};

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_QUANTIZE_SIDE_H_
