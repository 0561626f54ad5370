#include "serving/engine/engine.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "aqt/core/array.h"
#include "aqt/models/text/padded_length.h"
#include "aqt/nn/serve/serve.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/engine/engine_testing.h"

namespace aqt::serving {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ModelPtr = std::shared_ptr<const RowModel>;

// The outputs of a row from a program of `program_length`, with zeros at the end.
SlotValues Directly(const InjectConfig& config, const Array& row, int64_t program_length) {
  const int64_t length = row.shape()[0];
  const PreparedProgram program = *nn::Serve({*PositionsProgram(1, program_length)}, config, PositionsWeights());
  std::vector<float> x(row.View<float>().begin(), row.View<float>().end());
  x.resize(program_length * kWidth);
  SlotValues out = *program.Eval({{kX, Array::FromSpan(absl::MakeConstSpan(x), {1, program_length, kWidth})}});
  out[kEach] = Array::FromSpan(out.at(kEach).View<float>().subspan(0, length * 8), {length, 8});
  out[kSum] = *out.at(kSum).Reshaped({8});
  return out;
}
SlotValues Directly(const InjectConfig& config, const Array& row) {
  return Directly(config, row, models::PaddedLength(row.shape()[0], kMaxLength));
}

void ExpectEqual(const Answer& got, const SlotValues& want) {
  ASSERT_THAT(got, IsOk());
  ASSERT_EQ(got->size(), want.size());
  for (const auto& [slot, array] : want) EXPECT_TRUE(BitEqual(got->at(slot), array)) << slot.ToString();
}

// Weights are held as panels only.
TEST(RowModelTest, WeightsAreFreedOnceTheyArePacked) {
  for (const InjectConfig& config : {InjectConfig(), Int8()}) {
    SlotValues weights = PositionsWeights();
    const std::weak_ptr<const void> kernel = weights.begin()->second.buffer();
    const ModelPtr model = *MakeRowModel(TracedModel{
        .trace = PositionsProgram, .weights = std::move(weights), .config = config, .max_length = kMaxLength});
    EXPECT_TRUE(kernel.expired());
    EXPECT_THAT(model->Compile(1, 1), IsOk());
    EXPECT_THAT(model->Compile(3, kMaxLength), IsOk());
  }
}

TEST(EngineTest, AnswersHaveTheBitsOfADirectCall) {
  for (const InjectConfig& config : {InjectConfig(), Int8(), Int8PerTensor()}) {
    const ModelPtr model = *PositionsModel(config);
    const std::unique_ptr<Engine> engine = *Engine::Make(model, {.threads = 3});
    std::vector<Request> requests;
    std::vector<SlotValues> want;
    for (int i = 0; i < 40; ++i) {
      const Array row = PositionsRow(1 + i * 7 % kMaxLength, i);
      want.push_back(Directly(config, row, model->facts().ProgramLength(row.shape()[0])));
      requests.push_back({.inputs = {{kX, i % 2 == 0 ? row : *row.Reshaped({1, row.shape()[0], kWidth})}}});
    }
    const std::vector<Answer> answers = engine->RunAll(std::move(requests));
    ASSERT_EQ(answers.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ExpectEqual(answers[i], want[i]);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.answered, 40);
    EXPECT_EQ(stats.accepted, 40);
    EXPECT_EQ(stats.threads, 3);
    EXPECT_GT(stats.weight_bytes, 0);
    EXPECT_GE(stats.padded_positions, stats.positions);
  }
}

TEST(EngineTest, RowsAreJoinedAndPaddedWhereTheirBitsAllowIt) {
  const ModelPtr by_row = *PositionsModel(Int8()), by_tensor = *PositionsModel(Int8PerTensor());
  EXPECT_TRUE(by_row->facts().joins) << by_row->facts().why_alone;
  EXPECT_TRUE(by_row->facts().pads) << by_row->facts().why_exact;
  EXPECT_FALSE(by_tensor->facts().joins);
  EXPECT_THAT(by_tensor->facts().why_alone, HasSubstr("reduce_max"));
  EXPECT_FALSE(by_tensor->facts().pads);
  EXPECT_THAT(by_tensor->facts().why_exact, HasSubstr("aqt_dot_general"));
  EXPECT_EQ(by_row->facts().ProgramLength(17), 32);
  EXPECT_EQ(by_tensor->facts().ProgramLength(17), 17);
}

// One thread is kept busy by the first request, until the gate opens.
struct Gated {
  explicit Gated(const InjectConfig& config, EngineOptions options = {}) {
    model = std::make_shared<GatedModel>(*PositionsModel(config));
    options.threads = 1;
    engine = *Engine::Make(model, options);
    first = std::make_unique<Ticket>(Submit(1));
    model->WaitUntilEntered();
  }
  ~Gated() { model->Open(); }
  Ticket Submit(int seed, absl::Time deadline = absl::InfiniteFuture(), Engine::Callback done = nullptr) {
    return engine->Submit({.inputs = {{kX, PositionsRow(10, seed)}}, .deadline = deadline}, std::move(done));
  }
  std::shared_ptr<GatedModel> model;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Ticket> first;
};

TEST(EngineTest, WaitingRowsAreComputedTogether) {
  Gated gated(Int8());
  std::vector<Ticket> tickets;
  for (int i = 0; i < 15; ++i) tickets.push_back(gated.Submit(i));
  EXPECT_EQ(gated.engine->stats().waiting, 15);
  EXPECT_EQ(gated.engine->stats().running, 1);
  gated.model->Open();
  for (int i = 0; i < 15; ++i) ExpectEqual(tickets[i].Wait(), Directly(Int8(), PositionsRow(10, i)));
  EXPECT_THAT(gated.engine->stats().batches, ElementsAre(0, 2, 1, 0, 1, 0, 0, 0, 1));  // 1, then 8, 4, 2, 1
}

TEST(EngineTest, RowsThatDependAreComputedAlone) {
  Gated gated(Int8PerTensor());
  std::vector<Ticket> tickets;
  for (int i = 0; i < 4; ++i) tickets.push_back(gated.Submit(i));
  gated.model->Open();
  for (int i = 0; i < 4; ++i) ExpectEqual(tickets[i].Wait(), Directly(Int8PerTensor(), PositionsRow(10, i), 10));
  EXPECT_EQ(gated.engine->stats().batches[1], 5);
}

TEST(EngineTest, TheQueueIsBounded) {
  Gated gated(Int8(), {.queue_limit = 2});
  const Ticket waiting = gated.Submit(2);
  gated.Submit(3);
  EXPECT_THAT(gated.Submit(4).Wait(), FailsWith(absl::StatusCode::kResourceExhausted, {"2 requests wait"}));
  EXPECT_TRUE(waiting.Cancel());  // makes room
  const Ticket late = gated.Submit(5);
  std::thread all([&] {  // waits for room
    std::vector<Request> requests(8, Request{.inputs = {{kX, PositionsRow(3, 7)}}});
    for (const Answer& answer : gated.engine->RunAll(std::move(requests))) EXPECT_THAT(answer, IsOk());
  });
  gated.model->Open();
  EXPECT_THAT(late.Wait(), IsOk());
  all.join();
  EXPECT_EQ(gated.engine->stats().refused, 1);
  EXPECT_EQ(gated.engine->stats().answered, 3 + 8);
}

TEST(EngineTest, CancelAnswersARequestThatWaits) {
  Gated gated(Int8());
  std::atomic<int> calls = 0;
  const Ticket ticket = gated.Submit(2, absl::InfiniteFuture(), [&](const Answer& answer) {
    EXPECT_TRUE(absl::IsCancelled(answer.status()));
    ++calls;
  });
  EXPECT_FALSE(ticket.WaitUntil(absl::InfinitePast()));
  EXPECT_TRUE(ticket.Cancel());
  EXPECT_FALSE(ticket.Cancel());
  EXPECT_TRUE(absl::IsCancelled(ticket.Wait().status()));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(gated.first->Cancel());  // it runs
  gated.model->Open();
  EXPECT_THAT(gated.first->Wait(), IsOk());
  EXPECT_EQ(gated.engine->stats().cancelled, 1);
}

TEST(EngineTest, DeadlinesPassWhileAllThreadsAreBusy) {
  Gated gated(Int8(), {.queue_limit = 2});
  EXPECT_TRUE(absl::IsDeadlineExceeded(gated.Submit(2, absl::Now() - absl::Seconds(1)).Wait().status()));
  const absl::Time soon = absl::Now() + absl::Milliseconds(5);
  const Ticket waiting = gated.Submit(3, soon), other = gated.Submit(4, soon);
  EXPECT_THAT(waiting.Wait(), FailsWith(absl::StatusCode::kDeadlineExceeded, {"deadline"}));
  const Ticket next = gated.Submit(5), last = gated.Submit(6);  // the other one's place is free, too
  gated.model->Open();
  EXPECT_TRUE(absl::IsDeadlineExceeded(other.Wait().status()));
  EXPECT_THAT(next.Wait(), IsOk());
  EXPECT_THAT(last.Wait(), IsOk());
  EXPECT_EQ(gated.engine->stats().expired, 3);
}

TEST(EngineTest, ShutdownFinishesWhatWasAccepted) {
  Gated gated(Int8());
  std::vector<Ticket> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(gated.Submit(i));
  std::thread shutdown([&] { gated.engine->Shutdown(); });
  while (true) {  // until Shutdown has begun
    const Ticket ticket = gated.Submit(9);
    if (!ticket.Cancel()) {
      EXPECT_THAT(ticket.Wait(), FailsWith(absl::StatusCode::kUnavailable, {"shuts down"}));
      break;
    }
  }
  gated.model->Open();
  shutdown.join();
  for (int i = 0; i < 5; ++i) ExpectEqual(tickets[i].Wait(), Directly(Int8(), PositionsRow(10, i)));
  EXPECT_EQ(gated.engine->stats().waiting, 0);
  gated.engine.reset();
  EXPECT_THAT(tickets[0].Wait(), IsOk());  // tickets outlive the engine
  EXPECT_FALSE(tickets[0].Cancel());
}

TEST(EngineTest, WrongRequestsNameTheInput) {
  const std::unique_ptr<Engine> engine = *Engine::Make(*PositionsModel({}), {.threads = 1});
  const auto status = [&](SlotValues inputs) { return engine->Run({.inputs = std::move(inputs)}).status(); };
  EXPECT_THAT(status({}), FailsWith(absl::StatusCode::kInvalidArgument, {"data \"x\" is missing"}));
  EXPECT_THAT(status({{kX, PositionsRow(1, 1)}, {kSum, PositionsRow(1, 1)}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"no input data \"sum\""}));
  EXPECT_THAT(status({{kX, Array::Zeros(DType::kS32, {4, kWidth})}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"s32[4,16], expected f32[length,16]"}));
  EXPECT_THAT(status({{kX, Array::Zeros(DType::kF32, {2, 4, kWidth})}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"f32[2,4,16], expected f32[length,16]"}));
  EXPECT_THAT(status({{kX, Array::Zeros(DType::kF32, {0, kWidth})}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"a length of 0, expected 1 to 80"}));
  EXPECT_THAT(status({{kX, Array::Zeros(DType::kF32, {kMaxLength + 1, kWidth})}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"a length of 81, expected 1 to 80"}));
  EXPECT_EQ(engine->stats().refused, 6);
}

TEST(EngineTest, OptionsOutOfRange) {
  EXPECT_THAT(Engine::Make(*PositionsModel({}), {.threads = -1}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"threads is -1"}));
  EXPECT_THAT(Engine::Make(*PositionsModel({}), {.queue_limit = 0}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"queue_limit is 0"}));
}

