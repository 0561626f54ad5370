#ifndef AQT_QUANT_CONTRACTION_ENGINE_CONTRACTION_PLAN_H_
#define AQT_QUANT_CONTRACTION_ENGINE_CONTRACTION_PLAN_H_

// The engine: a quantized contraction and its two gradients, dense, windowed (convolution) or grouped (ragged).
// Internal; its public interfaces are DotGeneralPlan, ConvGeneralPlan and RaggedDotPlan.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/engine/operand_keys.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/contraction/engine/workspace.h"
#include "aqt/quant/contraction/residuals.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt::internal {

// The contraction that a public interface plans. Operands have one dtype (f32, bf16 or f16) and matching shapes.
struct ContractionShape {
  const char* name = "";  // name of the operation, for messages
  Aval lhs, rhs, out;
  DotDims dims;                           // of the forward product; empty for a convolution
  bool grouped = false;                   // lhs [m,k], rhs [groups,k,n]
  std::optional<ConvGeometry> conv = {};  // its gradients are not quantized
};

// The operand that a gradient multiplies with g.
enum class OtherOperand {
  kFloat,          // the float operand, quantized as the backward configuration says
  kForwardQvalue,  // its forward qvalue; g is multiplied by its forward scale (use_fwd_quant)
  kDequantized,    // the forward product's operand, dequantized (a convolution)
};

struct GradientPlan {
  ProductPlan product;
  DotDims dims;     // of g and the other operand, before LocalAqt tiles them
  Axes to_operand;  // for each axis of the product, its axis in the operand
  OtherOperand other = OtherOperand::kFloat;
  bool is_zero = false;  // known without data
};

// The context of one call. A caller that has already split its key sets `operand_keys`; Context::key is then not read.
struct CallKeys : Context {
  CallKeys() = default;
  CallKeys(const Context& context) : Context(context) {}
  const OperandKeys* operand_keys = nullptr;
};

class ContractionPlan {
 public:
  static absl::StatusOr<ContractionPlan> Make(const DotGeneralConfig& config, ContractionShape shape,
                                              const PlanOptions& options);

  const ContractionShape& shape() const { return shape_; }
  const DotGeneralConfig& config() const { return config_; }
  const PlanOptions& options() const { return options_; }
  const ProductPlan& forward() const { return fwd_; }
  // The gradient of `side`, if the plan has gradients.
  const GradientPlan& gradient(Side side) const { return side == Side::kLhs ? dlhs_ : drhs_; }
  absl::Span<const ResidualSlot> residuals() const { return residuals_; }
  absl::Span<const StateSlot> forward_state() const { return state_[0]; }
  absl::Span<const StateSlot> backward_state() const { return state_[1]; }
  bool ForwardNeedsKey() const { return fwd_.NeedsKey(); }
  bool BackwardNeedsKey() const { return dlhs_.product.NeedsKey() || drhs_.product.NeedsKey(); }
  int64_t scratch_bytes() const { return scratch_bytes_; }
  // That of Forward alone, with operands that are packed ahead of time or not.
  int64_t ForwardScratchBytes(bool lhs_is_packed, bool rhs_is_packed) const;

  // As in DotGeneralPlan. With groups, `group_sizes` are checked.
  absl::Status Forward(const DotOperand& lhs, const DotOperand& rhs, absl::Span<const int64_t> group_sizes,
                       const CallKeys& context, const MutableArrayRef& out, Residuals* residuals,
                       const Runtime& runtime, const StateArrays& state) const;
  absl::Status Backward(const ArrayRef& g, const Residuals& residuals, absl::Span<const int64_t> group_sizes,
                        const CallKeys& context, const std::optional<MutableArrayRef>& dlhs,
                        const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                        const StateArrays& state) const;
  absl::StatusOr<PreparedOperand> Prepare(Side side, const ArrayRef& value, const CallKeys& context,
                                          const Runtime& runtime) const;
  // An operand as the forward pass calibrates and quantizes it: viewed in tiles, and rotated. `memory` keeps what is
  // rotated.
  ArrayRef RotatedView(Side side, const ArrayRef& x, Array& memory) const;
  // The tensor that Prepare packs: the operand, quantized if the plan quantizes it.
  absl::StatusOr<QTensor> QuantizeOperand(Side side, const ArrayRef& value, const CallKeys& context) const;
  absl::StatusOr<PreparedOperand> Prepare(Side side, QTensor qtensor, const Runtime& runtime) const;
  // Preparing in two steps, for callers that store the panels: their size (null if this operand is not packed ahead of
  // time), and an operand without values from panels that Prepare made.
  std::optional<int64_t> PanelBytesOf(Side side) const;
  absl::StatusOr<PreparedOperand> FromPanels(Side side, const Array& panels, absl::Span<const Array> scale) const;

 private:
  // ---- planning (contraction_plan.cc)
  absl::Status MakeGradient(Side side);
  void AddResiduals(Side side);
  void AddState(const ProductPlan& product);
  int64_t CountScratch() const;

