// Calibrations with state in a contraction and its gradients: the updated statistics of each of the six operands, and
// the scales that follow from them, against CalibrateWithState on the tensor that is the operand.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {
namespace {

constexpr QuantMode kModes[] = {QuantMode::kTrain, QuantMode::kCalibrate, QuantMode::kConvert, QuantMode::kServe};

std::vector<Array> Initial(absl::Span<const StateSlot> slots) {
  std::vector<Array> arrays;
  for (const StateSlot& slot : slots) arrays.push_back(slot.initial);
  return arrays;
}

// The statistics of a call, and memory for the updated ones, initialized with copies.
struct Memory {
  explicit Memory(const std::vector<Array>& arrays) {
    for (const Array& array : arrays) {
      old.push_back(array);
      builders.emplace_back(array.aval());
      EXPECT_TRUE(CopyArray(array, builders.back().ref()).ok());
      updated.push_back(builders.back().ref());
    }
  }
  StateArrays Arrays() const { return {old, updated}; }
  std::vector<Array> Take() {
    std::vector<Array> arrays;
    for (ArrayBuilder& builder : builders) arrays.push_back(std::move(builder).Build());
    return arrays;
  }
  std::vector<ArrayRef> old;
  std::vector<ArrayBuilder> builders;
  std::vector<MutableArrayRef> updated;
};

struct Step {
  PlanResults results;
  std::vector<Array> forward, backward;
};

Step RunStep(const DotGeneralPlan& plan, const Array& lhs, const Array& rhs, const Array& g,
             const std::vector<Array>& forward, const std::vector<Array>& backward, const Context& context,
             const Runtime& runtime = {}) {
  ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
  Residuals residuals;
  Memory fwd(forward), bwd(backward);
  EXPECT_EQ(plan.Forward(lhs, rhs, context, out.ref(), &residuals, runtime, fwd.Arrays()), absl::OkStatus());
  EXPECT_EQ(plan.Backward(g, residuals, context, dlhs.ref(), drhs.ref(), runtime, bwd.Arrays()), absl::OkStatus());
  return {{std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()}, fwd.Take(), bwd.Take()};
}

bool SameArrays(const std::vector<Array>& a, const std::vector<Array>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!SameValues(a[i], b[i])) return false;
  }
  return true;
}

// The arrays of one operand, by name.
CalibrationState StateOf(const std::string& operand, absl::Span<const StateSlot> slots,
                         const std::vector<Array>& arrays) {
  CalibrationState state;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].operand == operand) state.emplace(slots[i].name, arrays[i]);
  }
  return state;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : bits_(MakeKey(seed), 256) {}
  int64_t Below(int64_t n) { return bits_.Bits32(next_++) % n; }

 private:
  RandomBits bits_;
  int64_t next_ = 0;
};

Quantizer RandomQuantizer(Draw& draw) {
  Quantizer q;
  if (draw.Below(4) == 0) {
    q.numerics = Fp8{};
  } else {
    q.numerics = IntSymmetric{.bits = 8, .clip_gradient = draw.Below(3) == 0};
  }
  switch (draw.Below(4)) {
    case 0: q.calibration = AbsMax{}; break;
    case 1: q.calibration = MeanOfAbsMax{.po2_scale = draw.Below(3) == 0}; break;
    case 2: q.calibration = WeightedStats{.l1_dev_coeff = 0.5, .max_dev_coeff = 1, .ema_update_count = 3}; break;
    default: q.calibration = DelayedScaling{.amax_history_length = 1 + draw.Below(4)}; break;
  }
  q.calib_shared_axes.per_tensor = draw.Below(3) == 0;
  return q;
}