TEST(EngineTest, ProgramsAreKeptUpToALimit) {
  const std::unique_ptr<Engine> engine = *Engine::Make(*PositionsModel(Int8()), {.threads = 1, .max_programs = 2});
  for (const int64_t length : {10, 30, 50, 70, 10}) {
    ExpectEqual(engine->Run({.inputs = {{kX, PositionsRow(length, 1)}}}), Directly(Int8(), PositionsRow(length, 1)));
  }
  EXPECT_EQ(engine->stats().programs, 2);
}

TEST(EngineTest, WarmCompilesAheadAndPanelsAreShared) {
  const ModelPtr model = *PositionsModel(Int8());
  const std::unique_ptr<Engine> engine = *Engine::Make(model, {.threads = 1});
  ASSERT_THAT(engine->Warm({10}), IsOk());
  EXPECT_EQ(engine->stats().programs, 4);  // 1, 2, 4 and 8 rows
  const int64_t bytes = model->weight_bytes();
  ASSERT_THAT(engine->Warm({10, 40}), IsOk());
  EXPECT_EQ(engine->stats().programs, 6);  // 1 and 2 rows of 48
  EXPECT_EQ(model->weight_bytes(), bytes);
  EXPECT_TRUE(absl::IsInvalidArgument(engine->Warm({kMaxLength + 1})));
}

