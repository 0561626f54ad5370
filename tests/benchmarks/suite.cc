#include "tests/benchmarks/suite.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/check.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "benchmark/benchmark.h"
#include "re2/re2.h"
#include "tests/benchmarks/machine_roof.h"

namespace aqt::benchmarks {
namespace {

struct Flags {
  int rounds = 10;
  double milliseconds = 10;
  std::string filter, json;
  std::vector<int> threads = {1};
  std::vector<std::string> shapes;
  bool list = false;
};

// Runs on the first `n` of the CPUs that the process may use. Threads that start later inherit this, both ours and the
// peers'.
absl::Status UseCpus(const cpu_set_t& allowed, int n) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&set) < n; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &set);
  }
  if (CPU_COUNT(&set) < n) {
    return absl::FailedPreconditionError(absl::StrCat("--threads: ", n, " threads, but the process may use ",
                                                      CPU_COUNT(&allowed), " CPUs; allow more, or pass fewer"));
  }
  if (sched_setaffinity(0, sizeof(set), &set) != 0) return absl::InternalError("sched_setaffinity failed");
  return absl::OkStatus();
}

// Keeps the best repetition of each benchmark, by name.
class Best : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      const auto [it, inserted] = best_.try_emplace(run.run_name.function_name, run);
      if (!inserted && Seconds(run) < Seconds(it->second)) it->second = run;
    }
  }
  static double Seconds(const Run& run) {
    return run.real_accumulated_time / static_cast<double>(std::max<int64_t>(1, run.iterations));
  }
  // Null if it did not run.
  const Run* Find(const std::string& name) const {
    const auto it = best_.find(name);
    return it == best_.end() ? nullptr : &it->second;
  }

 private:
  std::map<std::string, Run> best_;
};

double RoofSeconds(const Work& work, const Roofs& one_core, Executor* executor) {
  const int threads = executor == nullptr ? 1 : executor->NumThreads();
  double gops = 0, seconds = 0;
  switch (work.unit) {
    case Work::Unit::kNone: break;
    case Work::Unit::kF32: gops = one_core.f32_gops; break;
    case Work::Unit::kBf16: gops = one_core.bf16_gops; break;
    case Work::Unit::kS8: gops = one_core.s8_gops; break;
  }
  if (gops > 0) seconds = 1e-9 * work.ops * work.passes / (gops * threads);
  if (work.reads > 0) {
    seconds = std::max(seconds, 1e-9 * static_cast<double>(work.reads) / ReadGBps(work.reads, executor));
  }
  if (work.copies > 0) {
    seconds = std::max(seconds, 1e-9 * static_cast<double>(work.copies) / CopyGBps(work.copies, executor));
  }
  return seconds;
}

class Program {
 public:
  Program(Flags flags, cpu_set_t allowed)
      : flags_(std::move(flags)), allowed_(allowed), filter_(flags_.filter, RE2::Quiet) {}

  absl::Status Run(const AddRows& add) {
    if (!filter_.ok()) return absl::InvalidArgumentError(absl::StrCat("--filter: ", filter_.error()));
    if (!flags_.list) Start();
    for (const std::string& shape : flags_.shapes) {
      for (const int threads : flags_.threads) {
        std::vector<Row> rows;
        if (absl::Status status = add(shape, rows); !status.ok()) return status;
        std::erase_if(rows, [&](const Row& row) { return !RE2::PartialMatch(Name(row, threads), filter_); });
        if (flags_.list) {
          for (const Row& row : rows) std::printf("%s\n", Name(row, threads).c_str());
        } else if (!rows.empty()) {
          if (absl::Status status = RunGroup(std::move(rows), threads); !status.ok()) return status;
        }
      }
    }
    if (file_.is_open()) json_.Finalize();
    return absl::OkStatus();
  }

 private:
  static std::string Name(const Row& row, int threads) {
    return Result{"", row.cls, row.shape, row.dtype, row.who, threads}.name();
  }

  void Start() {
    // Google Benchmark keeps the pointers.
    static auto* const args =
        new std::vector<std::string>{"benchmarks", "--benchmark_enable_random_interleaving=true",
                                     absl::StrCat("--benchmark_repetitions=", flags_.rounds),
                                     absl::StrFormat("--benchmark_min_time=%g", flags_.milliseconds / 1000)};
    std::vector<char*> argv;
    for (std::string& arg : *args) argv.push_back(arg.data());
    int argc = static_cast<int>(argv.size());
    benchmark::Initialize(&argc, argv.data());
    const kernels::Target target = kernels::BestTarget();
    const Roof f32 = F32Roof(target), bf16 = Bf16Roof(target), s8 = S8Roof(target);
    roofs_ = {f32.gops, bf16.gops, s8.gops};
    benchmark::AddCustomContext("target", std::string(kernels::ToString(target)));
    for (const auto& [name, roof] :
         {std::pair("roof_f32", f32), std::pair("roof_bf16", bf16), std::pair("roof_s8", s8)}) {
      benchmark::AddCustomContext(name, absl::StrFormat("%.0f GOP/s, %s", roof.gops, roof.instruction));
    }
    for (const Roof& roof : AllRoofs()) {
      benchmark::AddCustomContext("probe " + roof.instruction, absl::StrFormat("%.0f GOP/s", roof.gops));
    }
    if (!flags_.json.empty()) {
      file_.open(flags_.json);
      json_.SetOutputStream(&file_);
    }
  }