  const Aval& operand(Side side) const { return side == Side::kLhs ? shape_.lhs : shape_.rhs; }
  const DotGeneralRawConfig& raw(Pass pass) const {
    return pass == Pass::kFwd ? config_.fwd : pass == Pass::kDlhs ? config_.dlhs : config_.drhs;
  }
  // The gradient that reads `side` as its other operand.
  const GradientPlan& reader(Side side) const { return gradient(Other(side)); }
  int ResidualIndex(Side side, ResidualKind kind) const {
    return residual_index_[static_cast<int>(side)][static_cast<int>(kind)];
  }
  bool ClipsGradient(Side side) const;
  // Whether the gradient's product is that of the rotated operand: it reads the rotated qvalue of the other side.
  bool GradientIsRotated(Side side) const;
  // The forward scale of the operand that a gradient reads, in the layout of g.
  absl::StatusOr<ArrayRef> ForwardScaleInGradient(const GradientPlan& gradient, const ArrayRef& scale) const;
  // Whether an operand of a gradient that uses the forward quantization is packed without a float array in a call that
  // fuses.
  bool QuantizesIntoPanels(Side side, Side operand) const;
  // Whether the gradient's product, in a call that fuses, multiplies g by that scale while packing it, and packs the
  // forward qvalue directly, both without a float array.
  bool MultipliesWhilePacking(Side side) const;
  bool PacksQvalue(Side side) const;

  // ---- running (contraction_run.cc)
  absl::Status CheckArray(absl::string_view name, const Aval& got, const Aval& want) const;
  absl::Status CheckHasGradients(absl::string_view what) const;
  absl::Status CheckKey(const char* call, bool needed, const CallKeys& context) const;
  absl::Status CheckPrepared(Side side, const QTensor& qtensor, const Panels* packed) const;
  // Whether an operand that was prepared with this block is rotated as this plan rotates it.
  absl::Status CheckRotation(Side side, int64_t hadamard_block) const;
  // Whether this plan has already checked `prepared`.
  bool HasPrepared(Side side, const PreparedOperand& prepared) const;
  // The panels of `prepared` if the kernels of this plan can read them; null if its values have to be packed.
  // FailedPrecondition if it has no values.
  absl::StatusOr<const Panels*> UsablePanels(Side side, const PreparedOperand& prepared, const Runtime& runtime) const;
  absl::Status CheckResiduals(const Residuals& residuals) const;
  // Checks that the gradients of a contraction with a prepared operand are defined. Returns the scale that the operand
  // would have if quantized here, if its gradient needs it.
  absl::StatusOr<std::optional<Array>> CheckPreparedGradient(Side side, const CallOperand& operand,
                                                             const ArrayRef& value, const CallKeys& context) const;
  std::optional<Key> KeyOf(const CallKeys& context, Pass pass, Side side) const;
  // An operand as the forward product sees it.
  ArrayRef View(Side side, const ArrayRef& x) const;
  // Rotates a gradient in the layout of the forward product's operand.
  void RotateGradient(Side side, const MutableArrayRef& gradient, const CallContext& context) const;
  // Computes the mask that Forward would keep, from the float operand and its forward scale. `work` has
  // ClipMaskWorkDoubles elements.
  void ComputeClipMask(Side side, const ArrayRef& operand, const ArrayRef& scale, double* work, int8_t* mask) const;
  int64_t ClipMaskWorkDoubles(Side side) const;
  absl::Status FillOperand(Side side, const DotOperand& operand, const CallKeys& context, const Runtime& runtime,
                           const StateArrays& state, CallOperand& result) const;
  absl::Status KeepResiduals(const DotOperand& lhs, const DotOperand& rhs, const CallKeys& context,
                             Residuals::Impl& kept, ProductCall& call) const;
  void FillGradientOperands(Side side, const ArrayRef& g, const Residuals::Impl& residuals, const CallContext& context,
                            ProductCall& call) const;
  void RunGradient(Side side, const MutableArrayRef& result, const Residuals::Impl& residuals,
                   const CallContext& context, ProductCall& call) const;

  // Identity token: unique among plans while an operand prepared by this plan exists.
  std::shared_ptr<const void> identity_ = std::make_shared<const char>();
  DotGeneralConfig config_;
  PlanOptions options_;
  ContractionShape shape_;
  std::string tensor_name_[2];  // "DotGeneral: the tensor for fwd.lhs"
  ProductPlan fwd_;
  GradientPlan dlhs_, drhs_;  // planned only if options.passes says so; residuals likewise
  std::vector<ResidualSlot> residuals_;
  // Index in residuals_ by side and kind; -1 if absent.
  int residual_index_[2][4] = {{-1, -1, -1, -1}, {-1, -1, -1, -1}};
  // [0]: fwd; [1]: dlhs and drhs.
  std::vector<StateSlot> state_[2];
  // Index of the first state slot by pass and side.
  size_t state_begin_[kNumPasses][2] = {};
  int64_t scratch_bytes_ = 0;
};

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_CONTRACTION_PLAN_H_
