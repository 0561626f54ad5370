#ifndef AQT_OPS_EXPAND_OPAQUE_OPS_H_
#define AQT_OPS_EXPAND_OPAQUE_OPS_H_

// Opaque operations: steps of a quantized contraction that cannot be written in basic operations. They appear in
// expansions and run the functions of //aqt/quant. No gradient flows through them.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/ragged_dot.h"

namespace aqt {

// Keys are u32[2] values: (hi, lo).
inline const Aval& KeyAval() {
  static const Aval& aval = *new Aval{DType::kU32, {2}};
  return aval;
}

// The input of kind key that all contractions of a model share, unless they name other inputs.
inline constexpr char kSharedKeySlot[] = "aqt";

namespace internal {

// ", ieee, compat=...": differences from the default, except the layout of keys. For attributes of operations.
std::string ArithmeticText(const Semantics& semantics);

// The six operands of a contraction and its gradients, in the order of OperandKeys, and the two of a convolution.
enum class KeyRole : uint8_t { kFwdLhs, kFwdRhs, kDlhsLhs, kDlhsRhs, kDrhsLhs, kDrhsRhs, kConvLhs, kConvRhs };

// The key of one operand, split off the key of the contraction (SplitContextKey).
Value OperandKey(const Value& key, KeyRole role, PrngLayout layout);
Key OperandKey(Key key, KeyRole role, PrngLayout layout);

// group_sizes s32[groups] as a vector.
std::vector<int64_t> GroupSizesOf(const Array& group_sizes);
// The end row of each group (exclusive), s32[groups]. An evaluation fails like the plan on sizes that do not fit.
Value GroupEnds(const RaggedDotPlan& plan, const Value& group_sizes);

// f32 noise for an operand of `shape` (1 along the sharing axes), from the operand's key.
Value NoiseFor(const Noise& noise, const Shape& shape, const Value& key, PrngLayout layout);

// The scale of x over `axes`, or over the axes that the quantizer names: Calibrate() for any calibration. `key` is read
// only by an SnrSearch that rates numerics with noise; otherwise it may be poisoned (Value()).
Value CalibratedScale(const Quantizer& quantizer, const Value& x, const Axes& axes, const Value& key,
                      const Semantics& semantics);

// The same for a calibration with state, in one mode: the scale, and the statistics after the call (unchanged if the
// mode updates nothing). CalibrateWithState(), with arrays in the order of StatisticNames().
struct CalibratedValue {
  Value scale;
  std::vector<Value> statistics;
};
CalibratedValue CalibratedWithState(const Quantizer& quantizer, const Value& x, const Axes& axes,
                                    absl::Span<const Value> statistics, QuantMode mode, const Semantics& semantics);

// The scale that these statistics hold for tensors like x: StaticScale().
Value StaticScaleOf(const Quantizer& quantizer, const Aval& x, const Axes& axes, absl::Span<const Value> statistics,
                    const Semantics& semantics);

// The qvalue of scaled values: NumericsForward(). `key` may be poisoned (Value()) if the numerics draw no random
// numbers.
Value NumericsQvalue(const Numerics& numerics, const Value& scaled, const Value& key, PrngLayout layout);

}  // namespace internal

namespace ops {

// FoldIn(key, data): a new key for each value of `data`.
Value FoldInKey(const Value& key, uint32_t data);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_EXPAND_OPAQUE_OPS_H_
