#include "aqt/nn/train/trainer.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/name_key.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"}, kLoss{SlotKind::kData, "loss"};
constexpr int64_t kBatch = 16;

// (x, labels) -> mean cross entropy of a two-layer classifier.
Values LossFn(In in) {
  const Value hidden = ops::Relu(Dense(in[0], "fc1", {.features = 12}));
  return {ops::SoftmaxCrossEntropy(Dense(hidden, "fc2", {.features = 3}), in[1])};
}

const std::vector<Input> kInputs = {{kX, {DType::kF32, {kBatch, 5}}}, {kLabels, {DType::kF32, {kBatch, 3}}}};

Program Loss() { return *Trace(LossFn, kInputs, std::vector<Slot>{kLoss}); }

Program QuantizedLoss() {
  InjectConfig config;
  config.rules.push_back({.dot_general = FullyQuantized()});
  return *Inject(Loss(), config);
}

SlotValues Params() { return *InitParams(LossFn, kInputs, MakeKey(7)); }

// The class of an example is the index of the largest of its first three numbers.
SlotValues Batch(uint64_t seed) {
  const Array x = RandomArray({DType::kF32, {kBatch, 5}}, seed);
  ArrayBuilder labels(DType::kF32, {kBatch, 3});
  for (int64_t i = 0; i < kBatch; ++i) {
    const float* row = x.View<float>().data() + i * 5;
    labels.Mutable<float>()[i * 3 + (row[0] > row[1] ? (row[0] > row[2] ? 0 : 2) : (row[1] > row[2] ? 1 : 2))] = 1;
  }
  return {{kX, x}, {kLabels, std::move(labels).Build()}};
}

// Runs steps until `to`; returns the losses.
std::vector<float> Train(Trainer& trainer, int64_t to) {
  std::vector<float> losses;
  while (trainer.steps() < to) {
    absl::StatusOr<SlotValues> out = trainer.Step(Batch(trainer.steps()));
    EXPECT_THAT(out, IsOk());
    losses.push_back(out->at(kLoss).View<float>()[0]);
  }
  return losses;
}

float MeanOf(const std::vector<float>& x, size_t first, size_t last) {
  float sum = 0;
  for (size_t i = first; i < last; ++i) sum += x[i];
  return sum / static_cast<float>(last - first);
}

TEST(TrainerTest, FloatAndQuantizedTrainingLearn) {
  for (const bool quantized : {false, true}) {
    absl::StatusOr<Trainer> trainer = Trainer::Make(quantized ? QuantizedLoss() : Loss(), Sgd{}, Params(), MakeKey(1));
    ASSERT_THAT(trainer, IsOk());
    const std::vector<float> losses = Train(*trainer, 150);
    EXPECT_GT(MeanOf(losses, 0, 10), 0.8f) << quantized;
    EXPECT_LT(MeanOf(losses, 130, 150), 0.4f) << quantized;
  }
}

TEST(TrainerTest, OneStepIsTheFormula) {
  // loss = sum(w * w) / 2: the gradient is w.
  const Slot w{SlotKind::kParam, "w"};
  const Program loss =
      *Trace([](In in) { return Values{ops::ReduceSum(in[0] * in[0]) / 2.0}; }, {{w, {DType::kF32, {2}}}});
  absl::StatusOr<Trainer> trainer = Trainer::Make(loss, Sgd{.learning_rate = 0.25, .momentum = 0.5},
                                                  {{w, Array::Of<float>({8, -4}, {2})}}, MakeKey(0));
  ASSERT_THAT(trainer, IsOk());
  ASSERT_THAT(trainer->Step({}), IsOk());  // m = w = (8, -4);  w = (6, -3)
  ASSERT_THAT(trainer->Step({}), IsOk());  // m = (6, -3) + (4, -2);  w = (3.5, -1.75)
  EXPECT_TRUE(BitEqual(trainer->params().at(w), Array::Of<float>({3.5f, -1.75f}, {2})));
  EXPECT_TRUE(BitEqual(trainer->state().at({SlotKind::kStat, "sgd/w"}), Array::Of<float>({10, -5}, {2})));
  absl::StatusOr<Program> plain = TrainStep(loss, Sgd{.learning_rate = 0.25, .momentum = 0});
  ASSERT_THAT(plain, IsOk());
  EXPECT_TRUE(plain->InputsOfKind(SlotKind::kStat).empty());
}

