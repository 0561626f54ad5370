// Mistakes of a user of nn, Inject, Trainer and Fold in a model of layers. Each error has its code and names the
// operation, the scope, the operands and the line of the model.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/fold.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int64_t kBatch = 4;
const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"};
const std::vector<Input> kInputs = {{kX, {DType::kF32, {kBatch, 6}}}, {kLabels, {DType::kF32, {kBatch, 3}}}};

// A classifier with a given function in the middle.
template <class F>
absl::StatusOr<Program> LossWith(const F& middle) {
  return Trace(
      [&](In in) {
        const NamedScope scope("mlp");
        const Value hidden = middle(ops::Relu(nn::Dense(in[0], "fc1", {.features = 5})));
        return Values{ops::SoftmaxCrossEntropy(nn::Dense(hidden, "fc2", {.features = 3}), in[1])};
      },
      kInputs);
}

Program Loss() {
  absl::StatusOr<Program> loss = LossWith([](const Value& x) { return x; });
  EXPECT_THAT(loss, IsOk());
  return *std::move(loss);
}

absl::StatusOr<Program> Injected(const std::string& rules) {
  absl::StatusOr<InjectConfig> config = InjectConfigFromText(absl::StrCat("schema: 1 ", rules), "rules.textproto");
  if (!config.ok()) return config.status();
  return Inject(Loss(), *config);
}

// The gradient of a served or converted model is refused, for any model.
TEST(ErrorsTest, GradientsOfAConvertedModel) {
  const absl::StatusOr<Program> loss = Trace(
      [](In in) {
        const Value h = nn::MultiHeadAttention(in[0], in[0], std::nullopt, "att", {.heads = 2});
        return Values{ops::Mean(h * h)};
      },
      {{{kX, {DType::kF32, {1, 2, 8}}}}});
  ASSERT_THAT(loss, IsOk());
  for (const QuantMode mode : {QuantMode::kConvert, QuantMode::kServe}) {
    absl::StatusOr<InjectConfig> config = InjectConfigFromPreset("int8_all");
    ASSERT_THAT(config, IsOk());
    config->strict = false;
    config->param_mode = mode;
    const absl::StatusOr<Program> injected = Inject(*loss, *config);
    ASSERT_THAT(injected, IsOk());
    EXPECT_THAT(ValueAndGrad(*injected, {0}),
                FailsWith(absl::StatusCode::kFailedPrecondition, {"dot_general [att/", "f32[1,2,8]"}));
  }
}

TEST(ErrorsTest, ShapesThatDoNotFit) {
  EXPECT_THAT(LossWith([](const Value& x) {
                const NamedScope scope("mix");
                return ops::MatMul(x, Value(Array::Zeros(DType::kF32, {4, 5})));
              }),
              FailsWith(kInvalid, {"dot_general [mlp/mix]: ", "operands f32[4,5], f32[4,5]", "errors_test.cc:"}));
  EXPECT_THAT(LossWith([](const Value& x) { return x + Value(Array::Zeros(DType::kF32, {4})); }),
              FailsWith(kInvalid, {"add [mlp]: ", "operands f32[4,5], f32[4]", "errors_test.cc:"}));
  // The first error is reported, although everything after it is wrong, too.
  EXPECT_THAT(LossWith([](const Value& x) { return ops::Reshape(x, {7}); }),
              FailsWith(kInvalid, {"reshape [mlp]: ", "f32[4,5]", "errors_test.cc:"}));
}

TEST(ErrorsTest, BranchesOnData) {
  EXPECT_THAT(LossWith([](const Value& x) {
                const NamedScope scope("gate");
                return ops::ReduceMax(x).Item<float>() > 0 ? x : -x;
              }),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        {"value [mlp/gate]: ", "traced f32[]", "ops::Select", "errors_test.cc:"}));
}

