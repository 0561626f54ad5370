#include "aqt/ops/contraction/aqt_dot_kernels.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "aqt/core/status_macros.h"
#include "aqt/ops/output_places.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/prepared_operand_impl.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/contraction/residuals.h"
#include "aqt/quant/contraction/scratch.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt::internal {
namespace {

using Impl = AqtDot::Impl;

Runtime RuntimeOf(const KernelCall& call, Scratch& scratch) {
  Runtime runtime = CurrentRuntime();
  runtime.executor = call.executor;
  runtime.scratch = &scratch;
  runtime.block_epilogue = call.block;
  return runtime;
}

// `key`: u32[2], or null.
Context ContextWithKey(const Impl& dot, const void* key) {
  if (key == nullptr) return ContextOf(dot, nullptr);
  const Array words = Array::Unowned(KeyAval(), key);
  return ContextOf(dot, &words);
}

// Old and new statistics of a call.
struct Statistics {
  explicit Statistics(size_t count) : old(count), next(count) {}
  std::vector<ArrayRef> old;
  std::vector<MutableArrayRef> next;  // by slot; only those that are updated have memory
};

// A quantized operand that each call gets as panels and a scale.
class PanelOperand {
 public:
  // `first`: one with other memory, made by ContractionPlan::FromPanels.
  explicit PanelOperand(const PreparedOperand& first)
      : panels_(*first.impl().panels),
        impl_(first.impl()),
        prepared_(std::shared_ptr<const PreparedOperand::Impl>(std::shared_ptr<const void>(), &impl_)) {
    impl_.panels = std::shared_ptr<const Panels>(std::shared_ptr<const void>(), &panels_);
  }
  PanelOperand(const PanelOperand&) = delete;
  PanelOperand& operator=(const PanelOperand&) = delete;

  // Allocates nothing.
  void Set(const SidePlan& plan, const Array& panels, const Array& scale) {
    panels_.data = panels.buffer();
    panels_.smallest_scale = plan.scales_output() ? ScalesInPlace(scale, plan.x.shape, plan.axes).smallest : 0;
    impl_.qtensor.scale[0] = scale;
  }
  const PreparedOperand& prepared() const { return prepared_; }

 private:
  Panels panels_;
  PreparedOperand::Impl impl_;
  PreparedOperand prepared_;  // has no memory of its own
};

// Keeps the operands of ended calls, so that later calls allocate nothing. Thread-safe.
class PanelOperandPool {
 public:
  using Pointer = std::unique_ptr<PanelOperand>;
  Pointer Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return nullptr;
    Pointer operand = std::move(free_.back());
    free_.pop_back();
    return operand;
  }
  void Return(Pointer operand) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(operand));
  }

 private:
  std::mutex mutex_;
  std::vector<Pointer> free_;
};

class ForwardKernel {
 public:
  ForwardKernel(std::shared_ptr<const Impl> dot, const OperandOrder& order, bool with_residuals,
                absl::Span<const size_t> updated, absl::Span<const KernelInput> operands)
      : dot_(std::move(dot)), order_(order), with_residuals_(with_residuals), updated_(updated.begin(), updated.end()) {
    for (const KernelInput& operand : operands) in_.emplace_back(operand.aval.dtype, operand.aval.shape, nullptr);
  }

  // Prepares what is constant.
  absl::Status Bind(absl::Span<const KernelInput> operands) {
    bool is_packed[2] = {};
    for (const Side side : kSides) {
      const int i = static_cast<int>(side);
      is_packed[i] = order_.packed[i];
      if (!IsPrepared(side)) continue;
      const size_t at = order_.at(side);
      const std::optional<Array>& value = operands[at].constant;
      if (ReplacesSide(side) && !value.has_value()) continue;
      if (order_.has_scale[i] && !operands[at + 1].constant.has_value()) continue;
      AQT_ASSIGN_OR_RETURN(bound_[i],
                           Prepare(side, value.value_or(Array()),
                                   order_.has_scale[i] ? operands[at + 1].constant : std::nullopt, CurrentRuntime()));
      is_packed[i] = bound_[i]->panel_bytes() > 0;
    }
    engine_scratch_ = dot_->engine().ForwardScratchBytes(is_packed[0], is_packed[1]);
    return absl::OkStatus();
  }

  OpKernel Kernel(absl::Span<const Aval> outputs, absl::Span<const bool> needed) && {
    places_ = OutputPlaces(outputs, needed, engine_scratch_);
    OpKernel kernel;
    kernel.scratch_bytes = places_.scratch_bytes();
    kernel.has_blocks = needed[0];
    const absl::Span<const ResidualSlot> slots = dot_->plan().residuals();
    for (size_t i = 0; with_residuals_ && i < slots.size(); ++i) {
      if (slots[i].kind != ResidualKind::kValue) continue;
      kernel.same.emplace_back(order_.at(slots[i].side), residuals_at() + i);
    }
    kernel.run = [own = std::make_shared<const ForwardKernel>(std::move(*this))](const KernelCall& call) {
      return own->Run(call);
    };
    return kernel;
  }