TEST(TrainerTest, FindsTheFirstNan) {
  const Slot w{SlotKind::kParam, "w"};
  const auto loss = [](In in) {
    const NamedScope scope("loss");
    return Values{ops::ReduceSum(ops::Log(in[0]))};
  };
  absl::StatusOr<Trainer> trainer =
      Trainer::Make(*Trace(loss, {{w, {DType::kF32, {2}}}}), Sgd{.learning_rate = 1.5},
                    {{w, Array::Of<float>({1, 2}, {2})}}, MakeKey(0), {.hooks = {.stop_at_nonfinite = true}});
  ASSERT_THAT(trainer, IsOk());
  ASSERT_THAT(trainer->Step({}), IsOk());  // w = (1 - 1.5, 2 - 0.75)
  EXPECT_THAT(trainer->Step({}),
              FailsWith(absl::StatusCode::kOutOfRange, {"log [loss]: a NaN appears", "1 of 2 elements",
                                                        "the first is nan at [0]", "trainer_test.cc:"}));
  EXPECT_TRUE(BitEqual(trainer->params().at(w), Array::Of<float>({-0.5f, 1.25f}, {2})));
}

TEST(TrainerTest, ResumedTrainingHasTheSameBits) {
  const std::string path = ::testing::TempDir() + "/state.safetensors",
                    again_path = ::testing::TempDir() + "/again.safetensors";
  const io::FileSystem& fs = io::LocalFileSystem();
  absl::StatusOr<Trainer> whole = Trainer::Make(QuantizedLoss(), Sgd{}, Params(), MakeKey(1));
  absl::StatusOr<Trainer> first = Trainer::Make(QuantizedLoss(), Sgd{}, Params(), MakeKey(1));
  ASSERT_THAT(whole, IsOk());
  ASSERT_THAT(first, IsOk());
  const std::vector<float> losses = Train(*whole, 12);
  Train(*first, 5);
  ASSERT_THAT(first->Save(fs, path), IsOk());
  // Starts with another key and other parameters: Restore replaces them all.
  absl::StatusOr<Trainer> second =
      Trainer::Make(QuantizedLoss(), Sgd{}, *InitParams(LossFn, kInputs, MakeKey(99)), MakeKey(3));
  ASSERT_THAT(second, IsOk());
  ASSERT_THAT(second->Restore(fs, path), IsOk());
  EXPECT_EQ(second->steps(), 5);
  const std::vector<float> rest = Train(*second, 12);
  EXPECT_EQ(rest, std::vector<float>(losses.begin() + 5, losses.end()));
  for (const auto& [slot, array] : whole->state())
    EXPECT_TRUE(BitEqual(second->state().at(slot), array)) << slot.ToString();
  // Two runs give the same file.
  ASSERT_THAT(whole->Save(fs, path), IsOk());
  ASSERT_THAT(second->Save(fs, again_path), IsOk());
  EXPECT_EQ(*io::ReadFile(fs, path, 1 << 20), *io::ReadFile(fs, again_path, 1 << 20));
}

