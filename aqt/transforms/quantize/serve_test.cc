#include "aqt/transforms/quantize/serve.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kY{SlotKind::kData, "y"};
const Slot kFirst{SlotKind::kParam, "first"}, kSecond{SlotKind::kParam, "second"}, kShift{SlotKind::kStat, "shift"};

// Two products, and a statistic that stays in float.
absl::StatusOr<Program> Model(int64_t rows) {
  return Trace(
      [](In in) {
        const Value first = InputSlot(kFirst, {DType::kF32, {6, 5}}),
                    second = InputSlot(kSecond, {DType::kF32, {5, 3}});
        Value hidden;
        {
          const NamedScope scope("first");
          hidden = ops::MatMul(in[0], first) + InputSlot(kShift, {DType::kF32, {5}});
        }
        const NamedScope scope("second");
        return Values{ops::MatMul(hidden, second)};
      },
      {{kX, {DType::kF32, {rows, 6}}}}, std::vector<Slot>{kY});
}

// The first product keeps statistics of its activations, the second has none.
InjectConfig Config() {
  return *InjectConfigFromText(R"pb(
    schema: 1
    rules {
      scope: "first"
      dot_general {
        base: "int8_fwd"
        clear: "fwd.lhs.quantizer.abs_max"
        fwd {
          lhs {
            quantizer {
              mean_of_abs_max {}
              calib_shared_axes { per_tensor: true }
            }
          }
        }
      }
    }
    rules {
      scope: "second"
      dot_general { base: "int8_fwd" }
    }
    arithmetic: ARITHMETIC_IEEE
  )pb");
}

SlotValues Known() {
  InjectConfig calibrate = Config();
  calibrate.data_mode = QuantMode::kCalibrate;
  SlotValues values = {{kFirst, RandomArray({DType::kF32, {6, 5}}, 1)},
                       {kSecond, RandomArray({DType::kF32, {5, 3}}, 2)},
                       {kShift, RandomArray({DType::kF32, {5}}, 3)},
                       {{SlotKind::kStat, "sgd/first"}, Array::Scalar(0.0f)}};
  const Program program = *Inject(*Model(8), calibrate);
  values.merge(InitialStats(program));
  values[kX] = RandomArray({DType::kF32, {8, 6}}, 4);
  const absl::StatusOr<SlotValues> calibrated = EvalSlots(program, values);
  for (const auto& [slot, array] : *calibrated) {
    if (slot.kind == SlotKind::kStat) values[slot] = array;
  }
  values.erase(kX);
  return values;
}

TEST(ServeTest, WhatIsServedIsWhatWasTrained) {
  const SlotValues known = Known();
  const absl::StatusOr<SlotValues> frozen = Freeze(*Model(1), Config(), known);
  ASSERT_THAT(frozen, IsOk());
  std::vector<std::string> names;
  for (const auto& [slot, array] : *frozen) names.push_back(slot.ToString() + " " + array.aval().ToString());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "stat \"shift\" f32[5]", "frozen \"first/qlhs/scale\" f32[1,1]",
                         "frozen \"first/qrhs/scale\" f32[1,5]", "frozen \"first/qrhs/value\" s8[6,5]",
                         "frozen \"second/qrhs/scale\" f32[1,3]", "frozen \"second/qrhs/value\" s8[5,3]"));
  for (const int64_t rows : {1, 7}) {
    const absl::StatusOr<Program> serve = ServeProgram(*Model(rows), Config(), *frozen);
    ASSERT_THAT(serve, IsOk());
    EXPECT_TRUE(serve->InputsOfKind(SlotKind::kParam).empty());
    SlotValues served = *frozen, trained = known;
    served[kX] = trained[kX] = RandomArray({DType::kF32, {rows, 6}}, 5);
    const absl::StatusOr<SlotValues> got = EvalSlots(*serve, served),
                                     want = EvalSlots(*Inject(*Model(rows), Config()), trained);
    ASSERT_THAT(got, IsOk());
    ASSERT_THAT(want, IsOk());
    EXPECT_TRUE(BitEqual(got->at(kY), want->at(kY))) << rows;
  }
}

TEST(ServeTest, Errors) {
  SlotValues known = Known();
  const SlotValues frozen = *Freeze(*Model(1), Config(), known);
  known.erase(kSecond);
  EXPECT_THAT(Freeze(*Model(1), Config(), known), FailsWith(absl::StatusCode::kNotFound, {"param \"second\""}));
  SlotValues incomplete = frozen;
  incomplete.erase({SlotKind::kFrozen, "first/qlhs/scale"});
  EXPECT_THAT(ServeProgram(*Model(1), Config(), incomplete),
              FailsWith(absl::StatusCode::kNotFound, {"first/qlhs/scale"}));
}

}  // namespace
}  // namespace aqt
