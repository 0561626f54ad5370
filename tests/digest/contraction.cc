#include "tests/digest/contraction.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/contraction.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/qtensor_ops.h"
#include "tests/digest/draw.h"
#include "tests/digest/hash.h"

namespace aqt::digest {
namespace {

// An array with memory of its own, in one of these layouts:
//   0  dense   1  the axes in reverse order   2  gaps between rows   3  the first axis backwards
class Placed {
 public:
  Placed(const Aval& aval, int layout) {
    const int64_t rank = aval.shape.rank();
    Strides strides = DenseStrides(aval.shape);
    int64_t size = aval.shape.num_elements(), first = 0;
    if (layout == 1) {
      int64_t stride = 1;
      for (int64_t axis = 0; axis < rank; ++axis) {
        strides[axis] = stride;
        stride *= std::max<int64_t>(aval.shape[axis], 1);
      }
    } else if (layout == 2 && rank > 0) {
      int64_t stride = 1;
      for (int64_t axis = rank - 1; axis >= 0; --axis) {
        strides[axis] = stride;
        stride *= aval.shape[axis] + (axis == rank - 1 ? 3 : 0);
      }
      size = stride;
    } else if (layout == 3 && rank > 0 && size > 0) {
      first = (aval.shape[0] - 1) * strides[0];
      strides[0] = -strides[0];
    }
    memory_ = AllocateAligned(size * SizeOf(aval.dtype));
    ref_ = MutableArrayRef(aval.dtype, aval.shape, strides,
                           static_cast<char*>(memory_.get()) + first * SizeOf(aval.dtype));
  }
  Placed(const Array& values, int layout) : Placed(values.aval(), layout) { AQT_CHECK(CopyArray(values, ref_).ok()); }

  const MutableArrayRef& ref() const { return ref_; }

 private:
  std::shared_ptr<void> memory_;
  MutableArrayRef ref_;
};

uint64_t HashOf(const ArrayRef& array) { return Hash().Add(array).value(); }

// The sum of hashes per name: how often a tensor is seen counts, in which order does not.
class HashingObserver final : public Observer {
 public:
  void OnTensor(absl::string_view name, const ArrayRef& value) override { hashes[std::string(name)] += HashOf(value); }
  std::map<std::string, uint64_t> hashes;
};

// Sums in f64 in row-major order of the contracting axes, and sees the operands.
class OwnProduct final : public PlainProduct {
 public:
  void Contract(absl::string_view pass, const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims,
                const MutableArrayRef& out) override {
    seen.Add(pass).Add(lhs).Add(rhs).Add(dims.ToString()).Add(out.aval().ToString());
    ArrayBuilder sums(DType::kF64, out.shape);
    kernels::Contract(dims, Cast(lhs, DType::kF64), Cast(rhs, DType::kF64), sums.ref());
    AQT_CHECK(CastArray(std::move(sums).Build(), out).ok());
  }

  Hash seen;
};

// Statistics of one pass from step to step.
class Statistics {
 public:
  explicit Statistics(absl::Span<const StateSlot> slots) {
    for (const StateSlot& slot : slots) arrays_.push_back(slot.initial);
  }

  // Runs call(StateArrays) and keeps what it has updated.
  template <class F>
  absl::Status Call(F&& call) {
    std::vector<ArrayRef> old(arrays_.begin(), arrays_.end());
    std::vector<ArrayBuilder> builders;
    std::vector<MutableArrayRef> updated;
    for (const Array& array : arrays_) {
      builders.emplace_back(array.aval());
      AQT_CHECK(CopyArray(array, builders.back().ref()).ok());
    }
    for (ArrayBuilder& builder : builders) updated.push_back(builder.ref());
    const absl::Status status = call(StateArrays{old, updated});
    for (size_t i = 0; i < arrays_.size(); ++i) arrays_[i] = std::move(builders[i]).Build();
    return status;
  }