// bf16 parameters, the loss's own statistics, and two keys: all of this state is restored.
TEST(TrainerTest, ResumesBf16StatisticsAndKeys) {
  const Slot x{SlotKind::kData, "x"}, w{SlotKind::kParam, "w"}, mean{SlotKind::kStat, "mean"},
      count{SlotKind::kStat, "count"};
  const Slot key_a{SlotKind::kData, "key a"}, key_b{SlotKind::kData, "key b"};
  const auto loss_fn = [&](In in) {
    const Value old_mean = InputSlot(mean, {DType::kF32, {}}), old_count = InputSlot(count, {DType::kS32, {}});
    const Value now = ops::Mean(ops::Cast(in[0], DType::kF32));
    WriteSlot(mean, old_mean * 0.5 + now * 0.5);
    WriteSlot(count, old_count + 1.0);
    const Value weighted = in[0] * nn::Parameter("w", {DType::kBF16, {4}}, LecunUniform({0}));
    return Values{ops::ReduceSum(weighted * weighted), InputSlot({SlotKind::kKey, "a"}, {DType::kU32, {2}}),
                  InputSlot({SlotKind::kKey, "b"}, {DType::kU32, {2}})};
  };
  const std::vector<Input> inputs = {{x, {DType::kBF16, {4}}}};
  absl::StatusOr<Program> loss = Trace(loss_fn, inputs, std::vector<Slot>{kLoss, key_a, key_b});
  ASSERT_THAT(loss, IsOk());
  absl::StatusOr<SlotValues> params = InitParams(loss_fn, inputs, MakeKey(1));
  ASSERT_THAT(params, IsOk());
  const SlotValues batch = {{x, Cast(Array::Of<float>({1, 2, 3, 4}, {4}), DType::kBF16)}};
  const auto make = [&](uint64_t seed) {
    return *Trainer::Make(*loss, Sgd{.learning_rate = 0.01}, *params, MakeKey(seed));
  };
  Trainer whole = make(5), first = make(5), second = make(6);
  std::vector<SlotValues> outputs;
  for (int step = 0; step < 6; ++step) {
    absl::StatusOr<SlotValues> out = whole.Step(batch);
    ASSERT_THAT(out, IsOk());
    outputs.push_back(*std::move(out));
  }
  EXPECT_EQ(whole.state().at(mean).View<float>()[0], 2.5f * (1 - 1.0f / 64));  // 2.5 (1 - 2^-6)
  EXPECT_EQ(whole.state().at(count).View<int32_t>()[0], 6);
  for (const auto& [slot, name] : {std::pair(key_a, "key \"a\""), std::pair(key_b, "key \"b\"")}) {
    const Key key = FoldInName(FoldIn(MakeKey(5), 5), name);
    EXPECT_TRUE(BitEqual(outputs[5].at(slot), Array::Of<uint32_t>({key.hi, key.lo}, {2})));
  }

  const std::string path = ::testing::TempDir() + "/bf16.safetensors";
  for (int step = 0; step < 3; ++step) ASSERT_THAT(first.Step(batch), IsOk());
  ASSERT_THAT(first.Save(io::LocalFileSystem(), path), IsOk());
  ASSERT_THAT(second.Restore(io::LocalFileSystem(), path), IsOk());
  for (int step = 3; step < 6; ++step) {
    absl::StatusOr<SlotValues> out = second.Step(batch);
    ASSERT_THAT(out, IsOk());
    for (const auto& [slot, array] : *out) EXPECT_TRUE(BitEqual(array, outputs[step].at(slot))) << slot.ToString();
  }
  ASSERT_EQ(second.state().size(), 4u);  // w, its momentum, mean, count
  for (const auto& [slot, array] : whole.state())
    EXPECT_TRUE(BitEqual(second.state().at(slot), array)) << slot.ToString();
}

TEST(TrainerTest, ProgramsThatCannotBeRepeated) {
  const Slot x{SlotKind::kData, "x"}, stat{SlotKind::kStat, "stat"};
  const auto make = [&](const auto& write) {
    absl::StatusOr<Program> loss = Trace(
        [&](In in) {
          write(in[0]);
          return Values{ops::ReduceSum(in[0])};
        },
        {{x, {DType::kF32, {2}}}});
    EXPECT_THAT(loss, IsOk());
    return Trainer::Make(*loss, Sgd{}, {}, MakeKey(0));
  };
  EXPECT_THAT(make([&](const Value& in) {
                InputSlot(stat, {DType::kF32, {}});
                WriteSlot(stat, in);
              }),
              FailsWith(absl::StatusCode::kInvalidArgument, {"stat \"stat\" is read as f32[] and written as f32[2]"}));
  EXPECT_THAT(make([](const Value&) {
                InputSlot({SlotKind::kKey, "k"}, {DType::kU32, {4}});
              }),
              FailsWith(absl::StatusCode::kInvalidArgument, {"key \"k\" is u32[4], expected u32[2]"}));
  // A statistic that is only written is an ordinary output.
  absl::StatusOr<Trainer> trainer = make([&](const Value& in) { WriteSlot(stat, in); });
  ASSERT_THAT(trainer, IsOk());
  absl::StatusOr<SlotValues> out = trainer->Step({{x, Array::Of<float>({1, 2}, {2})}});
  ASSERT_THAT(out, IsOk());
  EXPECT_EQ(out->count(stat), 1u);
  EXPECT_THAT(trainer->Step({{x, Array::Of<float>({1, 2}, {2})}, {stat, Array::Scalar(1.0f)}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"the batch has stat \"stat\""}));
}

