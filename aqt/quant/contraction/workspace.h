#ifndef AQT_QUANT_CONTRACTION_WORKSPACE_H_
#define AQT_QUANT_CONTRACTION_WORKSPACE_H_

// Scratch memory that is allocated once and reused. Internal.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/kernels/target.h"
#include "aqt/quant/config/runtime.h"
#include "aqt/quant/config/semantics.h"

namespace aqt::internal {

// A running call: its Runtime, and what its plan was made for.
struct Execution : Runtime {
  Semantics semantics;
  std::optional<kernels::Target> target;
};
inline Execution MakeExecution(const PlanOptions& options, const Runtime& runtime) {
  return {runtime, options.semantics, options.target};
}

// One buffer per purpose; a buffer only grows. Contents are undefined after each Get.
class Workspace {
 public:
  // clang-format off
  enum Slot {
    kLhsScaleWork, kRhsScaleWork,    // of ComputeScale
    kLhsScale, kRhsScale,            // in scale_dtype
    kLhsQvalue, kRhsQvalue,
    kLhsOperand, kRhsOperand,        // dequantized, or multiplied by the other side's scale
    kLhsGathered, kRhsGathered,      // [batch, rows, k]
    kLhsConverted, kRhsConverted,    // to the dtype of the product; s32 as f32
    kLhsPacked, kRhsPacked,          // panels
    kLhsEpilogueScale, kRhsEpilogueScale,
    kSums, kAccumulator,
    kParts,                          // of LocalAqt, dequantized
    kTiles,                          // of a tiled contraction, before they are summed
    kLhsMid, kRhsMid,                // mid scales, and the operands divided by them
    kLhsMidRatio, kRhsMidRatio,
    kLhsRescaled, kRhsRescaled,
    kScaledGradient, kForwardOperand,  // use_fwd_quant
    kClipMask, kNoise,
    kNumSlots
  };
  // clang-format on
  // At least max(bytes, 1) bytes, aligned to 64.
  void* Get(Slot slot, int64_t bytes) {
    Buffer& buffer = buffers_[slot];
    if (buffer.memory == nullptr || buffer.bytes < bytes) {
      buffer.memory = AllocateAligned(bytes > 0 ? bytes : 1);
      buffer.bytes = bytes;
    }
    return buffer.memory.get();
  }

 private:
  struct Buffer {
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
  };
  std::array<Buffer, kNumSlots> buffers_;
};

// Workspaces for concurrent calls; as many as there ever were at the same time.
class WorkspacePool {
 public:
  class Lease {
   public:
    Lease(WorkspacePool* pool, std::unique_ptr<Workspace> workspace) : pool_(pool), workspace_(std::move(workspace)) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { pool_->Return(std::move(workspace_)); }
    Workspace& operator*() const { return *workspace_; }
    Workspace* operator->() const { return workspace_.get(); }

   private:
    WorkspacePool* pool_;
    std::unique_ptr<Workspace> workspace_;
  };

  Lease Get() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return Lease(this, std::make_unique<Workspace>());
    std::unique_ptr<Workspace> workspace = std::move(free_.back());
    free_.pop_back();
    return Lease(this, std::move(workspace));
  }

 private:
  void Return(std::unique_ptr<Workspace> workspace) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(workspace));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_WORKSPACE_H_