TEST(DotGeneralState, EveryOperandHasItsOwnStatistics) {
  kernels::ThreadPool pool(3);
  // Operands with only zeros (the result of DelayedScaling's first call) leave a state looking unseen.
  const Semantics semantics{.compat = {.read_unseen_calibration = true}};
  std::map<std::string, int> seen;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Draw draw(seed);
    const DType dtype = std::vector<DType>{DType::kF32, DType::kF32, DType::kBF16, DType::kF16}[draw.Below(4)];
    const int64_t b = 1 + draw.Below(3), m = 1 + draw.Below(9), k = 1 + draw.Below(70), n = 1 + draw.Below(9);
    const DotDims dims = {.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
    DotGeneralConfig config;
    std::map<std::string, const TensorConfig*> operands = {
        {"fwd.lhs", &config.fwd.lhs},   {"fwd.rhs", &config.fwd.rhs},   {"dlhs.lhs", &config.dlhs.lhs},
        {"dlhs.rhs", &config.dlhs.rhs}, {"drhs.lhs", &config.drhs.lhs}, {"drhs.rhs", &config.drhs.rhs}};
    for (auto& [name, tensor] : operands) const_cast<TensorConfig*>(tensor)->quantizer = RandomQuantizer(draw);
    config.dlhs.rhs.use_fwd_quant = draw.Below(3) == 0;
    config.drhs.rhs.use_fwd_quant = draw.Below(3) == 0;
    const Aval lhs_aval{dtype, {b, m, k}}, rhs_aval{dtype, {b, k, n}}, out_aval{dtype, {b, m, n}};
    const absl::StatusOr<DotGeneralPlan> plan =
        DotGeneralPlan::Make(config, lhs_aval, rhs_aval, dims, {.semantics = semantics});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const DotGeneralPlan scalar = OnTarget(*plan, kernels::Target::kScalar);
    std::vector<Array> forward = Initial(plan->forward_state()), backward = Initial(plan->backward_state());
    for (uint64_t step = 0; step < 5; ++step) {
      const Array lhs = RandomArray(dtype, lhs_aval.shape, seed * 100 + step * 3, 2),
                  g = RandomArray(dtype, out_aval.shape, seed * 100 + step * 3 + 1);
      const Array rhs = RandomArray(dtype, rhs_aval.shape, seed * 100 + step * 3 + 2);
      Context context{.quant_mode = step == 0 ? QuantMode::kCalibrate : kModes[draw.Below(4)]};
      if (step > 0 && draw.Below(2) == 0) context.rhs_quant_mode = kModes[draw.Below(4)];
      const std::string what = absl::StrCat("seed ", seed, " step ", step);

      Recorder recorder;
      const Step observed = RunStep(*plan, lhs, rhs, g, forward, backward, context, {.observer = &recorder});
      // Fused, with threads, and on the simplest target: the same bits. (Float products depend on the target; see
      // docs/bits.md.)
      const Step fused = RunStep(*plan, lhs, rhs, g, forward, backward, context);
      EXPECT_TRUE(SameResults(fused.results, observed.results)) << what;
      EXPECT_TRUE(SameArrays(fused.forward, observed.forward) && SameArrays(fused.backward, observed.backward)) << what;
      const Step threads = RunStep(scalar, lhs, rhs, g, forward, backward, context, {.executor = &pool});
      EXPECT_TRUE(SameArrays(threads.forward, observed.forward) && SameArrays(threads.backward, observed.backward))
          << what;

      const std::map<std::string, std::pair<Array, Axes>> tensors = {{"fwd.lhs", {lhs, {2}}}, {"fwd.rhs", {rhs, {1}}},
                                                                     {"dlhs.lhs", {g, {2}}},  {"dlhs.rhs", {rhs, {2}}},
                                                                     {"drhs.lhs", {g, {1}}},  {"drhs.rhs", {lhs, {1}}}};
      for (const auto& [name, tensor] : operands) {
        const Quantizer& quantizer = tensor->quantizer;
        if (!HasState(quantizer)) continue;
        const bool is_forward = name[0] == 'f';
        // In a backward pass with use_fwd_quant the operands are computed from the forward qvalues and scales; the
        // observer does not see them.
        if (name[1] == 'l' && config.dlhs.rhs.use_fwd_quant) continue;
        if (name[1] == 'r' && config.drhs.rhs.use_fwd_quant) continue;
        const absl::Span<const StateSlot> slots = is_forward ? plan->forward_state() : plan->backward_state();
        const auto& [x, axes] = tensors.at(name);
        const bool rhs_side = name[name.size() - 3] == 'r';
        const QuantMode mode = rhs_side ? context.rhs_quant_mode.value_or(context.quant_mode) : context.quant_mode;
        const absl::StatusOr<CalibratedTensor> want = CalibrateWithState(
            quantizer, StateOf(name, slots, is_forward ? forward : backward), x, axes, {.quant_mode = mode}, semantics);
        ASSERT_TRUE(want.ok()) << what << name << want.status();
        EXPECT_TRUE(SameValues(recorder.tensors.at(absl::StrCat(name, ".scale")), want->qtensor.scale[0]))
            << what << name;
        const CalibrationState got = StateOf(name, slots, is_forward ? observed.forward : observed.backward);
        for (const auto& [stat, array] : want->state)
          EXPECT_TRUE(SameValues(got.at(stat), array)) << what << name << stat;
        ++seen[absl::StrCat(name, " ", quantizer.calibration->index())];
      }
      forward = observed.forward;
      backward = observed.backward;
    }
  }
  EXPECT_EQ(seen.size(), 18u);  // three calibrations, six operands
  for (const auto& [name, count] : seen) EXPECT_GE(count, 5) << name;
}

