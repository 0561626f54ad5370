// From float parameters to static-range serving with one textproto: calibrate, convert, fold, serve.

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/io/file.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/calibrate.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/quantize/fold.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kLogits{SlotKind::kData, "logits"};

std::vector<Value> Model(In in) {
  return {Dense(ops::Relu(Dense(in[0], "fc1", {.features = 9})), "fc2", {.features = 4})};
}

std::vector<Input> Inputs(int64_t batch) { return {{kX, {DType::kF32, {batch, 6}}}}; }
Program Traced(int64_t batch) { return *Trace(Model, Inputs(batch), std::vector<Slot>{kLogits}); }
Array Batch(int64_t batch, uint64_t seed) { return RandomArray({DType::kF32, {batch, 6}}, seed); }

SlotValues Params() {
  SlotValues params = *InitParams(Model, Inputs(1), MakeKey(7));
  for (auto& [slot, array] : params) {
    if (array.shape().rank() == 1) array = RandomArray(array.aval(), 5, -0.1, 0.1);
  }
  return params;
}

SlotValues With(SlotValues values, const SlotValues& more) {
  values.insert(more.begin(), more.end());
  return values;
}

// Activations use MeanOfAbsMax; weights use AbsMax or MeanOfAbsMax.
InjectConfig Config(bool calibrated_weights, QuantMode mode) {
  absl::StatusOr<InjectConfig> config = InjectConfigFromText(absl::StrCat(
      "schema: 1 rules { dot_general { base: 'int8_static' ",
      calibrated_weights ? "clear: 'fwd.rhs.quantizer.abs_max' fwd { rhs { quantizer { mean_of_abs_max {} } } }" : "",
      " } }"));
  EXPECT_THAT(config, IsOk());
  config->param_mode = config->data_mode = mode;
  return *config;
}

// Three batches, of different sizes by default, in mode CALIBRATE.
SlotValues Calibrated(bool calibrated_weights, const SlotValues& params, std::array<int64_t, 3> sizes = {8, 3, 11}) {
  SlotValues stats;
  uint64_t seed = 100;
  for (const int64_t batch : sizes) {
    const absl::StatusOr<Program> program = Inject(Traced(batch), Config(calibrated_weights, QuantMode::kCalibrate));
    EXPECT_THAT(program, IsOk());
    if (stats.empty()) stats = InitialStats(*program);
    SlotValues out = *EvalSlots(*program, With(With(params, stats), {{kX, Batch(batch, seed++)}}));
    for (auto& [slot, array] : stats) array = out.at(slot);
  }
  return stats;
}

std::vector<std::string> Names(const SlotValues& values) {
  std::vector<std::string> names;
  for (const auto& [slot, array] : values) names.push_back(absl::StrCat(slot.ToString(), " ", array.aval().ToString()));
  return names;
}

TEST(StaticRangeTest, TheStatisticsAreMeansOfMaxima) {
  const SlotValues stats = Calibrated(/*calibrated_weights=*/false, Params());
  EXPECT_THAT(Names(stats),
              ElementsAre("stat \"fc1/fwd.lhs/count\" s32[]", "stat \"fc1/fwd.lhs/sum_of_max\" f32[1,1]",
                          "stat \"fc2/fwd.lhs/count\" s32[]", "stat \"fc2/fwd.lhs/sum_of_max\" f32[1,1]"));
  float sum = 0;
  uint64_t seed = 100;
  for (const int64_t batch : {8, 3, 11}) {
    float largest = 0;
    const Array x = Batch(batch, seed++);
    for (const float v : x.View<float>()) largest = std::max(largest, std::fabs(v));
    sum += largest;
  }
  EXPECT_EQ(stats.at({SlotKind::kStat, "fc1/fwd.lhs/sum_of_max"}).View<float>()[0], sum);
  EXPECT_EQ(stats.at({SlotKind::kStat, "fc1/fwd.lhs/count"}).View<int32_t>()[0], 3);
}

TEST(StaticRangeTest, CalibrateRunsAllBatches) {
  const std::vector<SlotValues> batches = {{{kX, Batch(8, 100)}}, {{kX, Batch(8, 101)}}, {{kX, Batch(8, 102)}}};
  const absl::Span<const SlotValues> all(batches);
  for (const bool calibrated_weights : {false, true}) {
    const SlotValues params = Params(), want = With(params, Calibrated(calibrated_weights, params, {8, 8, 8}));
    const InjectConfig config = Config(calibrated_weights, QuantMode::kTrain);
    const absl::StatusOr<SlotValues> known = Calibrate(Traced(8), config, params, all);
    ASSERT_THAT(known, IsOk());
    EXPECT_EQ(Names(*known), Names(want));
    for (const auto& [slot, array] : want) EXPECT_TRUE(BitEqual(known->at(slot), array)) << slot.ToString();
    // Continues from known statistics.
    const SlotValues first = *Calibrate(Traced(8), config, params, all.subspan(0, 1));
    const SlotValues then = *Calibrate(Traced(8), config, first, all.subspan(1));
    for (const auto& [slot, array] : want) EXPECT_TRUE(BitEqual(then.at(slot), array)) << slot.ToString();
  }
}