TEST(TrainerTest, Errors) {
  EXPECT_THAT(Trainer::Make(Loss(), Sgd{.momentum = 1}, Params(), MakeKey(0)),
              FailsWith(absl::StatusCode::kInvalidArgument, {"momentum = 1"}));
  SlotValues params = Params();
  params.erase({SlotKind::kParam, "fc2/kernel"});
  EXPECT_THAT(Trainer::Make(Loss(), Sgd{}, params, MakeKey(0)),
              FailsWith(absl::StatusCode::kNotFound, {"param \"fc2/kernel\""}));
  params = Params();
  params[{SlotKind::kParam, "fc3/kernel"}] = Array::Scalar(1.0f);
  EXPECT_THAT(Trainer::Make(Loss(), Sgd{}, params, MakeKey(0)),
              FailsWith(absl::StatusCode::kInvalidArgument, {"no input param \"fc3/kernel\""}));
  absl::StatusOr<Trainer> trainer = Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0));
  ASSERT_THAT(trainer, IsOk());
  EXPECT_THAT(trainer->Step({{kX, Array::Zeros(DType::kF32, {kBatch, 5})}}),
              FailsWith(absl::StatusCode::kNotFound, {"data \"labels\""}));
  EXPECT_EQ(trainer->steps(), 0);
  const std::string path = ::testing::TempDir() + "/other.safetensors";
  ASSERT_THAT(trainer->Save(io::LocalFileSystem(), path), IsOk());
  absl::StatusOr<Trainer> other = Trainer::Make(Loss(), Sgd{.momentum = 0}, Params(), MakeKey(0));
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(other->Restore(io::LocalFileSystem(), path),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        {"other.safetensors", "another program", "stat \"sgd/fc1/bias\""}));
}

// The loss of `fn` with the keys of these paths as outputs; one step gives their values.
SlotValues KeysOfOneStep(const std::vector<std::string>& paths) {
  std::vector<Slot> slots = {kLoss};
  for (const std::string& path : paths) slots.push_back({SlotKind::kData, path});
  const Program loss = *Trace(
      [&](In in) {
        Values out = {ops::ReduceSum(in[0])};
        for (const std::string& path : paths) out.push_back(InputSlot({SlotKind::kKey, path}, {DType::kU32, {2}}));
        return out;
      },
      {{kX, {DType::kF32, {2}}}}, slots);
  Trainer trainer = *Trainer::Make(loss, Sgd{}, {}, MakeKey(5));
  absl::StatusOr<SlotValues> out = trainer.Step({{kX, Array::Of<float>({1, 2}, {2})}});
  EXPECT_THAT(out, IsOk());
  return *std::move(out);
}

// Layers with their own keys draw different noise; the shared key is the step's key.
TEST(TrainerTest, EachKeySlotHasItsOwnKey) {
  const SlotValues keys = KeysOfOneStep({"aqt", "a", "b"});
  const Array &shared = keys.at({SlotKind::kData, "aqt"}), &a = keys.at({SlotKind::kData, "a"}),
              &b = keys.at({SlotKind::kData, "b"});
  const Key key = FoldIn(MakeKey(5), 0);
  EXPECT_TRUE(BitEqual(shared, Array::Of<uint32_t>({key.hi, key.lo}, {2})));
  EXPECT_FALSE(BitEqual(a, b));
  EXPECT_FALSE(BitEqual(a, shared));
  // A key depends only on its own name.
  EXPECT_TRUE(BitEqual(a, KeysOfOneStep({"b", "a"}).at({SlotKind::kData, "a"})));
  // A contraction of the same name draws from another key.
  const Key contraction = FoldInName(key, "a");
  EXPECT_FALSE(BitEqual(a, Array::Of<uint32_t>({contraction.hi, contraction.lo}, {2})));
}

