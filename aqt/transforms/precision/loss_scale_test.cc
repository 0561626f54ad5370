#include "aqt/transforms/precision/loss_scale.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"

namespace aqt {
namespace {

using ::testing::HasSubstr;
using Values = absl::Span<const Value>;
using Outputs = std::vector<Value>;

const Slot kX{SlotKind::kParam, "x"}, kLoss{SlotKind::kData, "0"}, kGrad{SlotKind::kData, "grad(x)"};
const Slot kFinite{SlotKind::kData, "dynamic_scaler/finite"};

Slot State(const char* field) { return {SlotKind::kStat, std::string("dynamic_scaler/") + field}; }
double Number(const Array& array) { return Cast(array, DType::kF64).View<double>()[0]; }

Program Cube(DType dtype) {
  return *Trace([](Values in) { return Outputs{ops::IntegerPow(in[0], 3)}; }, {{{kX, {dtype, {}}}}});
}

// Calls a program repeatedly with its own state.
struct Caller {
  Program program;
  SlotValues state;
  int redo;

  SlotValues Call(const Array& x) {
    SlotValues values = state;
    values.insert_or_assign(kX, x);
    SlotValues out = *EvalWithRedo(program, values, redo);
    for (auto& [slot, array] : state) array = out.at(slot);
    return out;
  }
  double Of(const char* field) const { return Number(state.at(State(field))); }
};

const Array kTwo = Cast(Array::Scalar<float>(2), DType::kF16);

// The numbers of the original's public example.
TEST(DynamicScale, SearchesAScalerThatFits) {
  const DynamicScaler scaler{.patience = 10};
  Caller caller{*DynamicScaleGrad(Cube(DType::kF16), {{0}}, scaler), InitialScalerState(scaler), 100};
  const SlotValues first = caller.Call(kTwo);
  EXPECT_EQ(caller.Of("scaler"), 4096);
  EXPECT_EQ(caller.Of("count"), 1);
  EXPECT_EQ(caller.Of("total_resets"), 3);
  EXPECT_EQ(Number(first.at(kGrad)), 12);
  EXPECT_EQ(first.at(kGrad).dtype(), DType::kF32);
  for (int call = 2; call <= 10; ++call) caller.Call(kTwo);
  EXPECT_EQ(caller.Of("count"), 10);
  caller.Call(kTwo);
  EXPECT_EQ(caller.Of("scaler"), 8192);
  EXPECT_EQ(caller.Of("count"), 0);
  caller.Call(kTwo);
  EXPECT_EQ(caller.Of("scaler"), 4096);
  EXPECT_EQ(caller.Of("total_resets"), 4);
}

TEST(DynamicScale, WithoutRedoTheLastResultsAreReturned) {
  Caller caller{*DynamicScaleValueAndGrad(Cube(DType::kF16), {{0}}), InitialScalerState({}), 0};
  const SlotValues first = caller.Call(kTwo);
  EXPECT_FALSE(first.at(kFinite).View<bool>()[0]);
  EXPECT_TRUE(std::isinf(Number(first.at(kGrad))));
  EXPECT_EQ(caller.Of("scaler"), 16384);
  for (int call = 2; call <= 3; ++call) caller.Call(kTwo);
  const SlotValues last = caller.Call(kTwo);
  EXPECT_TRUE(last.at(kFinite).View<bool>()[0]);
  EXPECT_EQ(Number(last.at(kLoss)), 8);
  EXPECT_EQ(caller.Of("scaler"), 4096);
}

// A gradient ignores the value, but not the program's other outputs.
TEST(DynamicScale, OtherOutputsMustBeFinite) {
  const Program loss = *Trace(
      [](Values in) {
        return Outputs{in[0] * in[0], ValueOrNumber(NAN).As(DType::kF32)};
      },
      {{{kX, {DType::kF32, {}}}}});
  Caller caller{*DynamicScaleGrad(loss, {{0}}), InitialScalerState({}), 2};
  const SlotValues out = caller.Call(Array::Scalar<float>(3));
  EXPECT_FALSE(out.contains(kLoss));
  EXPECT_EQ(Number(out.at(kGrad)), 6);
  EXPECT_EQ(caller.Of("total_resets"), 3);
  EXPECT_EQ(caller.Of("scaler"), 4096);
}

Program Linear() {
  return *Trace([](Values in) { return Outputs{ops::ReduceSum(in[0])}; }, {{{kX, {DType::kF32, {2}}}}});
}

TEST(DynamicScale, Limits) {
  DynamicScaler scaler{.patience = 0, .scaler = 4, .max = 8};
  Caller caller{*DynamicScaleGrad(Linear(), {{0}}, scaler), InitialScalerState(scaler), 0};
  for (int i = 0; i < 5; ++i) caller.Call(Array::Of<float>({1, 2}, {2}));
  EXPECT_EQ(caller.Of("scaler"), 8);
  scaler = {.scaler = 4, .min = 2};
  const ScalerValues state{Value(Array::Scalar<int32_t>(5)), Value(Array::Scalar<float>(2)),
                           Value(Array::Scalar<float>(2)), Value(Array::Scalar<int32_t>(1)),
                           Value(Array::Scalar<int32_t>(0))};
  const ScalerValues next = UpdateScaler(state, Value(Array::Scalar<bool>(false)), scaler);
  EXPECT_EQ(Number(*next.scaler.ToArray()), 2);
  EXPECT_EQ(Number(*next.total_resets.ToArray()), 1);
}

// By default a subnormal scaler is kept; the original flushes it.
TEST(DynamicScale, SubnormalScalers) {
  for (const bool zero : {false, true}) {
    const ScalerValues state{Value(Array::Scalar<int32_t>(5)), Value(Array::Scalar<float>(2)),
                             Value(Array::Scalar<float>(0x1p-126f)), Value(Array::Scalar<int32_t>(1)),
                             Value(Array::Scalar<int32_t>(0))};
    const ScalerValues next = UpdateScaler(state, Value(Array::Scalar<bool>(false)), {.subnormals_are_zero = zero});
    EXPECT_EQ(Number(*next.scaler.ToArray()), zero ? 0 : 0x1p-127);
  }
}

TEST(DynamicScale, AnEmptyGradientIsFinite) {
  const Program loss = *Trace([](Values in) { return Outputs{ops::ReduceSum(in[0])}; }, {{{kX, {DType::kF32, {0}}}}});
  Caller caller{*DynamicScaleGrad(loss, {{0}}), InitialScalerState({}), 0};
  EXPECT_TRUE(caller.Call(Array::Zeros(DType::kF32, {0})).at(kFinite).View<bool>()[0]);
}

// Zeros are finite, so the scaler grows: nothing shows that they came from an underflow.
TEST(DynamicScale, GradientsOfZerosAreFinite) {
  const Program loss =
      *Trace([](Values in) { return Outputs{ops::ReduceSum(in[0] * 0.0)}; }, {{{kX, {DType::kF32, {2}}}}});
  const DynamicScaler scaler{.patience = 1, .scaler = 4};
  Caller caller{*DynamicScaleGrad(loss, {{0}}, scaler), InitialScalerState(scaler), 0};
  for (int i = 0; i < 2; ++i) {
    const SlotValues out = caller.Call(Array::Of<float>({1, 2}, {2}));
    EXPECT_TRUE(out.at(kFinite).View<bool>()[0]);
    EXPECT_EQ(Number(out.at(kGrad)), 0);
  }
  EXPECT_EQ(caller.Of("scaler"), 8);
  EXPECT_EQ(caller.Of("total_resets"), 0);
}

// Without parameters only the value decides.
TEST(DynamicScale, NoParameters) {
  Caller caller{*DynamicScaleValueAndGrad(Linear(), {}), InitialScalerState({}), 0};
  const SlotValues out = caller.Call(Array::Of<float>({1, 2}, {2}));
  EXPECT_TRUE(out.at(kFinite).View<bool>()[0]);
  EXPECT_EQ(Number(out.at(kLoss)), 3);
  EXPECT_EQ(caller.Of("count"), 1);
}

// A scaler of f16 halves down to 2^-24, then becomes 0 and never recovers; with `min` it stays above.
TEST(DynamicScale, ScalersOfF16Underflow) {
  for (const std::optional<double> least : {std::optional<double>(), std::optional<double>(0x1p-14)}) {
    const DynamicScaler scaler{.scaler = 0x1p-23, .dtype = DType::kF16, .min = least};
    ScalerValues state{Value(Array::Scalar<int32_t>(5)), Value(Cast(Array::Scalar(2.0f), DType::kF16)),
                       Value(Cast(Array::Scalar(0x1p-23f), DType::kF16)), Value(Array::Scalar<int32_t>(1)),
                       Value(Array::Scalar<int32_t>(0))};
    std::vector<double> scalers;
    for (int i = 0; i < 3; ++i) {
      state = UpdateScaler(state, Value(Array::Scalar<bool>(false)), scaler);
      scalers.push_back(Number(*state.scaler.ToArray()));
    }
    if (least.has_value()) {
      EXPECT_EQ(scalers, (std::vector<double>{0x1p-14, 0x1p-14, 0x1p-14}));
    } else {
      EXPECT_EQ(scalers, (std::vector<double>{0x1p-24, 0, 0}));
    }
  }
}

TEST(DynamicScale, Errors) {
  const auto message = [](const DynamicScaler& scaler) {
    return std::string(DynamicScaleGrad(Linear(), {{0}}, scaler).status().message());
  };
  EXPECT_THAT(message({.dtype = DType::kS32}), HasSubstr("dtype is s32, expected f32, f16 or bf16"));
  EXPECT_THAT(message({.scaler = HUGE_VAL}), HasSubstr("scaler > 0, finite in f32"));
  EXPECT_THAT(message({.scaler = 1e6, .dtype = DType::kF16}), HasSubstr("scaler > 0, finite in f16"));
  EXPECT_THAT(message({.adjust_factor = 1.0001, .dtype = DType::kF16}), HasSubstr("adjust_factor = 1.0001"));
  EXPECT_THAT(message({.min = std::nan("")}), HasSubstr("min = nan, expected a finite number"));
  EXPECT_THAT(message({.max = -5}), HasSubstr("max = -5, expected a number > 0"));
  EXPECT_THAT(message({.adjust_factor = 1}), HasSubstr("expected patience >= 0, adjust_factor > 1 and scaler > 0"));
  EXPECT_THAT(message({.min = 4, .max = 2}), HasSubstr("min = 4 is not below max = 2"));
  const Program own =
      *Trace([](Values in) { return Outputs{ops::ReduceSum(in[0])}; }, {{{State("scaler"), {DType::kF32, {2}}}}});
  EXPECT_THAT(DynamicScaleGrad(own, {{0}}).status().message(), HasSubstr("a name of the scaler's state; rename it"));
  EXPECT_THAT(EvalWithRedo(Linear(), {{kX, Array::Zeros(DType::kF32, {2})}}, 0).status().message(),
              HasSubstr("make it with DynamicScaleGrad"));
  EXPECT_THAT(EvalWithRedo(Linear(), {}, -1).status().message(), HasSubstr("expected 0 or more"));
}

}  // namespace
}  // namespace aqt