TEST(ErrorsTest, RulesThatHitNothing) {
  EXPECT_THAT(Injected("rules { name: 'all' scope: 'mpl/.*' keep: true }"),
              FailsWith(kInvalid, {"hit nothing: rule \"all\"", "dot_general [mlp/fc1] (f32[4,6], f32[6,5]): no rule",
                                   "dot_general [mlp/fc2] (f32[4,5], f32[5,3]): no rule"}));
  // A rule without effect, because an earlier rule matches everything.
  EXPECT_THAT(Injected("rules { keep: true } rules { name: 'late' scope: 'mlp/fc1' keep: true }"),
              FailsWith(kInvalid, {"hit nothing: rule \"late\"", "[mlp/fc1] (f32[4,6], f32[6,5]): rule 1"}));
  EXPECT_THAT(Injected("rules { scope: 'mlp/(' keep: true }"),
              FailsWith(kInvalid, {"rules.textproto:1:", "\"mlp/(\" is not a valid regular expression"}));
}

TEST(ErrorsTest, ConfigurationsThatAreIllegalForWhatTheyHit) {
  // Legal for some contraction, not for this one: there is no axis 2, and 4 rows do not split into 3 shards.
  EXPECT_THAT(Injected("rules { dot_general { base: 'fully_quantized_int8' fwd { rhs { quantizer {"
                       " calib_shared_axes { axes: 2 } } } } } }"),
              FailsWith(kInvalid,
                        {"aqt_dot_general [mlp/fc1]: ", "fwd.rhs", "operands f32[4,6], f32[6,5]", "errors_test.cc:"}));
  EXPECT_THAT(
      Injected("rules { scope: 'mlp/fc2' dot_general { base: 'fully_quantized_int8'"
               " drhs { local_aqt { contraction_axis_shard_count: 3 } } } }"),
      FailsWith(kInvalid, {"aqt_dot_general [mlp/fc2]: ", "drhs", "operands f32[4,5], f32[5,3]", "errors_test.cc:"}));
}

TEST(ErrorsTest, TrainingAndFreezing) {
  const Program loss = *Injected("rules { dot_general { base: 'fully_quantized_int8' } }");
  SlotValues params;
  for (const int position : loss.InputsOfKind(SlotKind::kParam)) {
    const Program::Port& port = loss.inputs[position];
    params[port.slot] = Array::Zeros(loss.aval(port.var).dtype, loss.aval(port.var).shape);
  }
  absl::StatusOr<nn::Trainer> trainer = nn::Trainer::Make(loss, {}, params, MakeKey(0));
  ASSERT_THAT(trainer, IsOk());
  const Array x = Array::Zeros(DType::kF32, {kBatch, 6}), labels = Array::Zeros(DType::kF32, {kBatch, 3});
  EXPECT_THAT(trainer->Step({{kX, x}}), FailsWith(absl::StatusCode::kNotFound, {"data \"labels\"", "f32[4,3]"}));
  EXPECT_THAT(trainer->Step({{kX, labels}, {kLabels, labels}}),
              FailsWith(kInvalid, {"data \"x\"", "f32[4,6]", "f32[4,3]"}));
  EXPECT_EQ(trainer->steps(), 0);
  EXPECT_THAT(trainer->Step({{kX, x}, {kLabels, labels}}), IsOk());

  const Slot kernel{SlotKind::kParam, "mlp/fc1/kernel"};
  SlotValues wrong = params;
  wrong[kernel] = Array::Zeros(DType::kF32, {6, 6});
  EXPECT_THAT(nn::Trainer::Make(loss, {}, wrong, MakeKey(0)),
              FailsWith(kInvalid, {kernel.ToString(), "f32[6,6]", "f32[6,5]"}));
  EXPECT_THAT(Fold(loss, wrong), FailsWith(kInvalid, {kernel.ToString(), "f32[6,6]", "f32[6,5]"}));
  // A loss that is not a scalar.
  absl::StatusOr<Program> logits =
      Trace([](In in) { return Values{nn::Dense(in[0], "fc", {.features = 2})}; }, {kInputs[0]});
  ASSERT_THAT(logits, IsOk());
  EXPECT_THAT(nn::TrainStep(*logits, {}), FailsWith(kInvalid, {"f32[4,2]"}));
}

}  // namespace
}  // namespace aqt