TEST(StaticRangeTest, CalibrateWithoutStateRunsNothing) {
  const SlotValues params = Params();
  const InjectConfig config = *InjectConfigFromText("schema: 1 rules { dot_general { base: 'int8_fwd' } }");
  const absl::StatusOr<SlotValues> known = Calibrate(Traced(8), config, params, {});
  ASSERT_THAT(known, IsOk());
  EXPECT_EQ(Names(*known), Names(params));
}

TEST(StaticRangeTest, CalibrateNamesWhatIsMissing) {
  const InjectConfig config = Config(false, QuantMode::kTrain);
  EXPECT_THAT(Calibrate(Traced(8), config, Params(), {}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"no batches", "stat \"fc1/fwd.lhs/count\""}));
  EXPECT_THAT(Calibrate(Traced(8), config, Params(), {{{kX, Batch(8, 1)}}, {}}),
              FailsWith(absl::StatusCode::kNotFound, {"calibration batch 1", "data \"x\""}));
  EXPECT_THAT(Calibrate(Traced(8), config, Params(), {{{kX, Batch(7, 1)}}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"calibration batch 0", "data \"x\""}));
}

TEST(StaticRangeTest, ServedIsConvertedBitForBit) {
  for (const bool calibrated_weights : {false, true}) {
    const SlotValues params = Params(), stats = Calibrated(calibrated_weights, params);
    const absl::StatusOr<Program> convert = Inject(Traced(7), Config(calibrated_weights, QuantMode::kConvert));
    ASSERT_THAT(convert, IsOk());
    absl::StatusOr<Folded> folded = Fold(*convert, With(params, stats));
    ASSERT_THAT(folded, IsOk());
    // Activations have only a scale; statistics and float kernels are gone.
    EXPECT_THAT(Names(folded->values),
                ElementsAre("param \"fc1/bias\" f32[9]", "param \"fc2/bias\" f32[4]",
                            "frozen \"fc1/qlhs/scale\" f32[1,1]", "frozen \"fc1/qrhs/scale\" f32[1,9]",
                            "frozen \"fc1/qrhs/value\" s8[6,9]", "frozen \"fc2/qlhs/scale\" f32[1,1]",
                            "frozen \"fc2/qrhs/scale\" f32[1,4]", "frozen \"fc2/qrhs/value\" s8[9,4]"));
    EXPECT_TRUE(folded->program.InputsOfKind(SlotKind::kStat).empty());
    // Through a file.
    const std::string path = ::testing::TempDir() + "/frozen.safetensors";
    ASSERT_THAT(SaveState(io::LocalFileSystem(), path, {folded->values, {}}), IsOk());
    const absl::StatusOr<StateFile> file = LoadState(io::LocalFileSystem(), path);
    ASSERT_THAT(file, IsOk());
    const Array rows = Batch(32, 1);
    std::vector<Array> served_rows;
    for (const int64_t batch : {32, 7, 1}) {
      // The first rows of the same examples.
      const Array x = Array::FromSpan<float>(rows.View<float>().subspan(0, batch * 6), {batch, 6});
      const absl::StatusOr<Program> serve =
          Inject(Traced(batch), Config(calibrated_weights, QuantMode::kServe), &file->state);
      ASSERT_THAT(serve, IsOk());
      const absl::StatusOr<SlotValues> served = EvalSlots(*serve, With(file->state, With(params, {{kX, x}})));
      ASSERT_THAT(served, IsOk());
      for (const QuantMode mode : {QuantMode::kConvert, QuantMode::kTrain}) {  // TRAIN: with the current statistics
        const absl::StatusOr<Program> program = Inject(Traced(batch), Config(calibrated_weights, mode));
        ASSERT_THAT(program, IsOk());
        const absl::StatusOr<SlotValues> converted = EvalSlots(*program, With(With(params, stats), {{kX, x}}));
        ASSERT_THAT(converted, IsOk());
        EXPECT_TRUE(BitEqual(served->at(kLogits), converted->at(kLogits))) << batch;
        EXPECT_EQ(converted->count({SlotKind::kStat, "fc1/fwd.lhs/count"}), 0u);
      }
      if (batch == 7) {
        const absl::StatusOr<SlotValues> of_folded = EvalSlots(folded->program, With(folded->values, {{kX, x}}));
        ASSERT_THAT(of_folded, IsOk());
        EXPECT_TRUE(BitEqual(of_folded->at(kLogits), served->at(kLogits)));
      }
      // An example does not depend on its neighbours.
      served_rows.push_back(Array::FromSpan<float>(served->at(kLogits).View<float>().subspan(0, 4), {1, 4}));
      EXPECT_TRUE(BitEqual(served_rows.back(), served_rows.front())) << batch;
    }
  }
}

