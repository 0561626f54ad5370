// Calibrations with state in einsums, convolutions and ragged contractions; dot_general_state_test.cc tests DotGeneral.

#include "aqt/quant/config/state_arrays.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {
namespace {

const Context kCalibrate{.quant_mode = QuantMode::kCalibrate};

// The statistics of the first call, updated in place.
struct State {
  explicit State(absl::Span<const StateSlot> slots) {
    for (const StateSlot& slot : slots) {
      names.push_back(slot.operand + "/" + slot.name);
      arrays.emplace_back(slot.initial.aval());
      EXPECT_TRUE(CopyArray(slot.initial, arrays.back().ref()).ok());
    }
    for (ArrayBuilder& array : arrays) {
      updated.push_back(array.ref());
      old.push_back(array.ref());
    }
  }
  StateArrays refs() const { return {.old = old, .updated = updated}; }
  Array At(const std::string& name) const {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name) return Array::CopyOf(old[i]);
    }
    ADD_FAILURE() << "no statistic " << name;
    return Array();
  }

  std::vector<std::string> names;
  std::vector<ArrayBuilder> arrays;
  std::vector<ArrayRef> old;
  std::vector<MutableArrayRef> updated;
};

// The result of CalibrateWithState for one tensor after `tensors`; checks that the state of the plan is the same.
QTensor Calibrated(const Quantizer& quantizer, absl::Span<const Array> tensors, const Axes& axes, const State& state,
                   const std::string& operand) {
  CalibratedTensor result;
  result.state = *InitialCalibrationState(quantizer, tensors[0].aval(), axes);
  for (const Array& x : tensors) result = *CalibrateWithState(quantizer, result.state, x, axes, kCalibrate);
  EXPECT_FALSE(result.state.empty());
  for (const auto& [name, array] : result.state) {
    EXPECT_TRUE(BitEqual(state.At(operand + "/" + name), array)) << operand << "/" << name;
  }
  return result.qtensor;
}

// Calibrates two batches. `forward` runs one; `with_scales` runs the second with given scales.
template <class Plan, class Forward, class WithScales>
void ExpectStateIsThatOfTheOperands(const Plan& plan, absl::Span<const StateSlot> slots, const Quantizer& lhs_quantizer,
                                    const Quantizer& rhs_quantizer, const Axes& lhs_axes, const Axes& rhs_axes,
                                    Forward forward, WithScales with_scales) {
  const Array lhs[] = {RandomArray(DType::kF32, plan.lhs_aval().shape, 1),
                       RandomArray(DType::kF32, plan.lhs_aval().shape, 2, 3)};
  const Array rhs[] = {RandomArray(DType::kF32, plan.rhs_aval().shape, 3),
                       RandomArray(DType::kF32, plan.rhs_aval().shape, 4)};
  State state(slots);
  ArrayBuilder out(plan.out_aval()), want(plan.out_aval());
  // Missing statistics are reported.
  const absl::Status missing = forward(lhs[0], rhs[0], out.ref(), StateArrays());
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(missing.message().find("has a calibration with state: pass StateArrays with"), std::string::npos)
      << missing;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(forward(lhs[i], rhs[i], out.ref(), state.refs()), absl::OkStatus());
  const QTensor lhs_scale = Calibrated(lhs_quantizer, lhs, lhs_axes, state, "fwd.lhs");
  const QTensor rhs_scale = Calibrated(rhs_quantizer, rhs, rhs_axes, state, "fwd.rhs");
  ASSERT_EQ(with_scales(DotOperand(lhs[1], *plan.Prepare(Side::kLhs, lhs_scale)),
                        DotOperand(rhs[1], *plan.Prepare(Side::kRhs, rhs_scale)), want.ref()),
            absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(out).Build(), std::move(want).Build()));
}