// Two equal layers on equal data, trained with stochastic rounding: with distinct key slots their gradients differ.
TEST(TrainerTest, RulesWithKeySlotsDrawDifferentNoise) {
  const Slot w1{SlotKind::kParam, "fc1/kernel"}, w2{SlotKind::kParam, "fc2/kernel"};
  const auto loss_fn = [](In in) {
    const Value a = Dense(in[0], "fc1", {.features = 12, .use_bias = false});
    const Value b = Dense(in[0], "fc2", {.features = 12, .use_bias = false});
    return Values{ops::ReduceSum(a * a) + ops::ReduceSum(b * b)};
  };
  const std::vector<Input> inputs = {{kX, {DType::kF32, {kBatch, 5}}}};
  SlotValues params = *InitParams(loss_fn, inputs, MakeKey(7));
  params[w2] = params[w1];
  for (const bool distinct : {false, true}) {
    InjectConfig config;
    config.rules.push_back({.scope = "fc1", .dot_general = FullyQuantized(), .key_slot = "k1"});
    config.rules.push_back({.scope = "fc2", .dot_general = FullyQuantized(), .key_slot = distinct ? "k2" : "k1"});
    absl::StatusOr<Program> quantized = Inject(*Trace(loss_fn, inputs, std::vector<Slot>{kLoss}), config);
    ASSERT_THAT(quantized, IsOk());
    absl::StatusOr<Trainer> trainer = Trainer::Make(*quantized, Sgd{}, params, MakeKey(1));
    ASSERT_THAT(trainer, IsOk());
    ASSERT_THAT(trainer->Step({{kX, RandomArray({DType::kF32, {kBatch, 5}}, 3)}}), IsOk());
    EXPECT_EQ(BitEqual(trainer->state().at(w1), trainer->state().at(w2)), !distinct);
  }
}

// Any defect of the file is an error that names it, and leaves the trainer unchanged.
TEST(TrainerTest, WrongStateFiles) {
  const io::FileSystem& fs = io::LocalFileSystem();
  const std::string path = ::testing::TempDir() + "/wrong.safetensors";
  absl::StatusOr<Trainer> trainer = Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0xfedcba9876543210u));
  ASSERT_THAT(trainer, IsOk());
  Train(*trainer, 3);
  ASSERT_THAT(trainer->Save(fs, path), IsOk());
  const absl::StatusOr<StateFile> good = LoadState(fs, path);
  ASSERT_THAT(good, IsOk());
  const auto restore = [&](const auto& change) {
    StateFile file = *good;
    change(file);
    EXPECT_THAT(SaveState(fs, path, file), IsOk());
    const absl::Status status = trainer->Restore(fs, path);
    EXPECT_EQ(trainer->steps(), 3);
    return status;
  };
  EXPECT_THAT(restore([](StateFile&) {}), IsOk());
  constexpr auto kOtherProgram = absl::StatusCode::kFailedPrecondition;
  const Slot kernel{SlotKind::kParam, "fc1/kernel"}, momentum{SlotKind::kStat, "sgd/fc1/kernel"};
  const Array one = Array::Scalar(1.0f);
  for (const Slot& slot : {kernel, momentum}) {
    EXPECT_THAT(restore([&](StateFile& f) { f.state.erase(slot); }),
                FailsWith(kOtherProgram, {"wrong.safetensors", "no value for " + slot.ToString()}));
    EXPECT_THAT(restore([&](StateFile& f) {
                  f.state[slot] = Array::Zeros(DType::kF32, {5, 13});
                }),
                FailsWith(kOtherProgram, {slot.ToString() + " is f32[5,13], expected f32[5,12]"}));
    EXPECT_THAT(restore([&](StateFile& f) {
                  f.state[slot] = Array::Zeros(DType::kF16, {5, 12});
                }),
                FailsWith(kOtherProgram, {slot.ToString() + " is f16[5,12], expected f32[5,12]"}));
  }
  for (const SlotKind kind : {SlotKind::kParam, SlotKind::kStat}) {
    const Slot slot{kind, "another"};
    EXPECT_THAT(restore([&](StateFile& f) { f.state[slot] = one; }),
                FailsWith(kOtherProgram, {"no input " + slot.ToString()}));
  }
  // Kinds that are not part of a training's state, with the name of an input and with another name.
  for (const Slot& slot : {kX, kLabels, Slot{SlotKind::kData, "another"}, Slot{SlotKind::kFrozen, "fc1/qrhs/value"},
                           Slot{SlotKind::kKey, "aqt"}}) {
    EXPECT_THAT(restore([&](StateFile& f) { f.state[slot] = one; }),
                FailsWith(kOtherProgram, {slot.ToString(), "not part of a training's state"}));
  }
  for (const char* field : {"steps", "key_hi", "key_lo"}) {
    const std::string name = std::string("metadata \"") + field + "\"";
    EXPECT_THAT(restore([&](StateFile& f) { f.metadata.erase(field); }),
                FailsWith(absl::StatusCode::kDataLoss, {"wrong.safetensors", name + " is missing"}));
    for (const char* text : {"-3", "nan", "inf", "", "3.5", "1e3", "0x10", " 3", "03", "+3", "4294967297",
                             "9223372036854775808", "99999999999999999999"}) {
      EXPECT_THAT(
          restore([&](StateFile& f) { f.metadata[field] = text; }),
          FailsWith(absl::StatusCode::kDataLoss, {name + " is \"" + text + "\"", "expected a number from 0 to "}))
          << text;
    }
  }
  EXPECT_THAT(restore([](StateFile& f) { f.metadata["key_lo"] = "4294967296"; }),
              FailsWith(absl::StatusCode::kDataLoss, {"from 0 to 4294967295"}));
}

