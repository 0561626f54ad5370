#ifndef AQT_QUANT_CONTRACTION_RESIDUALS_H_
#define AQT_QUANT_CONTRACTION_RESIDUALS_H_

// The arrays that the forward pass of a contraction keeps for its gradients.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"

namespace aqt {

// The arrays that one forward call keeps for the backward calls. Memory is allocated by the first Forward and reused by
// later ones.
//
// Per operand x of n elements (qvalues and masks: of the tiled operand, with its repetitions), in bytes:
//   with use_fwd_quant (dlhs.rhs for rhs, drhs.rhs for lhs), and in a convolution:
//     n * (size of the container + (clip_gradient ? 1 : 0)) + scales
//   otherwise (with mid alphas: n instead of scales):
//     n * size of x (0 when borrowed) + (clip_gradient ? scales : 0)
// f32 training keeps n * 4. So int8 training never needs more, except for the scales; with use_fwd_quant it needs a
// quarter (half with clip_gradient).
class Residuals {
 public:
  enum class Operands {
    kCopy,
    // Operands (float, or prepared qvalues) that the backward products need are not copied: the caller keeps lhs and
    // rhs alive and unchanged until the last Backward.
    kBorrow,
  };
  explicit Residuals(Operands operands = Operands::kCopy);
  ~Residuals();
  Residuals(Residuals&&) noexcept;
  Residuals& operator=(Residuals&&) noexcept;

  // Bytes allocated by this object.
  int64_t num_bytes() const;

  // For callers with their own storage (a graph): Release returns the arrays in the order of the plan's residuals() and
  // leaves this object empty; FromArrays is the inverse. Borrowed operands are copied.
  std::vector<Array> Release() &&;
  static Residuals FromArrays(absl::Span<const Array> arrays);
  // Forward writes its residuals into this memory, one dense array for each of the plan's residuals(). Borrowed
  // operands are not written: their memory may be null.
  static Residuals Into(absl::Span<void* const> memory);

  // For the plans. Not null, unless this object was moved from.
  struct Impl;
  Impl* impl() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

// The content of one array of Residuals.
enum class ResidualKind {
  kValue,     // the float operand itself
  kQvalue,    // its forward qvalue; with mid alphas times the mid ratio, in the operand's dtype
  kScale,     // its forward scale
  kClipMask,  // s8: 1 where the forward quantization did not clip, 0 where it did
};

// One array of Residuals.
struct ResidualSlot {
  Side side;
  ResidualKind kind;
  Aval aval;
};

// The results of a one-shot call with gradients.
struct DotGeneralGradients {
  Array out, dlhs, drhs;
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_RESIDUALS_H_
