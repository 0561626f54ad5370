#ifndef TESTS_BENCHMARKS_SUITE_H_
#define TESTS_BENCHMARKS_SUITE_H_

// Benchmarks that are compared with each other: ours and peers, interleaved in one process by Google Benchmark.
//
// A row is named class/shape/dtype/threads/who. The rows of one shape and number of threads form a group: their
// repetitions ("rounds") are run in random order, and a row's time is the minimum over its rounds. Ours ("aqt...") get
// counters:
//   gops        multiplications and additions per nanosecond
//   roof        the time that this machine's probes allow (machine_roof.h), divided by the time
//   ratio_f32   time of the best f32 row of the same family and group, ours or a peer's, divided by the time
//   ratio_best  time of the best peer with the same class and dtype in the group, divided by the time

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/executor.h"

namespace aqt::benchmarks {

// The probes' results for the machine, or for `threads` of its cores.
struct Roofs {
  double f32_gops = 0, bf16_gops = 0, s8_gops = 0;  // 0: not known
};

// What a call cannot do without.
struct Work {
  enum class Unit { kNone, kF32, kBf16, kS8 };
  double ops = 0;           // multiplications and additions that the caller asks for
  Unit unit = Unit::kNone;  // the instructions that do them
  double passes = 1;        // how often these have to do each of them
  int64_t reads = 0;        // bytes that are read from outside the nearest cache
  int64_t copies = 0;       // bytes that are read and written again
};

struct Row {
  std::string family;  // what ratio_f32 compares with: rows of dtype f32 of this family; empty: no ratio
  std::string cls, shape, dtype, who;
  Work work;
  // Makes the data and returns what is timed, which uses the executor (null: one thread). Unavailable: there is no such
  // row on this machine; other errors are reported.
  std::function<absl::StatusOr<std::function<void()>>(Executor* executor)> make;
};

// A row that was measured.
struct Result {
  std::string family, cls, shape, dtype, who;
  int threads = 1;
  double seconds = 0;
  double roof_seconds = 0;  // 0: not known
  double ops = 0;

  bool ours() const { return who.starts_with("aqt"); }
  std::string name() const;
};

// The counters of each result, by name; none for a peer but gops. `group` holds all results of one group.
std::vector<std::map<std::string, double>> Counters(absl::Span<const Result> group);

// The program: reads the flags, measures the roofs, runs the rows that `add` gives for each shape, and prints them
// (also as Google Benchmark's JSON). Returns the exit status. `add` returns an error for text that is not a shape.
using AddRows = std::function<absl::Status(const std::string& shape, std::vector<Row>& rows)>;
int SuiteMain(int argc, char** argv, const std::vector<std::string>& shapes, const AddRows& add);

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_SUITE_H_