// A training continues only with its original settings.
TEST(TrainerTest, OtherSettings) {
  const io::FileSystem& fs = io::LocalFileSystem();
  const std::string path = ::testing::TempDir() + "/settings.safetensors";
  const auto make = [](std::map<std::string, std::string> settings) {
    return Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0), {.settings = std::move(settings)});
  };
  absl::StatusOr<Trainer> trainer = make({{"batch", "32"}, {"rules", std::string(100, 'a')}});
  ASSERT_THAT(trainer, IsOk());
  Train(*trainer, 2);
  ASSERT_THAT(trainer->Save(fs, path), IsOk());
  const auto restore = [&](std::map<std::string, std::string> settings) {
    absl::StatusOr<Trainer> other = make(std::move(settings));
    EXPECT_THAT(other, IsOk());
    const absl::Status status = other->Restore(fs, path);
    EXPECT_EQ(other->steps(), status.ok() ? 2 : 0);
    return status;
  };
  const std::string rules(100, 'a');
  EXPECT_THAT(restore({{"batch", "32"}, {"rules", rules}}), IsOk());
  const auto refuses = [&](std::map<std::string, std::string> settings, const std::string& what) {
    EXPECT_THAT(restore(std::move(settings)),
                FailsWith(absl::StatusCode::kFailedPrecondition,
                          {"settings.safetensors is the state of a training with other settings: " + what,
                           "go on with those of the file, or train anew"}));
  };
  refuses({{"batch", "16"}, {"rules", rules}}, "batch was \"32\" and is \"16\"");
  refuses({{"batch", "32"}, {"rules", rules + "b"}}, "rules is not the same text");
  refuses({{"rules", rules}}, "batch was \"32\" and is not given");
  refuses({{"batch", "32"}, {"rules", rules}, {"seed", ""}}, "seed was not given and is \"\"");
  refuses({}, "batch was \"32\" and is not given");
  // A file's content cannot move the cursor of a terminal.
  refuses({{"\x1b[2J", "\n"}, {"batch", "32"}, {"rules", rules}}, "\\x1b[2J was not given and is \"\\n\"");
}