  void HashInto(Hash& hash) const {
    for (const Array& array : arrays_) hash.Add(array);
  }
  bool empty() const { return arrays_.empty(); }

 private:
  std::vector<Array> arrays_;
};

absl::string_view Name(Use::Operand operand) {
  switch (operand) {
    case Use::Operand::kValue: return "value";
    case Use::Operand::kPrepared: return "prepared";
    case Use::Operand::kPreparedWithValue: return "prepared with value";
    case Use::Operand::kScales: return "prepared scales";
    case Use::Operand::kMasked: return "prepared with mask";
  }
  return "?";
}

// What stands for an operand.
absl::StatusOr<PreparedOperand> Prepare(const Contraction& contraction, Use::Operand how, Side side,
                                        const ArrayRef& value, const Context& context, const Runtime& runtime) {
  absl::StatusOr<PreparedOperand> prepared = contraction.prepare(side, value, context, runtime);
  if (!prepared.ok() || how == Use::Operand::kPrepared || how == Use::Operand::kPreparedWithValue) return prepared;
  QTensor qtensor = prepared->qtensor();
  if (how == Use::Operand::kScales) {
    qtensor = WithoutQvalue(std::move(qtensor));
  } else {
    ArrayBuilder mask(DType::kS8, qtensor.qvalue->shape());
    const absl::Span<int8_t> bits = mask.Mutable<int8_t>();
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = i % 3 == 1 ? 0 : 1;
    qtensor.sparsity_mask = std::move(mask).Build();
  }
  return contraction.prepare_qtensor(side, std::move(qtensor), runtime);
}

uint64_t HashOf(const QTensor& qtensor) {
  Hash hash;
  if (qtensor.qvalue.has_value()) hash.Add(*qtensor.qvalue);
  for (const auto* arrays : {&qtensor.scale, &qtensor.bias}) {
    for (const Array& array : *arrays) hash.Add(array);
  }
  return hash.value();
}

// One use of a contraction, and the fields of what comes out of it.
class UseRun {
 public:
  UseRun(Contraction contraction, const Use& use, Executor* executor)
      : contraction_(std::move(contraction)), use_(use), runtime_{.executor = executor} {
    if (use.observed) runtime_.observer = &observer_;
    if (use.own_product) runtime_.product = &product_;
  }

  Fields Run() && {
    PrepareOperands();
    RunSteps();
    return std::move(fields_);
  }

 private:
  void Add(absl::string_view name, bool everywhere, uint64_t hash) {
    fields_.push_back({std::string(name), everywhere, hash});
  }
  // Whether the status is good. If not, its code is a field.
  bool AddStatus(absl::string_view name, const absl::Status& status) {
    if (!status.ok()) Add(name, true, static_cast<uint64_t>(status.code()));
    return status.ok();
  }
  void AddState(absl::string_view name, const Statistics& state) {
    if (state.empty()) return;
    Hash hash;
    state.HashInto(hash);
    Add(name, true, hash.value());
  }

  void PrepareOperands();
  DotOperand Operand(Side side, const ArrayRef& value) const;
  // All steps, up to the first that is refused, and what was seen. Nothing was seen if one is refused.
  void RunSteps();
  bool RunStep(size_t index);
  bool RunBackward(const Use::Step& step, const std::string& suffix, Residuals& residuals);