DotGeneralConfig Delayed() {
  DotGeneralConfig config = *FullyQuantized({.use_stochastic_rounding = false});
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    raw->lhs.quantizer.calibration = raw->rhs.quantizer.calibration = DelayedScaling{.amax_history_length = 3};
  }
  return config;
}

TEST(DotGeneralState, Slots) {
  DotGeneralConfig config = Delayed();
  config.fwd.lhs.quantizer.calibration = MeanOfAbsMax{};
  config.dlhs.rhs.quantizer.calibration = AbsMax{};
  const absl::StatusOr<DotGeneralPlan> plan =
      DotGeneralPlan::Make(config, {DType::kBF16, {4, 8}}, {DType::kBF16, {8, 5}}, MatMulDims());
  ASSERT_TRUE(plan.ok());
  std::vector<std::string> names;
  for (const StateSlot& slot : plan->forward_state()) {
    names.push_back(absl::StrCat(slot.operand, "/", slot.name, " ", slot.initial.aval().ToString(),
                                 slot.updated_in_train ? " train" : ""));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"fwd.lhs/sum_of_max bf16[4,1]", "fwd.lhs/count s32[]",
                                             "fwd.rhs/amax_history f32[3] train", "fwd.rhs/bound f32[1] train"}));
  names.clear();
  for (const StateSlot& slot : plan->backward_state()) names.push_back(absl::StrCat(slot.operand, "/", slot.name));
  EXPECT_EQ(names, (std::vector<std::string>{"dlhs.lhs/amax_history", "dlhs.lhs/bound", "drhs.lhs/amax_history",
                                             "drhs.lhs/bound", "drhs.rhs/amax_history", "drhs.rhs/bound"}));
}