// Step numbers are folded into the key as 32 bits: training ends there instead of drawing the same noise again.
TEST(TrainerTest, EndsBeforeItsKeysRepeat) {
  const io::FileSystem& fs = io::LocalFileSystem();
  const std::string path = ::testing::TempDir() + "/long.safetensors";
  absl::StatusOr<Trainer> trainer = Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0));
  ASSERT_THAT(trainer, IsOk());
  ASSERT_THAT(trainer->Save(fs, path), IsOk());
  absl::StatusOr<StateFile> file = LoadState(fs, path);
  ASSERT_THAT(file, IsOk());
  file->metadata["steps"] = "4294967295";
  ASSERT_THAT(SaveState(fs, path, *file), IsOk());
  ASSERT_THAT(trainer->Restore(fs, path), IsOk());
  EXPECT_THAT(trainer->Step(Batch(0)), IsOk());
  EXPECT_EQ(trainer->steps(), Trainer::kMaxSteps);
  EXPECT_THAT(trainer->Step(Batch(0)), FailsWith(absl::StatusCode::kOutOfRange, {"4294967296 steps are done"}));
  ASSERT_THAT(trainer->Save(fs, path), IsOk());
  EXPECT_THAT(trainer->Restore(fs, path), IsOk());
}

TEST(TrainerTest, WrongParameters) {
  const auto make = [](const Slot& slot, std::optional<Array> value) {
    SlotValues params = Params();
    params.erase(slot);
    if (value.has_value()) params[slot] = *std::move(value);
    return Trainer::Make(Loss(), Sgd{}, params, MakeKey(0)).status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Slot kernel{SlotKind::kParam, "fc1/kernel"};
  EXPECT_THAT(make(kernel, std::nullopt),
              FailsWith(absl::StatusCode::kNotFound, {"no value for param \"fc1/kernel\""}));
  EXPECT_THAT(make(kernel, Array::Zeros(DType::kF32, {12, 5})), FailsWith(kInvalid, {"f32[12,5], expected f32[5,12]"}));
  EXPECT_THAT(make(kernel, Array::Zeros(DType::kBF16, {5, 12})), FailsWith(kInvalid, {"bf16[5,12], expected f32"}));
  for (const Slot& slot : {kX, Slot{SlotKind::kData, "y"}, Slot{SlotKind::kKey, "aqt"}, Slot{SlotKind::kFrozen, "q"}}) {
    EXPECT_THAT(make(slot, Array::Scalar(1.0f)),
                FailsWith(kInvalid, {"trainer: " + slot.ToString(), "param and stat"}));
  }
  // Statistics may come with the parameters.
  const Slot momentum{SlotKind::kStat, "sgd/fc1/kernel"};
  EXPECT_THAT(make(momentum, Array::Zeros(DType::kF32, {5, 12})), IsOk());
  EXPECT_THAT(make(momentum, Array::Zeros(DType::kF32, {5})), FailsWith(kInvalid, {momentum.ToString()}));
  // A served program cannot be trained.
  absl::StatusOr<Program> served = Trace(
      [](In in) {
        return Values{ops::ReduceSum(in[0] * InputSlot({SlotKind::kFrozen, "q"}, {DType::kF32, {2}}))};
      },
      {{kX, {DType::kF32, {2}}}});
  ASSERT_THAT(served, IsOk());
  EXPECT_THAT(Trainer::Make(*served, Sgd{}, {}, MakeKey(0)), FailsWith(kInvalid, {"frozen \"q\" is an input"}));
}

// A statistic of the model with the name of a momentum would share its value.
TEST(TrainerTest, AStatisticWithTheNameOfAMomentum) {
  const Slot taken{SlotKind::kStat, "sgd/w"};
  const auto loss = [&](bool writes) {
    return *Trace(
        [&](In) {
          const Value w = nn::Parameter("w", {DType::kF32, {2}}, Zeros());
          const Value stat = InputSlot(taken, {DType::kF32, {2}});
          if (writes) WriteSlot(taken, stat + 1.0);
          return Values{ops::ReduceSum(w * stat)};
        },
        {});
  };
  for (const bool writes : {false, true}) {
    EXPECT_THAT(TrainStep(loss(writes), Sgd{}),
                FailsWith(absl::StatusCode::kInvalidArgument, {"stat \"sgd/w\"", "momentum"}));
    EXPECT_THAT(TrainStep(loss(writes), Sgd{.momentum = 0}), IsOk());
  }
}

}  // namespace
}  // namespace aqt::nn