  const Contraction contraction_;
  const Use& use_;
  HashingObserver observer_;
  OwnProduct product_;
  Runtime runtime_;
  Fields fields_;
  std::optional<PreparedOperand> prepared_[2];
  Statistics forward_state_{contraction_.forward_state}, backward_state_{contraction_.backward_state};
};

void UseRun::PrepareOperands() {
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const Use::Operand how = side == Side::kLhs ? use_.lhs : use_.rhs;
    if (how == Use::Operand::kValue) continue;
    const Use::Step& step = use_.steps.front();
    const Placed value(side == Side::kLhs ? step.lhs : step.rhs,
                       side == Side::kLhs ? use_.lhs_layout : use_.rhs_layout);
    absl::StatusOr<PreparedOperand> operand = Prepare(contraction_, how, side, value.ref(), step.context, runtime_);
    const std::string name = absl::StrCat("prepared_", side == Side::kLhs ? "lhs" : "rhs");
    if (!AddStatus(name, operand.status())) continue;  // the value, then
    Add(name, true, HashOf(operand->qtensor()));
    prepared_[side == Side::kLhs ? 0 : 1] = *std::move(operand);
  }
}

DotOperand UseRun::Operand(Side side, const ArrayRef& value) const {
  const std::optional<PreparedOperand>& prepared = prepared_[side == Side::kLhs ? 0 : 1];
  if (!prepared.has_value()) return DotOperand(value);
  const Use::Operand how = side == Side::kLhs ? use_.lhs : use_.rhs;
  if (how == Use::Operand::kPrepared || how == Use::Operand::kMasked) return DotOperand(*prepared);
  return DotOperand(value, *prepared);
}

void UseRun::RunSteps() {
  for (size_t i = 0; i < use_.steps.size(); ++i) {
    if (!RunStep(i)) return;
  }
  for (const auto& [name, hash] : observer_.hashes) {
    Add(absl::StrCat("seen ", name), !name.ends_with(".accum") || use_.own_product, hash);
  }
  if (use_.own_product) Add("product", true, product_.seen.value());
}

bool UseRun::RunStep(size_t index) {
  const Use::Step& step = use_.steps[index];
  const std::string suffix = index == 0 ? "" : absl::StrCat("_", index);
  const Placed lhs(step.lhs, use_.lhs_layout), rhs(step.rhs, use_.rhs_layout), out(contraction_.out, use_.out_layout);
  Residuals residuals(use_.residuals);
  const auto forward = [&](Residuals* kept) {
    return forward_state_.Call([&](const StateArrays& state) {
      return contraction_.forward(Operand(Side::kLhs, lhs.ref()), Operand(Side::kRhs, rhs.ref()), step.context,
                                  out.ref(), kept, runtime_, state);
    });
  };
  bool with_gradients = contraction_.backward != nullptr;
  const absl::Status status = forward(with_gradients ? &residuals : nullptr);
  if (!AddStatus("forward" + suffix, status)) {
    // Often the gradient is what is refused.
    if (!with_gradients) return false;
    with_gradients = false;
    if (!AddStatus("forward_only" + suffix, forward(nullptr))) return false;
  }
  Add("out" + suffix, contraction_.out_everywhere || use_.own_product, HashOf(out.ref()));
  AddState("forward_state" + suffix, forward_state_);
  return !with_gradients || RunBackward(step, suffix, residuals);
}

bool UseRun::RunBackward(const Use::Step& step, const std::string& suffix, Residuals& residuals) {
  Add("residual_bytes" + suffix, true, static_cast<uint64_t>(residuals.num_bytes()));
  const Placed g(step.g, use_.g_layout), dlhs(contraction_.lhs, use_.gradient_layout),
      drhs(contraction_.rhs, use_.gradient_layout);
  const absl::Status status = backward_state_.Call([&](const StateArrays& state) {
    return contraction_.backward(g.ref(), residuals, step.context,
                                 use_.want_dlhs ? std::optional(dlhs.ref()) : std::nullopt,
                                 use_.want_drhs ? std::optional(drhs.ref()) : std::nullopt, runtime_, state);
  });
  if (!AddStatus("backward" + suffix, status)) return false;
  if (use_.want_dlhs) Add("dlhs" + suffix, contraction_.dlhs_everywhere || use_.own_product, HashOf(dlhs.ref()));
  if (use_.want_drhs) Add("drhs" + suffix, contraction_.drhs_everywhere || use_.own_product, HashOf(drhs.ref()));
  AddState("backward_state" + suffix, backward_state_);
  Hash kept;
  for (const Array& array : std::move(residuals).Release()) kept.Add(array);
  Add("residuals" + suffix, true, kept.value());
  return true;
}

}  // namespace