TEST(EngineTest, ThreadsCanComputeABatchTogether) {
  const std::unique_ptr<Engine> engine = *Engine::Make(*PositionsModel(Int8()), {.threads = 4, .threads_per_batch = 2});
  ExpectEqual(engine->Run({.inputs = {{kX, PositionsRow(20, 1)}}}), Directly(Int8(), PositionsRow(20, 1)));
  EXPECT_EQ(engine->stats().threads, 4);
}

// x [batch, 16] -> a dense layer [batch, 8].
Program DenseProgram(int64_t batch) {
  const auto model = [](absl::Span<const Value> in) -> std::vector<Value> {
    return {nn::Dense(in[0], "layer", {.features = 8, .use_bias = false})};
  };
  return *Trace(model, std::vector<Input>{{kX, {DType::kF32, {batch, kWidth}}}}, std::vector<Slot>{kSum});
}

TEST(EngineTest, ProgramsOfFixedBatches) {
  const auto model = MakeRowModel({DenseProgram(4), DenseProgram(2)}, Int8(), PositionsWeights());
  ASSERT_THAT(model, IsOk());
  EXPECT_THAT((*model)->facts().batches, ElementsAre(2, 4));
  const std::unique_ptr<Engine> engine = *Engine::Make(*model, {.threads = 1});
  const PreparedProgram direct = *nn::Serve({DenseProgram(2)}, Int8(), PositionsWeights());
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) requests.push_back({.inputs = {{kX, *PositionsRow(1, i).Reshaped({kWidth})}}});
  const std::vector<Answer> answers = engine->RunAll(std::move(requests));
  for (int i = 0; i < 7; ++i) {
    const Array row = PositionsRow(1, i), other = PositionsRow(1, 99);
    std::vector<float> both(row.View<float>().begin(), row.View<float>().end());
    both.insert(both.end(), other.View<float>().begin(), other.View<float>().end());
    const SlotValues want = *direct.Eval({{kX, Array::FromSpan(absl::MakeConstSpan(both), {2, kWidth})}});
    const absl::Span<const float> want_row = want.at(kSum).View<float>().subspan(0, 8);
    ASSERT_THAT(answers[i], IsOk());
    EXPECT_EQ(answers[i]->at(kSum).View<float>(), want_row) << i;
  }
}