// Products of integers and every calibration with state: out, gradients and statistics have the same bits for any
// number of threads on any target.
TEST(DotGeneralState, ThreadsAndTargetsGiveTheSameBits) {
  const Array lhs = RandomArray(DType::kF32, {130, 257}, 1), rhs = RandomArray(DType::kF32, {257, 120}, 2),
              g = RandomArray(DType::kF32, {130, 120}, 3);
  for (const Calibration& calibration :
       {Calibration(MeanOfAbsMax{}),
        Calibration(WeightedStats{.l1_dev_coeff = 0.5, .lp_dev_coeff = 1, .max_dev_coeff = 1}),
        Calibration(DelayedScaling{.amax_history_length = 3})}) {
    DotGeneralConfig config = Delayed();
    for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
      raw->lhs.quantizer.calibration = raw->rhs.quantizer.calibration = calibration;
    }
    const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Context context{.quant_mode = QuantMode::kCalibrate};
    const DotGeneralPlan scalar = OnTarget(*plan, kernels::Target::kScalar);
    const Step first =
        RunStep(scalar, lhs, rhs, g, Initial(plan->forward_state()), Initial(plan->backward_state()), context);
    const Step want = RunStep(scalar, lhs, rhs, g, first.forward, first.backward, context);
    for (const kernels::Target target : kernels::SupportedTargets()) {
      const DotGeneralPlan on_target = OnTarget(*plan, target);
      for (const int threads : {1, 2, 7}) {
        kernels::ThreadPool pool(threads);
        const Step got = RunStep(on_target, lhs, rhs, g, first.forward, first.backward, context, {.executor = &pool});
        EXPECT_TRUE(SameResults(got.results, want.results)) << calibration.index() << " " << threads << " " << target;
        EXPECT_TRUE(SameArrays(got.forward, want.forward) && SameArrays(got.backward, want.backward))
            << calibration.index() << " " << threads << " threads, " << target;
      }
    }
  }
}

// Statistics may be updated in place, and do not depend on which gradients are requested.
TEST(DotGeneralState, InPlaceAndWithoutGradients) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2),
              g = RandomArray(DType::kF32, {4, 5}, 3);
  const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(Delayed(), lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(plan.ok());
  std::vector<Array> forward = Initial(plan->forward_state()), backward = Initial(plan->backward_state());
  Memory fwd(forward), bwd(backward);
  for (size_t i = 0; i < fwd.old.size(); ++i) fwd.old[i] = fwd.updated[i];
  for (size_t i = 0; i < bwd.old.size(); ++i) bwd.old[i] = bwd.updated[i];
  for (int step = 0; step < 5; ++step) {
    const Step want = RunStep(*plan, lhs, rhs, g, forward, backward, {});
    forward = want.forward;
    backward = want.backward;
    ArrayBuilder out(plan->out_aval()), drhs(plan->rhs_aval());
    Residuals residuals;
    ASSERT_EQ(plan->Forward(lhs, rhs, {}, out.ref(), &residuals, {}, fwd.Arrays()), absl::OkStatus());
    const std::optional<MutableArrayRef> wanted = step % 2 == 0 ? std::optional(drhs.ref()) : std::nullopt;
    ASSERT_EQ(plan->Backward(g, residuals, {}, std::nullopt, wanted, {}, bwd.Arrays()), absl::OkStatus());
    for (size_t i = 0; i < forward.size(); ++i) EXPECT_TRUE(SameValues(Array::CopyOf(fwd.old[i]), forward[i])) << step;
    for (size_t i = 0; i < backward.size(); ++i)
      EXPECT_TRUE(SameValues(Array::CopyOf(bwd.old[i]), backward[i])) << step;
    // In the first step all scales are 0.
    const Array product = std::move(out).Build();
    EXPECT_EQ(SameValues(product, Array::Zeros(DType::kF32, {4, 5})), step == 0) << step;
  }
}

