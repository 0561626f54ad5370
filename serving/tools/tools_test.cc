// The small parts: text.h, progress.h, parallel.h.

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/tools/command_line.h"
#include "serving/tools/parallel.h"
#include "serving/tools/progress.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(TextTest, HumanBytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(int64_t{16} << 20), "16.0 MiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
}

TEST(TextTest, ParseBytes) {
  EXPECT_EQ(ParseBytes("5GB"), 5000000000);
  EXPECT_EQ(ParseBytes("2 GiB"), int64_t{2} << 30);
  EXPECT_EQ(ParseBytes("1.5kb"), 1500);
  EXPECT_EQ(ParseBytes("17"), 17);
  EXPECT_EQ(ParseBytes("17b"), 17);
  for (const char* text : {"", "GB", "0", "-1", "5XB", "1e99", "nan", "inf"})
    EXPECT_EQ(ParseBytes(text), std::nullopt) << text;
}

TEST(TextTest, TableAlignsColumns) {
  Table table({"a", "bb"});
  table.Add({"long", "x"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(), "a     bb\nlong  x\n");
}

TEST(ProgressTest, LinesAndBars) {
  std::chrono::steady_clock::time_point now{};
  const auto clock = [&] { return now; };
  std::ostringstream none, lines, bar;
  {
    Progress a(ProgressStyle::kNone, 100, none, clock), b(ProgressStyle::kLines, 100, lines, clock),
        c(ProgressStyle::kBar, 100, bar, clock);
    for (Progress* p : {&a, &b, &c}) p->Add(10, "first");
    now += std::chrono::seconds(10);
    for (Progress* p : {&a, &b, &c}) p->Add(15, "second");
    now += std::chrono::milliseconds(50);
    for (Progress* p : {&a, &b, &c}) p->Add(15, "third");
  }
  EXPECT_THAT(none.str(), IsEmpty());
  EXPECT_EQ(lines.str(), " 25% 25 B of 100 B, 2 B/s, 30s left: second\n");
  EXPECT_THAT(bar.str(), HasSubstr("\r[#######                       ]  25% 25 B of 100 B"));
  EXPECT_THAT(bar.str(), Not(HasSubstr("third")));
  EXPECT_EQ(bar.str().back(), '\r');
}

TEST(TextTest, TableCellsArePrintable) {
  Table table({"a", "b"});
  table.Add({"x\n\x1b", "y"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(), "a        b\nx\\n\\x1b  y\n");
}

TEST(ProgressTest, IsReported) {
  std::vector<std::string> reports;
  Progress progress(
      [&](int64_t done, absl::string_view what) { reports.push_back(std::to_string(done) + " " + std::string(what)); });
  progress.Add(10, "first");
  progress.Add(15, "second");
  progress.Finish();
  EXPECT_EQ(reports, (std::vector<std::string>{"10 first", "25 second"}));
}

TEST(ProgressTest, NamesArePrintable) {
  std::chrono::steady_clock::time_point now{};
  const auto clock = [&] { return now; };
  std::ostringstream lines, bar;
  Progress a(ProgressStyle::kLines, 100, lines, clock), b(ProgressStyle::kBar, 100, bar, clock);
  now += std::chrono::seconds(10);
  a.Add(10, "x\r\x1b[2K");
  std::string wide = "left out:";
  for (int i = 0; i < 21; ++i) wide += "\xc3\xa9";  // two bytes each: 40 bytes from the end is between two
  b.Add(10, wide + "\n\x1b!");
  EXPECT_THAT(lines.str(), EndsWith(": x\\r\\x1b[2K\n"));
  EXPECT_THAT(bar.str(), AllOf(EndsWith("\xc3\xa9\\n\\x1b!"), Not(HasSubstr("out:")), Not(HasSubstr(" \xa9"))));
}

TEST(ParallelTest, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 7}) {
    for (const int64_t n : {0, 1, 100}) {
      std::vector<std::atomic<int>> runs(n);
      const absl::Status status = ParallelRun(
          n, {.threads = threads, .memory_budget = 3}, [](int64_t i) { return i % 5; },
          [&](int64_t i) {
            ++runs[i];
            return absl::OkStatus();
          });
      EXPECT_TRUE(status.ok());
      for (const auto& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ParallelTest, KeepsTheBudget) {
  std::atomic<int64_t> held{0}, most{0};
  const auto memory = [](int64_t i) { return i == 20 ? int64_t{1000} : int64_t{4}; };
  ASSERT_TRUE(ParallelRun(100, {.threads = 8, .memory_budget = 10}, memory, [&](int64_t i) {
                const int64_t now = held += memory(i);
                EXPECT_TRUE(i == 20 ? now == 1000 : now <= 10)
                    << "a task above the budget runs alone: " << i << ", " << now;
                most = std::max(most.load(), now);
                held -= memory(i);
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(most, 1000);
}

TEST(ParallelTest, TheFirstErrorIsReturned) {
  for (const int threads : {1, 4}) {
    std::atomic<int64_t> last{0};
    const absl::Status status = ParallelRun(
        1000, {.threads = threads, .memory_budget = 1}, [](int64_t) { return 0; },
        [&](int64_t i) {
          last = std::max(last.load(), i);
          return i >= 10 ? absl::InternalError(std::to_string(i)) : absl::OkStatus();
        });
    EXPECT_EQ(status.message(), "10");
    EXPECT_LT(last, 10 + threads);
  }
}

TEST(ParallelTest, AThreadThatCannotBeStartedIsAnError) {
  pthread_attr_t usual, huge;  // stacks of 1/8 of the address space
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 44), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  std::atomic<int64_t> runs{0};
  const absl::Status status = ParallelRun(
      1'000'000'000, {.threads = 64, .memory_budget = 1}, [](int64_t) { return 0; },
      [&](int64_t) {
        ++runs;
        return absl::OkStatus();
      });
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  pthread_attr_destroy(&usual);
  pthread_attr_destroy(&huge);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cannot start thread "), HasSubstr(" of 64: "), HasSubstr("--jobs")));
  EXPECT_LT(runs, 1'000'000'000) << "those that were started stop";
}

TEST(ParallelTest, AnAllocationThatFailsIsAnError) {
  for (const int threads : {1, 4}) {
    const absl::Status status = ParallelRun(
        100, {.threads = threads, .memory_budget = 1}, [](int64_t) { return 0; },
        [&](int64_t i) -> absl::Status {
          if (i == 10) throw std::bad_alloc();
          return absl::OkStatus();
        });
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory"));
  }
}

TEST(CommandLineTest, AFlagWithAnEqualsSignHasAValue) {
  EXPECT_TRUE(CheckFlagValues({}).ok());
  EXPECT_TRUE(CheckFlagValues({"convert", "--out=x", "--name==", "--", "--out=", "a=", "-x=", "--="}).ok());
  const absl::Status status = CheckFlagValues({"--recipe=r", "--out=", "folder"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--out= has no value; expected --out=VALUE"));
}

}  // namespace
}  // namespace aqt::serving
