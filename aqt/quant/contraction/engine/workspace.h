#ifndef AQT_QUANT_CONTRACTION_ENGINE_WORKSPACE_H_
#define AQT_QUANT_CONTRACTION_ENGINE_WORKSPACE_H_

// The buffers of one call, by purpose. Internal.

#include <algorithm>
#include <array>
#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/contraction/scratch.h"

namespace aqt::internal {

// clang-format off
enum class ScratchSlot : uint8_t {
  kLhsScaleWork, kRhsScaleWork,      // of ComputeScale
  kLhsScale, kRhsScale,              // in scale_dtype
  kLhsQvalue, kRhsQvalue,
  kLhsOperand, kRhsOperand,          // dequantized, or multiplied by the other side's scale
  kLhsGathered, kRhsGathered,        // [batch, rows, k]
  kLhsConverted, kRhsConverted,      // to the dtype of the product; s32 as f32
  kPadded,                           // operand that windows slide over
  kLhsPacked, kRhsPacked,            // panels
  kLhsEpilogueScale, kRhsEpilogueScale,
  kRowScale,                         // of a piece of windows
  kSums, kAccumulator,
  kTiles,                            // products of tiles, before they are summed
  kRepeated,                         // gradients of a repeated operand, before they are summed
  kLhsMid, kRhsMid,                  // mid scales, and the operands divided by them
  kLhsMidRatio, kRhsMidRatio,
  kLhsRescaled, kRhsRescaled,
  kScaledGradient, kForwardOperand,  // operands of a gradient
  kClipMask, kNoise,
  kLhsRotated, kRhsRotated,          // operands
  kRotatedGradient,
  kLhsEinsum, kRhsEinsum,            // operands of an equation converted, then summed
  kLhsEinsumSum, kRhsEinsumSum,
};
// clang-format on
inline constexpr int kNumSlots = static_cast<int>(ScratchSlot::kRhsEinsumSum) + 1;

// kLhs... or kRhs...: enumerators come in pairs.
inline ScratchSlot OfSide(bool is_lhs, ScratchSlot lhs) {
  return is_lhs ? lhs : static_cast<ScratchSlot>(static_cast<int>(lhs) + 1);
}

// The scratch memory of a call by slot, known at plan time.
class SlotSizes {
 public:
  // Requires at least `bytes` in this slot.
  void Add(ScratchSlot slot, int64_t bytes) {
    int64_t& size = bytes_[static_cast<int>(slot)];
    size = std::max(size, Rounded(bytes));
  }
  int64_t bytes(ScratchSlot slot) const { return bytes_[static_cast<int>(slot)]; }
  void Remove(ScratchSlot slot) { bytes_[static_cast<int>(slot)] = 0; }
  int64_t Total() const {
    int64_t total = 0;
    for (const int64_t bytes : bytes_) total += bytes;
    return total;
  }
  static int64_t Rounded(int64_t bytes) { return RoundUp(std::max<int64_t>(bytes, 1), 64); }

 private:
  std::array<int64_t, kNumSlots> bytes_ = {};
};

// The call's Scratch, or that of the thread.
inline Scratch& ScratchOf(const Runtime& runtime) {
  return runtime.scratch != nullptr ? *runtime.scratch : Scratch::OfThisThread();
}

// Buffers on the stack of a Scratch, given back when this object is destroyed. Contents are undefined after each Get.
class Workspace {
 public:
  explicit Workspace(Scratch& scratch) : scratch_(scratch), begin_(scratch.top_) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { scratch_.PopTo(begin_); }

  // At least max(bytes, 1) bytes, aligned to 64. A slot that must grow gets new memory, and the old memory is unused
  // until Clear: if sizes vary, get the largest first.
  void* Get(ScratchSlot slot, int64_t bytes) {
    Buffer& buffer = buffers_[static_cast<int>(slot)];
    const uint64_t bit = uint64_t{1} << static_cast<int>(slot);
    if ((taken_ & bit) == 0 || buffer.bytes < bytes) {
      buffer.bytes = SlotSizes::Rounded(bytes);
      buffer.data = scratch_.Push(buffer.bytes);
      taken_ |= bit;
    }
    return buffer.data;
  }
  // Takes all of these slots in these sizes.
  void Take(const SlotSizes& sizes) {
    for (int i = 0; i < kNumSlots; ++i) {
      const ScratchSlot slot = static_cast<ScratchSlot>(i);
      if (sizes.bytes(slot) > 0) Get(slot, sizes.bytes(slot));
    }
  }
  // Gives all slots back, for the next pass of a call.
  void Clear() {
    taken_ = 0;
    scratch_.PopTo(begin_);
  }

 private:
  struct Buffer {
    void* data;
    int64_t bytes;
  };
  static_assert(kNumSlots <= 64);
  Scratch& scratch_;
  const int64_t begin_;
  uint64_t taken_ = 0;                     // a bit for each slot
  std::array<Buffer, kNumSlots> buffers_;  // entries of untaken slots are not initialized
};

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_WORKSPACE_H_