 private:
  absl::Status Run(const KernelCall& call) const {
    Scratch scratch(call.scratch, engine_scratch_);
    const Runtime runtime = RuntimeOf(call, scratch);
    std::optional<PreparedOperand> own[2];
    LeasedOperand leased[2];
    for (const Side side : kSides) {
      const int i = static_cast<int>(side);
      if (bound_[i].has_value() || !IsPrepared(side)) continue;
      const size_t at = order_.at(side);
      if (order_.packed[i] && order_.has_scale[i]) {
        AQT_ASSIGN_OR_RETURN(leased[i].operand, TakePanels(side, In(at, call), In(at + 1, call)));
        leased[i].pool = pool_[i].get();
        own[i] = leased[i].operand->prepared();
        continue;
      }
      AQT_ASSIGN_OR_RETURN(
          own[i],
          Prepare(side, In(at, call), order_.has_scale[i] ? std::optional(In(at + 1, call)) : std::nullopt, runtime));
    }
    const DotOperand lhs = OperandOf(Side::kLhs, own[0], call), rhs = OperandOf(Side::kRhs, own[1], call);
    const size_t num_slots = dot_->plan().forward_state().size();
    Statistics statistics(num_slots);
    for (size_t i = 0; i < order_.forward_state.size(); ++i) {
      statistics.old[order_.forward_state[i]] = Ref(order_.forward_at() + i, call);
    }
    for (size_t i = 0; i < updated_.size(); ++i) statistics.next[updated_[i]] = places_.At(1 + i, call);
    const StateArrays state{statistics.old, statistics.next};
    const Context context = ContextWithKey(*dot_, order_.has_key ? call.in[in_.size() - 1] : nullptr);
    const MutableArrayRef out = places_.At(0, call);
    if (!with_residuals_) return Forward(lhs, rhs, call, context, out, nullptr, runtime, state);
    absl::InlinedVector<void*, 6> memory;
    for (size_t i = 0; i < dot_->plan().residuals().size(); ++i) {
      memory.push_back(places_.memory(residuals_at() + i, call));
    }
    Residuals residuals = Residuals::Into(memory);
    return Forward(lhs, rhs, call, context, out, &residuals, runtime, state);
  }

  absl::Status Forward(const DotOperand& lhs, const DotOperand& rhs, const KernelCall& call, const Context& context,
                       const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                       const StateArrays& state) const {
    const RaggedDotPlan* const ragged = dot_->ragged();
    if (ragged == nullptr) {
      return dot_->engine().Forward(lhs, rhs, /*group_sizes=*/{}, context, out, residuals, runtime, state);
    }
    const std::vector<int64_t> group_sizes = GroupSizesOf(In(order_.groups_at(), call));
    return ragged->Forward(lhs, rhs, group_sizes, context, out, residuals, runtime, state);
  }

  // An operand of a running call.
  struct LeasedOperand {
    PanelOperandPool* pool = nullptr;
    PanelOperandPool::Pointer operand = nullptr;
    ~LeasedOperand() {
      if (operand != nullptr) pool->Return(std::move(operand));
    }
  };

  absl::StatusOr<PanelOperandPool::Pointer> TakePanels(Side side, const Array& panels, const Array& scale) const {
    PanelOperandPool::Pointer operand = pool_[static_cast<int>(side)]->Take();
    if (operand == nullptr) {
      AQT_ASSIGN_OR_RETURN(const PreparedOperand first,
                           dot_->engine().FromPanels(side, panels, absl::MakeConstSpan(&scale, 1)));
      operand = std::make_unique<PanelOperand>(first);
    }
    operand->Set(dot_->engine().forward().side(side), panels, scale);
    return operand;
  }

  size_t residuals_at() const { return 1 + updated_.size(); }
  // Whether the plan takes a PreparedOperand, and whether that has the operand itself.
  bool IsPrepared(Side side) const {
    return order_.packed[static_cast<int>(side)] || order_.has_scale[static_cast<int>(side)];
  }
  bool ReplacesSide(Side side) const {
    return order_.packed[static_cast<int>(side)] || order_.quantized[static_cast<int>(side)];
  }

  absl::StatusOr<PreparedOperand> Prepare(Side side, const Array& value, const std::optional<Array>& scale,
                                          const Runtime& runtime) const {
    if (order_.packed[static_cast<int>(side)]) {
      return dot_->engine().FromPanels(side, value,
                                       scale.has_value() ? absl::MakeConstSpan(&*scale, 1) : absl::Span<const Array>());
    }
    QTensor qtensor{.scale = {*scale}, .dequant_dtype = dot_->aval(side).dtype};
    if (order_.quantized[static_cast<int>(side)]) qtensor.qvalue = value;
    return dot_->plan().Prepare(side, std::move(qtensor), runtime);
  }

  ArrayRef Ref(size_t i, const KernelCall& call) const {
    ArrayRef operand = in_[i];
    operand.data = call.in[i];
    return operand;
  }
  Array In(size_t i, const KernelCall& call) const { return Array::Unowned(in_[i].aval(), call.in[i]); }