TEST(StateArrays, RaggedDot) {
  DotGeneralConfig config = DotGeneralMake(8, 8, {.bwd_bits = 8, .use_fwd_quant = false});
  config.fwd.lhs.quantizer.calibration = MeanOfAbsMax{};
  config.fwd.rhs.quantizer.calibration = WeightedStats{.max_dev_coeff = 1};
  config.dlhs.lhs.quantizer.calibration = DelayedScaling{.amax_history_length = 4};
  const RaggedDotPlan plan = *RaggedDotPlan::Make(config, {DType::kF32, {6, 8}}, {DType::kF32, {3, 8, 5}});
  const std::vector<int64_t> groups = {2, 0, 4};
  ExpectStateIsThatOfTheOperands(
      plan, plan.forward_state(), config.fwd.lhs.quantizer, config.fwd.rhs.quantizer, {1}, {0, 1},
      [&](const Array& lhs, const Array& rhs, const MutableArrayRef& out, const StateArrays& state) {
        return plan.Forward(lhs, rhs, groups, kCalibrate, out, nullptr, {}, state);
      },
      [&](const DotOperand& lhs, const DotOperand& rhs, const MutableArrayRef& out) {
        return plan.Forward(lhs, rhs, groups, {}, out);
      });

  // Backward: the statistics of the incoming gradient.
  const Array lhs = RandomArray(DType::kF32, {6, 8}, 1), rhs = RandomArray(DType::kF32, {3, 8, 5}, 2);
  const Array g = RandomArray(DType::kF32, {6, 5}, 3);
  State forward(plan.forward_state()), backward(plan.backward_state());
  ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval());
  Residuals residuals;
  ASSERT_EQ(plan.Forward(lhs, rhs, groups, kCalibrate, out.ref(), &residuals, {}, forward.refs()), absl::OkStatus());
  ASSERT_EQ(plan.Backward(g, residuals, groups, kCalibrate, dlhs.ref(), std::nullopt, {}, backward.refs()),
            absl::OkStatus());
  Calibrated(config.dlhs.lhs.quantizer, {g}, {1}, backward, "dlhs.lhs");
}

TEST(StateArrays, ConvGeneral) {
  DotGeneralRawConfig config = ConvGeneralDilatedMake(1, 8, 8);
  config.lhs.quantizer.calibration = MeanOfAbsMax{};
  config.rhs.quantizer.calibration = MeanOfAbsMax{};
  const ConvGeneralPlan plan = *ConvGeneralPlan::Make(config, {DType::kF32, {2, 9, 4}}, {DType::kF32, {3, 4, 6}},
                                                      {.padding = ConvPadding::kSame});
  ExpectStateIsThatOfTheOperands(
      plan, plan.forward_state(), config.lhs.quantizer, config.rhs.quantizer, {1, 2}, {0, 1},
      [&](const Array& lhs, const Array& rhs, const MutableArrayRef& out, const StateArrays& state) {
        return plan.Forward(lhs, rhs, kCalibrate, out, nullptr, {}, state);
      },
      [&](const DotOperand& lhs, const DotOperand& rhs, const MutableArrayRef& out) {
        return plan.Forward(lhs, rhs, {}, out);
      });
  // A batch must have been seen.
  State unseen(plan.forward_state());
  ArrayBuilder out(plan.out_aval());
  const Array lhs = RandomArray(DType::kF32, {2, 9, 4}, 1), rhs = RandomArray(DType::kF32, {3, 4, 6}, 2);
  const absl::Status status = plan.Forward(lhs, rhs, {}, out.ref(), nullptr, {}, unseen.refs());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message().substr(0, 22), "conv_general: fwd.lhs:") << status;
}

// The operands of the product are exchanged: its fwd.rhs is the first operand of the equation.
TEST(StateArrays, EinsumThatExchangesItsOperands) {
  DotGeneralConfig config = DotGeneralMake(8, 8);
  config.fwd.lhs.quantizer.calibration = MeanOfAbsMax{};
  const EinsumPlan plan = *EinsumPlan::Make("bc,ab->ac", config, {DType::kF32, {4, 5}}, {DType::kF32, {3, 4}});
  ASSERT_TRUE(plan.swapped());
  State state(plan.dot_general().forward_state());
  const Array lhs = RandomArray(DType::kF32, {4, 5}, 1), rhs = RandomArray(DType::kF32, {3, 4}, 2);
  ArrayBuilder out(plan.out_aval()), want(plan.out_aval());
  // Only the first operand has mode CALIBRATE.
  const Context context{.quant_mode = QuantMode::kCalibrate, .rhs_quant_mode = QuantMode::kTrain};
  ASSERT_EQ(plan.Forward(lhs, rhs, context, out.ref(), nullptr, {}, state.refs()), absl::OkStatus());
  const QTensor scale = Calibrated(config.fwd.lhs.quantizer, {lhs}, {0}, state, "fwd.rhs");
  ASSERT_EQ(plan.Forward(DotOperand(lhs, *plan.Prepare(Side::kLhs, scale)), rhs, {}, want.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(out).Build(), std::move(want).Build()));
}

}  // namespace
}  // namespace aqt
