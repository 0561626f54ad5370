#ifndef AQT_QUANT_CONTRACTION_ENGINE_PRODUCT_PLAN_H_
#define AQT_QUANT_CONTRACTION_ENGINE_PRODUCT_PLAN_H_

// One quantized product of any geometry: a contraction has one forward and one for each gradient. Internal.

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/engine/contract.h"
#include "aqt/quant/contraction/engine/dot_tiling.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/quantize_side.h"
#include "aqt/quant/contraction/engine/windows.h"
#include "aqt/quant/contraction/engine/workspace.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt::internal {

// A contraction in groups of rows (ragged_dot.h). kRows: lhs [m,k], rhs with a leading axis of groups, each of which is
// multiplied with the rows of its group. kContracting: both have the rows as axis 0, which is contracted group by
// group; the product has a leading axis of groups.
enum class Groups : uint8_t { kNone, kRows, kContracting };

// How the operands are contracted. Dense: only `dims` is set.
struct ProductGeometry {
  DotDims dims = {};  // with groups: as if the group axis were contracted, so that groups share scales
  Groups groups = Groups::kNone;
  int64_t num_groups = 0;               // for kContracting
  std::optional<Windows> windows = {};  // for a convolution; then dims are empty
  // Dense: the rows of lhs are the fastest axis of the result in memory. Affects only speed.
  bool out_is_contiguous_along_rows = false;
};

struct ProductPlan {
  Pass pass = Pass::kFwd;
  ProductGeometry geometry;       // of the tiled operands
  std::optional<TiledDot> tiled;  // of the configuration or LocalAqt; the fields below then describe tiled operands
  SidePlan lhs, rhs;
  Contraction contraction;  // of the quantized operands; with groups: of the operands of one group
  Shape product_shape;
  DType dtype = DType::kF32;  // of the float operands and of the result
  std::optional<double> lhs_mid_alpha, rhs_mid_alpha;
  // Whether the kernels' epilogue does everything after the sums in a call that allows it (CanFuse). For bytes summed
  // in s32, both sides must be dequantized on the product; for floats, no scale may be multiplied into the other
  // operand.
  bool fuses = false;
  // Whether both operands are also quantized to bytes (integers or 8-bit floats) directly into panels.
  bool packs_as_quantized = false;
  // In a call that fuses, the products of tiles are summed without being stored, with the same bits: either by one
  // contraction on digits over all tiles, whose partial sums the kernel multiplies by their scales, or by the epilogue,
  // which adds each product to the result. If both are set, the first is for an rhs packed ahead of time.
  std::optional<Contraction> summed_tiles;
  bool adds_tiles = false;
  kernels::Target target;
  // How a prepared operand is packed ahead of time. Null if it cannot be: windows slide over it, its rows are grouped
  // by sizes known only in a call, scales of the other side are multiplied into it, or the product has no kernel.
  std::optional<PanelKey> lhs_panels, rhs_panels;

  const SidePlan& side(Side s) const { return s == Side::kLhs ? lhs : rhs; }
  bool sums_tiles() const { return summed_tiles.has_value() || adds_tiles; }
  // Whether a call that fuses adds the products of tiles.
  bool AddsTiles(bool rhs_is_packed) const { return adds_tiles && !(rhs_is_packed && summed_tiles.has_value()); }
  // The contraction that the kernels run in a call that fuses, unless it adds the products of tiles.
  const Contraction& fused_contraction() const { return summed_tiles.has_value() ? *summed_tiles : contraction; }
  const std::optional<PanelKey>& panels(Side s) const { return s == Side::kLhs ? lhs_panels : rhs_panels; }
  bool NeedsKey() const { return lhs.draws() || rhs.draws(); }
  bool HasState() const { return lhs.has_state() || rhs.has_state(); }
  bool HasMidScales() const { return lhs_mid_alpha.has_value() || rhs_mid_alpha.has_value(); }

  // A scale of one side in the layout of the product. InvalidArgument when it varies along an axis that is summed.
  absl::StatusOr<ArrayRef> ScaleInOutput(Side side, const ArrayRef& scale) const;
  // A scale of one side in the layout of the other operand.
  absl::StatusOr<ArrayRef> ScaleInOther(Side side, const ArrayRef& scale) const;
  // Whether the scales of a prepared operand can be applied where the configuration says.
  absl::Status CheckScale(Side side, const ArrayRef& scale) const;

  // The scratch memory of RunProduct without an observer, a user's product or a prepared operand with several scales.
  void AddSlots(SlotSizes& sizes) const;
};

// Checks everything that does not depend on data. Operands have the dtype `lhs.dtype`. Messages begin with the pass.
// `tiled` is the tiling of `geometry.dims` and excludes a LocalAqt.
absl::StatusOr<ProductPlan> MakeProductPlan(Pass pass, const DotGeneralRawConfig& config, const Aval& lhs,
                                            const Aval& rhs, ProductGeometry geometry, std::optional<TiledDot> tiled,
                                            const PlanOptions& options);

struct ProductCall {
  CallOperand lhs, rhs;                        // not tiled
  absl::Span<const int64_t> group_sizes = {};  // with groups
  MutableArrayRef out;                         // not tiled, any strides, `dtype`
  BlockEpilogue* block_epilogue = nullptr;     // Runtime's, in the forward pass

  CallOperand& side(Side s) { return s == Side::kLhs ? lhs : rhs; }
  const CallOperand& side(Side s) const { return s == Side::kLhs ? lhs : rhs; }
};

// Preconditions: avals as planned, keys and statistics where needed.
void RunProduct(const ProductPlan& plan, const ProductCall& call, const CallContext& context);

// Only the statistics update of RunProduct; call.out is not written.
void UpdateStatisticsOf(const ProductPlan& plan, const ProductCall& call, const CallContext& context);

// Packs the qvalue or value of `qtensor`, which replaces an operand of the plan, for the kernel of RunProduct; null if
// it is not packed ahead of time.
std::shared_ptr<const Panels> PackPrepared(const ProductPlan& plan, Side side, const QTensor& qtensor,
                                           const Runtime& runtime);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_PRODUCT_PLAN_H_