  absl::Status RunGroup(std::vector<Row> rows, int threads) {
    if (absl::Status status = UseCpus(allowed_, threads); !status.ok()) return status;
    omp_set_num_threads(threads);  // of the peers
    const auto pool = threads == 1 ? nullptr : std::make_unique<kernels::ThreadPool>(threads);
    std::vector<Result> results;
    std::vector<std::function<void()>> calls;
    for (const Row& row : rows) {
      absl::StatusOr<std::function<void()>> call = row.make(pool.get());
      if (absl::IsUnavailable(call.status())) continue;
      if (!call.ok()) {
        std::fprintf(stderr, "%s: %s\n", Name(row, threads).c_str(), call.status().ToString().c_str());
        continue;
      }
      (*call)();  // Memory is allocated and threads start before the number of calls in a round is chosen.
      results.push_back({row.family, row.cls, row.shape, row.dtype, row.who, threads, 0,
                         row.who.starts_with("aqt") ? RoofSeconds(row.work, roofs_, pool.get()) : 0, row.work.ops});
      calls.push_back(*std::move(call));
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      benchmark::RegisterBenchmark(results[i].name().c_str(),
                                   [&call = calls[i], threads](benchmark::State& state) {
                                     // The threads of another row may still spin for work.
                                     if (threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                     call();  // The caches still hold the previous row's data.
                                     for (auto _ : state) call();
                                   })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
    Best best;
    benchmark::RunSpecifiedBenchmarks(&best);
    benchmark::ClearRegisteredBenchmarks();
    std::erase_if(results, [&](const Result& r) { return best.Find(r.name()) == nullptr; });
    for (Result& result : results) result.seconds = Best::Seconds(*best.Find(result.name()));
    Print(results, best);
    return absl::OkStatus();
  }

  void Print(const std::vector<Result>& results, const Best& best) {
    const std::vector<std::map<std::string, double>> counters = Counters(results);
    std::vector<benchmark::BenchmarkReporter::Run> runs;
    for (size_t i = 0; i < results.size(); ++i) {
      benchmark::BenchmarkReporter::Run run = *best.Find(results[i].name());
      run.run_name = {};
      run.run_name.function_name = results[i].name();
      run.repetitions = 0;
      for (const auto& [name, value] : counters[i]) run.counters[name] = benchmark::Counter(value);
      runs.push_back(run);
    }
    if (!started_) {
      started_ = true;
      benchmark::BenchmarkReporter::Context context;
      context.name_field_width = 56;
      console_.ReportContext(context);
      if (file_.is_open()) json_.ReportContext(context);
    }
    for (const auto& run : runs) console_.ReportRuns({run});
    std::cout.flush();
    if (file_.is_open()) json_.ReportRuns(runs);
  }

  const Flags flags_;
  const cpu_set_t allowed_;
  const RE2 filter_;
  Roofs roofs_;
  benchmark::ConsoleReporter console_{benchmark::ConsoleReporter::OO_None};
  benchmark::JSONReporter json_;
  std::ofstream file_;
  bool started_ = false;
};

}  // namespace

std::string Result::name() const { return absl::StrCat(cls, "/", shape, "/", dtype, "/", threads, "/", who); }

std::vector<std::map<std::string, double>> Counters(absl::Span<const Result> group) {
  std::vector<std::map<std::string, double>> counters;
  for (const Result& result : group) {
    std::map<std::string, double>& c = counters.emplace_back();
    if (result.ops > 0) c["gops"] = 1e-9 * result.ops / result.seconds;
    if (!result.ours()) continue;
    if (result.roof_seconds > 0) c["roof"] = result.roof_seconds / result.seconds;
    double f32 = 0, peer = 0;
    const auto lower = [](double& best, double seconds) { best = best == 0 ? seconds : std::min(best, seconds); };
    for (const Result& other : group) {
      if (!result.family.empty() && other.family == result.family && other.dtype == "f32") lower(f32, other.seconds);
      if (other.cls == result.cls && other.dtype == result.dtype && !other.ours()) lower(peer, other.seconds);
    }
    if (f32 > 0) c["ratio_f32"] = f32 / result.seconds;
    if (peer > 0) c["ratio_best"] = peer / result.seconds;
  }
  return counters;
}

int SuiteMain(int argc, char** argv, const std::vector<std::string>& shapes, const AddRows& add) {
  Flags flags;
  flags.shapes = shapes;
  CLI::App app("Measures our implementations and peers: the best of rounds in random order.");
  app.add_option("--rounds", flags.rounds, "Rounds of each row")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--milliseconds", flags.milliseconds, "Minimum duration of a round, which has at least one call")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--filter", flags.filter,
                 "Only rows whose name class/shape/dtype/threads/who matches this regular expression");
  app.add_option("--threads", flags.threads, "Numbers of threads")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--shapes", flags.shapes, "Shapes instead of the default ones")->delimiter(',');
  app.add_option("--json", flags.json, "Also write the results to this file, as Google Benchmark's JSON");
  app.add_flag("--list", flags.list, "Print the names of the rows without running them");
  CLI11_PARSE(app, argc, argv);
  cpu_set_t allowed;
  AQT_CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
  const absl::Status status = Program(std::move(flags), allowed).Run(add);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", argv[0], status.ToString().c_str());
  return 1;
}

}  // namespace aqt::benchmarks