  DotOperand OperandOf(Side side, const std::optional<PreparedOperand>& own, const KernelCall& call) const {
    const std::optional<PreparedOperand>& bound = bound_[static_cast<int>(side)];
    const std::optional<PreparedOperand>& prepared = bound.has_value() ? bound : own;
    if (!prepared.has_value()) return DotOperand(Ref(order_.at(side), call));
    if (ReplacesSide(side)) return DotOperand(*prepared);
    return DotOperand(Ref(order_.at(side), call), *prepared);
  }

  std::shared_ptr<const Impl> dot_;
  OperandOrder order_;
  bool with_residuals_;
  std::vector<size_t> updated_;
  std::vector<ArrayRef> in_;                 // without data
  std::optional<PreparedOperand> bound_[2];  // by side; those that are constants
  std::unique_ptr<PanelOperandPool> pool_[2] = {std::make_unique<PanelOperandPool>(),
                                                std::make_unique<PanelOperandPool>()};
  int64_t engine_scratch_ = 0;
  OutputPlaces places_{{}, {}, 0};
};

class BackwardKernel {
 public:
  BackwardKernel(std::shared_ptr<const Impl> dot, bool has_key, absl::Span<const size_t> updated,
                 absl::Span<const KernelInput> operands, absl::Span<const Aval> outputs, absl::Span<const bool> needed)
      : dot_(std::move(dot)),
        has_key_(has_key),
        updated_(updated.begin(), updated.end()),
        needed_{needed[0], needed[1]},
        places_(outputs.subspan(2), needed.subspan(2), dot_->engine().scratch_bytes()) {
    for (const KernelInput& operand : operands) in_.push_back(operand.aval);
  }

  int64_t scratch_bytes() const { return places_.scratch_bytes(); }

  absl::Status Run(const KernelCall& call) const {
    Scratch scratch(call.scratch, dot_->engine().scratch_bytes());
    const Runtime runtime = RuntimeOf(call, scratch);
    const size_t num_residuals = dot_->plan().residuals().size(), num_slots = dot_->plan().backward_state().size();
    std::vector<Array> kept;
    for (size_t i = 0; i < num_residuals; ++i) kept.push_back(In(1 + i, call));
    const Residuals residuals = Residuals::FromArrays(kept);
    const RaggedDotPlan* const ragged = dot_->ragged();
    const size_t groups_at = 1 + num_residuals, state_at = groups_at + (ragged != nullptr ? 1 : 0);
    Statistics statistics(num_slots);
    for (size_t i = 0; i < num_slots; ++i) statistics.old[i] = In(state_at + i, call);
    KernelCall state_call = call;
    state_call.out = call.out + 2;
    for (size_t i = 0; i < updated_.size(); ++i) statistics.next[updated_[i]] = places_.At(i, state_call);
    std::optional<MutableArrayRef> gradients[2];
    for (const Side side : kSides) {
      const int i = static_cast<int>(side);
      if (needed_[i]) gradients[i].emplace(dot_->aval(side).dtype, dot_->aval(side).shape, call.out[i]);
    }
    const Array group_sizes = ragged != nullptr ? In(groups_at, call) : Array();
    return dot_->Backward(In(0, call), residuals, ragged != nullptr ? &group_sizes : nullptr,
                          ContextWithKey(*dot_, has_key_ ? call.in[in_.size() - 1] : nullptr), gradients[0],
                          gradients[1], runtime, {statistics.old, statistics.next});
  }

 private:
  Array In(size_t i, const KernelCall& call) const { return Array::Unowned(in_[i], call.in[i]); }

  const std::shared_ptr<const Impl> dot_;
  const bool has_key_;
  const std::vector<size_t> updated_;
  const bool needed_[2];
  std::vector<Aval> in_;
  const OutputPlaces places_;  // of the statistics
};

}  // namespace

absl::StatusOr<OpKernel> MakeForwardKernel(std::shared_ptr<const AqtDot::Impl> dot, const OperandOrder& order,
                                           bool with_residuals, absl::Span<const size_t> updated,
                                           absl::Span<const KernelInput> operands, absl::Span<const Aval> outputs,
                                           absl::Span<const bool> needed) {
  ForwardKernel kernel(std::move(dot), order, with_residuals, updated, operands);
  AQT_RETURN_IF_ERROR(kernel.Bind(operands));
  return std::move(kernel).Kernel(outputs, needed);
}

OpKernel MakeBackwardKernel(std::shared_ptr<const AqtDot::Impl> dot, bool has_key, absl::Span<const size_t> updated,
                            absl::Span<const KernelInput> operands, absl::Span<const Aval> outputs,
                            absl::Span<const bool> needed) {
  const auto kernel =
      std::make_shared<const BackwardKernel>(std::move(dot), has_key, updated, operands, outputs, needed);
  return {.run = [kernel](const KernelCall& call) { return kernel->Run(call); },
          .scratch_bytes = kernel->scratch_bytes()};
}

}  // namespace aqt::internal