TEST(StaticRangeTest, AMissingScaleIsNamed) {
  const SlotValues params = Params(), stats = Calibrated(false, params);
  SlotValues frozen = Fold(*Inject(Traced(7), Config(false, QuantMode::kConvert)), With(params, stats))->values;
  const Array x = Batch(7, 3);
  const Array want =
      EvalSlots(*Inject(Traced(7), Config(false, QuantMode::kServe), &frozen), With(frozen, With(params, {{kX, x}})))
          ->at(kLogits);
  frozen.erase({SlotKind::kFrozen, "fc2/qlhs/scale"});
  frozen.erase({SlotKind::kFrozen, "fc2/qrhs/value"});
  InjectConfig config = Config(false, QuantMode::kServe);
  EXPECT_THAT(Inject(Traced(7), config, &frozen),
              FailsWith(absl::StatusCode::kNotFound,
                        {"[fc2]",
                         "frozen \"fc2/qlhs/scale\" is missing for mode SERVE: convert the model first, or set "
                         "allow_requantize"}));
  // The fallback reads the statistics and leaves them unchanged.
  config.allow_requantize = true;
  InjectReport report;
  const absl::StatusOr<Program> requantizes = Inject(Traced(7), config, &frozen, &report);
  ASSERT_THAT(requantizes, IsOk());
  EXPECT_THAT(report.contractions[1].requantized, ElementsAre("lhs", "rhs"));
  const absl::StatusOr<SlotValues> out = EvalSlots(*requantizes, With(With(frozen, stats), With(params, {{kX, x}})));
  ASSERT_THAT(out, IsOk());
  EXPECT_EQ(out->size(), 1u);
  EXPECT_TRUE(BitEqual(out->at(kLogits), want));
}

TEST(StaticRangeTest, ConvertingBeforeCalibratingIsAnError) {
  const absl::StatusOr<Program> convert = Inject(Traced(7), Config(false, QuantMode::kConvert));
  ASSERT_THAT(convert, IsOk());
  EXPECT_THAT(Fold(*convert, With(Params(), InitialStats(*convert))),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        {"[fc1]", "MeanOfAbsMax has seen no calibration batch", "QUANT_MODE_CALIBRATE"}));
  const absl::StatusOr<Program> train = Inject(Traced(7), Config(false, QuantMode::kTrain));
  ASSERT_THAT(train, IsOk());
  EXPECT_THAT(EvalSlots(*train, With(Params(), With(InitialStats(*train), {{kX, Batch(7, 1)}}))),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"[fc1]", "fwd.lhs", "has seen no calibration batch"}));
}

// With Compat as in the original: NaN scales, and so NaN products; the program's text shows the option with the
// operations.
TEST(StaticRangeTest, TheOriginalReadsAnUnseenCalibration) {
  InjectConfig config = Config(false, QuantMode::kTrain);
  config.semantics.compat.read_unseen_calibration = true;
  const absl::StatusOr<Program> train = Inject(Traced(7), config);
  ASSERT_THAT(train, IsOk());
  EXPECT_THAT(ToText(*train), HasSubstr(", compat=read_unseen_calibration"));
  const SlotValues values = With(Params(), With(InitialStats(*train), {{kX, Batch(7, 1)}}));
  const absl::StatusOr<SlotValues> out = EvalSlots(*train, values);
  ASSERT_THAT(out, IsOk());
  for (const float v : out->at(kLogits).View<float>()) EXPECT_TRUE(std::isnan(v));
  const absl::StatusOr<Program> expanded = Expand(*train);
  ASSERT_THAT(expanded, IsOk());
  const absl::StatusOr<SlotValues> again = EvalSlots(*expanded, values);
  ASSERT_THAT(again, IsOk());
  for (const float v : again->at(kLogits).View<float>()) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace aqt::nn
