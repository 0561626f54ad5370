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
#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
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
    const Array x = Cast(lhs, DType::kF64), y = Cast(rhs, DType::kF64);
    ArrayBuilder sums(DType::kF64, out.shape);
    const DotNormalForm form = MakeDotNormalForm(dims, x.shape(), ArrayRef(x).strides, y.shape(), ArrayRef(y).strides);
    double* sum = sums.Mutable<double>().data();
    const double *a = x.View<double>().data(), *b = y.View<double>().data();
    ForEach(form.batch, [&](int64_t a0, int64_t b0) {
      ForEach(form.lhs_free, [&](int64_t a1, int64_t) {
        ForEach(form.rhs_free, [&](int64_t, int64_t b1) {
          ForEach(form.contract, [&](int64_t a2, int64_t b2) { *sum += a[a0 + a1 + a2] * b[b0 + b1 + b2]; });
          ++sum;
        });
      });
    });
    AQT_CHECK(CastArray(std::move(sums).Build(), out).ok());
  }

  Hash seen;

 private:
  template <class F>
  static void ForEach(const LoopNest& nest, F&& f) {
    Shape shape;
    Strides a, b;
    for (const LoopAxis& axis : nest) {
      shape.push_back(axis.extent);
      a.push_back(axis.a_stride);
      b.push_back(axis.b_stride);
    }
    ForEachIndex(shape, a, b, f);
  }
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
  Fields fields;
  const auto add = [&](absl::string_view name, bool everywhere, uint64_t hash) {
    fields.push_back({std::string(name), everywhere, hash});
  };
  const auto add_status = [&](absl::string_view name, const absl::Status& status) {
    if (!status.ok()) add(name, true, static_cast<uint64_t>(status.code()));
    return status.ok();
  };
  HashingObserver observer;
  OwnProduct product;
  const absl::StatusOr<Contraction> planned = planner(use.semantics, where.target);
  AQT_CHECK(planned.ok());  // planned before, with other semantics
  const Contraction& contraction = *planned;
  Runtime runtime{.executor = where.executor};
  if (use.observed) runtime.observer = &observer;
  if (use.own_product) runtime.product = &product;

  std::optional<PreparedOperand> prepared[2];
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const Use::Operand how = side == Side::kLhs ? use.lhs : use.rhs;
    if (how == Use::Operand::kValue) continue;
    const Use::Step& step = use.steps.front();
    const Placed value(side == Side::kLhs ? step.lhs : step.rhs, side == Side::kLhs ? use.lhs_layout : use.rhs_layout);
    absl::StatusOr<PreparedOperand> operand = Prepare(contraction, how, side, value.ref(), step.context, runtime);
    const std::string name = absl::StrCat("prepared_", side == Side::kLhs ? "lhs" : "rhs");
    if (!add_status(name, operand.status())) continue;  // the value, then
    add(name, true, HashOf(operand->qtensor()));
    prepared[side == Side::kLhs ? 0 : 1] = *std::move(operand);
  }
  const auto operand = [&](Side side, const ArrayRef& value) {
    const std::optional<PreparedOperand>& p = prepared[side == Side::kLhs ? 0 : 1];
    if (!p.has_value()) return DotOperand(value);
    const Use::Operand how = side == Side::kLhs ? use.lhs : use.rhs;
    if (how == Use::Operand::kPrepared || how == Use::Operand::kMasked) return DotOperand(*p);
    return DotOperand(value, *p);
  };

  Statistics forward_state(contraction.forward_state), backward_state(contraction.backward_state);
  for (size_t i = 0; i < use.steps.size(); ++i) {
    const Use::Step& step = use.steps[i];
    const std::string suffix = i == 0 ? "" : absl::StrCat("_", i);
    const Placed lhs(step.lhs, use.lhs_layout), rhs(step.rhs, use.rhs_layout), out(contraction.out, use.out_layout);
    Residuals residuals(use.residuals);
    const auto forward = [&](Residuals* kept) {
      return forward_state.Call([&](const StateArrays& state) {
        return contraction.forward(operand(Side::kLhs, lhs.ref()), operand(Side::kRhs, rhs.ref()), step.context,
                                   out.ref(), kept, runtime, state);
      });
    };
    bool with_gradients = contraction.backward != nullptr;
    absl::Status status = forward(with_gradients ? &residuals : nullptr);
    if (!add_status("forward" + suffix, status)) {
      // Often the gradient is what is refused.
      if (!with_gradients) return fields;
      with_gradients = false;
      if (!add_status("forward_only" + suffix, forward(nullptr))) return fields;
    }
    add("out" + suffix, contraction.out_everywhere || use.own_product, HashOf(out.ref()));
    if (!forward_state.empty()) {
      Hash hash;
      forward_state.HashInto(hash);
      add("forward_state" + suffix, true, hash.value());
    }
    if (!with_gradients) continue;

    add("residual_bytes" + suffix, true, static_cast<uint64_t>(residuals.num_bytes()));
    const Placed g(step.g, use.g_layout), dlhs(contraction.lhs, use.gradient_layout),
        drhs(contraction.rhs, use.gradient_layout);
    status = backward_state.Call([&](const StateArrays& state) {
      return contraction.backward(g.ref(), residuals, step.context,
                                  use.want_dlhs ? std::optional(dlhs.ref()) : std::nullopt,
                                  use.want_drhs ? std::optional(drhs.ref()) : std::nullopt, runtime, state);
    });
    if (!add_status("backward" + suffix, status)) return fields;
    if (use.want_dlhs) add("dlhs" + suffix, contraction.dlhs_everywhere || use.own_product, HashOf(dlhs.ref()));
    if (use.want_drhs) add("drhs" + suffix, contraction.drhs_everywhere || use.own_product, HashOf(drhs.ref()));
    if (!backward_state.empty()) {
      Hash hash;
      backward_state.HashInto(hash);
      add("backward_state" + suffix, true, hash.value());
    }
    Hash kept;
    for (const Array& array : std::move(residuals).Release()) kept.Add(array);
    add("residuals" + suffix, true, kept.value());
  }
  for (const auto& [name, hash] : observer.hashes) {
    add(absl::StrCat("seen ", name), !name.ends_with(".accum") || use.own_product, hash);
  }
  if (use.own_product) add("product", true, product.seen.value());
  return fields;
}

}  // namespace aqt::digest