// SERVE gives the same with frozen scales as with the statistics.
TEST(DotGeneralState, FrozenScalesGiveTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    DotGeneralConfig config = *FullyQuantized({.use_stochastic_rounding = false});
    config.fwd.lhs.quantizer.calibration = MeanOfAbsMax{};
    config.fwd.lhs.quantizer.calib_shared_axes.per_tensor = true;
    const Array rhs = RandomArray(dtype, {64, 5}, 2);
    std::vector<Array> state;
    for (const int64_t batch : {3, 1, 20}) {  // one state for all batches
      const absl::StatusOr<DotGeneralPlan> plan =
          DotGeneralPlan::Make(config, {dtype, {batch, 64}}, rhs.aval(), MatMulDims());
      ASSERT_TRUE(plan.ok());
      if (state.empty()) state = Initial(plan->forward_state());
      const Array lhs = RandomArray(dtype, {batch, 64}, static_cast<uint64_t>(batch));
      ArrayBuilder out(plan->out_aval()), served(plan->out_aval());
      Memory calibrate(state);
      ASSERT_EQ(
          plan->Forward(lhs, rhs, {.quant_mode = QuantMode::kCalibrate}, out.ref(), nullptr, {}, calibrate.Arrays()),
          absl::OkStatus());
      state = calibrate.Take();
      const Memory memory(state);
      ASSERT_EQ(plan->Forward(lhs, rhs, {.quant_mode = QuantMode::kServe}, out.ref(), nullptr, {}, {.old = memory.old}),
                absl::OkStatus());
      const absl::StatusOr<Array> scale =
          StaticScale(config.fwd.lhs.quantizer, StateOf("fwd.lhs", plan->forward_state(), state), lhs.aval(), {1});
      ASSERT_TRUE(scale.ok()) << scale.status();
      const absl::StatusOr<PreparedOperand> prepared =
          plan->Prepare(Side::kLhs, QTensor{.scale = {*scale}, .dequant_dtype = dtype});
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      ASSERT_EQ(plan->Forward({lhs, *prepared}, rhs, {}, served.ref()), absl::OkStatus());
      EXPECT_TRUE(SameValues(std::move(served).Build(), std::move(out).Build())) << batch;
    }
  }
}

TEST(DotGeneralState, Errors) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2),
              g = RandomArray(DType::kF32, {4, 5}, 3);
  const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(Delayed(), lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(plan.ok());
  const Memory fwd(Initial(plan->forward_state())), bwd(Initial(plan->backward_state()));
  ArrayBuilder out(plan->out_aval()), dlhs(plan->lhs_aval());
  Residuals residuals;
  const auto forward = [&](const StateArrays& state, const Context& context = {}) {
    return plan->Forward(lhs, rhs, context, out.ref(), &residuals, {}, state);
  };
  absl::Status status = forward({});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "DotGeneral: fwd.lhs has a calibration with state: pass StateArrays with 4 old arrays, not 0; "
            "StateSlot::initial has those of the first call");
  status = forward({.old = fwd.old});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "DotGeneral: fwd.lhs has a calibration with state: pass StateArrays with 4 updated arrays, not 0; "
            "StateSlot::initial has those of the first call");
  std::vector<ArrayRef> wrong = fwd.old;
  std::swap(wrong[0], wrong[1]);
  status = forward({wrong, fwd.updated});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "DotGeneral: the old statistic fwd.lhs/amax_history is f32[1], but the plan is for a dense f32[3]");
  wrong = fwd.old;
  wrong[1].data = nullptr;
  status = forward({wrong, fwd.updated});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "DotGeneral: the old statistic fwd.lhs/bound is f32[1] without data, but the plan is for a dense f32[1]");
  status = forward({.old = fwd.old}, {.quant_mode = QuantMode::kServe});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      status.message(),
      "DotGeneral: fwd.lhs: DelayedScaling has seen no calibration batch, so in QUANT_MODE_SERVE there is no scale to "
      "read; run some batches in QUANT_MODE_CALIBRATE first and pass the resulting state");
  const absl::StatusOr<DotGeneralPlan> original =
      DotGeneralPlan::Make(plan->config(), plan->lhs_aval(), plan->rhs_aval(), plan->dims(),
                           {.semantics = {.compat = {.read_unseen_calibration = true}}});
  EXPECT_EQ(original->Forward(lhs, rhs, {.quant_mode = QuantMode::kServe}, out.ref(), nullptr, {}, {.old = fwd.old}),
            absl::OkStatus());
  ASSERT_EQ(forward(fwd.Arrays()), absl::OkStatus());
  status = plan->Backward(g, residuals, {}, dlhs.ref(), std::nullopt);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "DotGeneral: dlhs.lhs has a calibration with state: pass StateArrays with 8 old arrays, not 0; "
            "StateSlot::initial has those of the first call");
  status = plan->Prepare(Side::kRhs, rhs.ref()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(QuantizedDotGeneral(Delayed(), lhs, rhs, MatMulDims()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace aqt