TEST(EngineTest, ASingleProgramTakesWholeRequests) {
  const auto model = MakeRowModel({DenseProgram(4)}, Int8PerTensor(), PositionsWeights());
  ASSERT_THAT(model, IsOk());
  const std::unique_ptr<Engine> engine = *Engine::Make(*model, {.threads = 1});
  const Array x = PositionsRow(4, 1);
  const SlotValues want = *nn::Serve({DenseProgram(4)}, Int8PerTensor(), PositionsWeights())->Eval({{kX, x}});
  ExpectEqual(engine->Run({.inputs = {{kX, x}}}), want);
  EXPECT_THAT(engine->Run({.inputs = {{kX, PositionsRow(3, 1)}}}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"f32[3,16], expected f32[4,16]"}));
}

TEST(EngineTest, ProgramsWhoseRowsDependAreRefused) {
  EXPECT_THAT(MakeRowModel({DenseProgram(2), DenseProgram(4)}, Int8PerTensor(), PositionsWeights()).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"rows depend"}));
  // A batch of one row has other bits than that of several.
  EXPECT_THAT(MakeRowModel({DenseProgram(1), DenseProgram(2), DenseProgram(4)}, Int8(), PositionsWeights()).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"a batch of one row"}));
  EXPECT_THAT(MakeRowModel({DenseProgram(2), DenseProgram(2)}, Int8(), PositionsWeights()).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"a batch of 2"}));
  EXPECT_THAT(MakeRowModel(std::vector<Program>(), Int8(), PositionsWeights()).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"no program"}));
}

// Fails for one length.
class BrokenModel final : public RowModel {
 public:
  explicit BrokenModel(ModelPtr model) : model_(std::move(model)) { facts_ = model_->facts(); }
  absl::StatusOr<Executable> Compile(int64_t batch, int64_t length) const override {
    if (length == 32) return absl::UnimplementedError("not this length");
    return model_->Compile(batch, length);
  }
  int64_t weight_bytes() const override { return 0; }

 private:
  const ModelPtr model_;
};

TEST(EngineTest, AProgramsErrorIsTheAnswer) {
  const std::unique_ptr<Engine> engine =
      *Engine::Make(std::make_shared<BrokenModel>(*PositionsModel({})), {.threads = 2});
  EXPECT_TRUE(absl::IsUnimplemented(engine->Run({.inputs = {{kX, PositionsRow(20, 1)}}}).status()));
  EXPECT_THAT(engine->Run({.inputs = {{kX, PositionsRow(5, 1)}}}), IsOk());
  EXPECT_EQ(engine->stats().failed, 1);
}

TEST(EngineTest, CallbacksGetTheAnswer) {
  const std::unique_ptr<Engine> engine = *Engine::Make(*PositionsModel({}), {.threads = 2});
  std::atomic<int> calls = 0;
  std::vector<Ticket> tickets;
  for (int i = 0; i < 20; ++i) {
    tickets.push_back(engine->Submit({.inputs = {{kX, PositionsRow(1 + i, i)}}}, [&](const Answer& answer) {
      EXPECT_THAT(answer, IsOk());
      ++calls;
    }));
  }
  for (const Ticket& ticket : tickets) EXPECT_THAT(ticket.Wait(), IsOk());
  EXPECT_EQ(calls, 20);  // Wait returns after the callback
}

}  // namespace
}  // namespace aqt::serving
