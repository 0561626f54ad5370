// Many threads ask a small encoder for rows of mixed lengths, with cancels and deadlines. Every answer has the bits of
// a call of models::TextEmbedder. AQT_STRESS_SECONDS=600 repeats this for ten minutes.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "aqt/io/file.h"
#include "aqt/models/text/text_embedder.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/environment.h"
#include "gtest/gtest.h"
#include "serving/engine/text_engine.h"

namespace aqt::serving {
namespace {

constexpr char kFolder[] = "tests/golden/models/bert";  // ids 5, 6, ... are w5, w6, ...
constexpr int kThreads = 64, kTexts = 150, kRounds = 20;

std::string TextOf(int number) {
  std::string text;
  for (int i = 0; i <= number % 13; ++i) absl::StrAppend(&text, "w", 5 + (number * 7 + i * i) % 45, " ");
  return text;
}

// What became of the requests of all threads.
struct Counts {
  std::atomic<int64_t> right = 0, cancelled = 0, late = 0, full = 0, wrong = 0;

  void Add(const absl::StatusOr<TextAnswer>& answer, const std::vector<float>& want) {
    if (absl::IsCancelled(answer.status())) ++cancelled;
    if (absl::IsDeadlineExceeded(answer.status())) ++late;
    if (absl::IsResourceExhausted(answer.status())) ++full;
    if (!answer.ok()) return;
    const absl::Span<const float> got = answer->outputs.at(models::kEmbeddings).View<float>();
    ++(got == absl::MakeConstSpan(want) ? right : wrong);
  }
};

// One thread's requests: several at a time, some of them cancelled, or with a deadline that may pass.
void Ask(TextEngine& engine, const std::vector<std::vector<float>>& want, int thread, absl::Time end, Counts& counts) {
  std::mt19937 random(thread);
  for (int round = 0; round < kRounds || absl::Now() < end; ++round) {
    std::vector<std::pair<int, TextTicket>> tickets;
    for (int i = 0; i < 4; ++i) {
      const int number = static_cast<int>(random() % kTexts);
      TextRequest request = {.text = TextOf(number)};
      if (random() % 4 == 0) request.deadline = absl::Now() + absl::Microseconds(random() % 2000);
      tickets.emplace_back(number, random() % 8 == 0 ? engine.SubmitWhenRoom(request) : engine.Submit(request));
    }
    for (const auto& [number, ticket] : tickets) {
      if (random() % 8 == 0) ticket.Cancel();
    }
    for (const auto& [number, ticket] : tickets) counts.Add(ticket.Wait(), want[number]);
  }
}

void Stress(const InjectConfig& config, EngineOptions options) {
  const models::TextEmbedder embedder = *models::TextEmbedder::Open(io::LocalFileSystem(), kFolder, config);
  std::vector<std::vector<float>> want;
  for (int number = 0; number < kTexts; ++number) want.push_back(embedder.Embed(TextOf(number))->values);
  const auto engine = TextEngine::Open(io::LocalFileSystem(), kFolder, {.config = config, .engine = options});
  ASSERT_TRUE(engine.ok()) << engine.status();
  Counts counts;
  const absl::Time end = absl::Now() + absl::Seconds(testing::FromEnvironment("AQT_STRESS_SECONDS", 0));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] { Ask(**engine, want, thread, end, counts); });
  }
  for (std::thread& thread : threads) thread.join();
  (*engine)->engine().Shutdown();
  const EngineStats stats = (*engine)->engine().stats();
  EXPECT_EQ(counts.wrong, 0);
  EXPECT_GT(counts.right, 0);
  EXPECT_EQ(stats.answered, counts.right);
  EXPECT_EQ(stats.cancelled, counts.cancelled);
  EXPECT_EQ(stats.expired, counts.late);
  EXPECT_EQ(stats.refused, counts.full);
  EXPECT_EQ(stats.waiting + stats.running + stats.failed, 0);
  EXPECT_EQ(stats.accepted, stats.answered + stats.cancelled + stats.expired);
  ::testing::Test::RecordProperty("right", absl::StrCat(counts.right.load()));
  ::testing::Test::RecordProperty("cancelled", absl::StrCat(counts.cancelled.load()));
  ::testing::Test::RecordProperty("late", absl::StrCat(counts.late.load()));
  ::testing::Test::RecordProperty("full", absl::StrCat(counts.full.load()));
}

InjectConfig Int8Weights() {
  InjectConfig config;
  config.rules.push_back({.scope = ".*", .rhs_origin = OperandOrigin::kParam, .dot_general = DotGeneralMake(8, 8)});
  return config;
}
InjectConfig Int8Everywhere() {
  InjectConfig config;
  config.rules.push_back({.scope = ".*", .dot_general = DotGeneralMake(8, 8)});
  return config;
}

TEST(StressTest, Float) { Stress({}, {.threads = 4, .queue_limit = 100}); }
TEST(StressTest, Int8) { Stress(Int8Weights(), {.threads = 3, .queue_limit = 30, .max_programs = 5}); }
// With scales that padding and neighbours could change.
TEST(StressTest, Int8Attention) { Stress(Int8Everywhere(), {.threads = 2, .queue_limit = 1000}); }

}  // namespace
}  // namespace aqt::serving