std::string Use::ToString() const {
  std::string text =
      absl::StrCat("lhs ", Name(lhs), ", rhs ", Name(rhs), observed ? ", observed" : "",
                   own_product ? ", own product" : "", residuals == Residuals::Operands::kBorrow ? ", borrowing" : "",
                   want_dlhs ? "" : ", no dlhs", want_drhs ? "" : ", no drhs");
  absl::StrAppend(&text, ", layouts ", lhs_layout, rhs_layout, g_layout, out_layout, gradient_layout, ", ",
                  aqt::ToString(semantics.arithmetic), semantics.compat == Compat{} ? "" : ", as the original");
  for (const Step& step : steps) {
    absl::StrAppend(&text, ", ", aqt::ToString(step.context.quant_mode));
    if (step.context.rhs_quant_mode.has_value()) {
      absl::StrAppend(&text, " rhs ", aqt::ToString(*step.context.rhs_quant_mode));
    }
  }
  return text;
}

Use DrawUse(Draw& draw, const Contraction& contraction, const UseStyle& style) {
  Use use;
  if (style.prepared) {
    const auto operand = [&] {
      return draw.Pick({Use::Operand::kValue, Use::Operand::kPrepared, Use::Operand::kPrepared,
                        Use::Operand::kPreparedWithValue, Use::Operand::kScales, Use::Operand::kMasked});
    };
    use.lhs = operand();
    use.rhs = operand();
  }
  if (draw.OneIn(3)) use.residuals = Residuals::Operands::kBorrow;
  use.observed = draw.OneIn(5);
  use.own_product = style.product && draw.OneIn(10);
  use.want_dlhs = !draw.OneIn(10);
  use.want_drhs = !draw.OneIn(10);
  for (int* layout : {&use.lhs_layout, &use.rhs_layout, &use.g_layout, &use.out_layout, &use.gradient_layout}) {
    if (draw.OneIn(4)) *layout = static_cast<int>(draw.Below(4));
  }
  use.semantics = DrawSemantics(draw);

  std::vector<QuantMode> modes = {draw.OneIn(6) ? QuantMode::kServe : QuantMode::kTrain};
  std::optional<QuantMode> rhs_mode;
  if (style.state) {
    switch (draw.Below(4)) {
      case 0: modes = {QuantMode::kTrain, QuantMode::kTrain, QuantMode::kServe}; break;
      case 1: modes = {QuantMode::kCalibrate, QuantMode::kCalibrate, QuantMode::kConvert}; break;
      default: modes = {QuantMode::kCalibrate, QuantMode::kTrain, QuantMode::kServe}; break;
    }
    if (draw.OneIn(4)) rhs_mode = draw.Pick({QuantMode::kCalibrate, QuantMode::kTrain, QuantMode::kServe});
  }
  use.semantics.prng_layout = draw.Pick({PrngLayout::kPartitionable, PrngLayout::kOriginal});
  for (const QuantMode mode : modes) {
    Use::Step step;
    step.lhs = DrawData(draw, contraction.lhs.dtype, contraction.lhs.shape);
    step.rhs = DrawData(draw, contraction.rhs.dtype, contraction.rhs.shape);
    step.g = DrawData(draw, contraction.out.dtype, contraction.out.shape);
    step.context = {.key = MakeKey(draw.Bits()), .quant_mode = mode, .rhs_quant_mode = rhs_mode};
    use.steps.push_back(step);
  }
  return use;
}

Fields Run(const Planner& planner, const Use& use, const Machine& where) {
  absl::StatusOr<Contraction> planned = planner(use.semantics, where.target);
  AQT_CHECK(planned.ok());  // planned before, with other semantics
  return UseRun(*std::move(planned), use, where.executor).Run();
}

}  // namespace aqt::digest
