#ifndef AQT_SERVING_ENGINE_ENGINE_H_
#define AQT_SERVING_ENGINE_ENGINE_H_

// Answers requests for the rows of a model on several threads:
//
//   AQT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Make(model));
//   AQT_ASSIGN_OR_RETURN(const SlotValues out, engine->Run({.inputs = {{models::kIds, ids}, ...}}));
//
// or without waiting:
//
//   const Ticket ticket = engine->Submit({.inputs = ..., .deadline = absl::Now() + absl::Seconds(1)});
//   ...
//   AQT_ASSIGN_OR_RETURN(const SlotValues out, ticket.Wait());
//
// The bits of an answer depend only on the request: not on other requests, on the number of threads or on the load.
// Rows are joined and padded only where RowFacts allow it. docs/serving-engine.md describes the decisions.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "aqt/graph/program.h"
#include "serving/engine/row_model.h"

namespace aqt::serving {

struct EngineOptions {
  // Threads that compute. 0: one for each CPU that the process may use.
  int threads = 0;
  // How many of them compute a batch together. 1 answers the most requests per second; more answer a single one sooner.
  int threads_per_batch = 1;
  // Requests that wait at most; those that are being computed do not count.
  int64_t queue_limit = 1024;
  // Rows, and positions (padding included), that are joined at most. A single row may be longer.
  int64_t max_batch = 8;
  int64_t max_batch_positions = 128;
  // Compiled programs that are kept; the one that was not used for the longest time goes first.
  int64_t max_programs = 128;
};

struct Request {
  // The inputs of one row by name, each with the shape of its RowPort. A leading batch axis of 1 is allowed, too.
  SlotValues inputs;
  // A request that has not been started by then is answered with DeadlineExceeded, and is not computed.
  absl::Time deadline = absl::InfiniteFuture();
};

// What became of a request. The outputs of the row by name, without a batch axis, as long as the request's row;
// otherwise one of the errors
//   InvalidArgument     an input is missing, unknown, or of another dtype or shape; names it
//   ResourceExhausted   the queue is full; names its limit
//   DeadlineExceeded    the deadline passed before the request was started
//   Cancelled           Ticket::Cancel came before it was started
//   Unavailable         the engine shuts down
// or an error of the program.
using Answer = absl::StatusOr<SlotValues>;

// A request that was handed in. Cheap to copy; copies mean the same request. Thread-safe. It may outlive the engine.
class Ticket {
 public:
  struct State;
  // Waits for the answer. May be called more than once.
  Answer Wait() const;
  // Waits at most until `time`. Whether there is an answer; Wait then returns at once.
  bool WaitUntil(absl::Time time) const;
  // Answers with Cancelled if the request has not been started. Whether it did.
  bool Cancel() const;

 private:
  friend class Engine;
  explicit Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// Counts that are never reset, and what is true now. All from one moment.
struct EngineStats {
  int64_t accepted = 0;   // requests: waiting + running + answered + failed + expired + cancelled
  int64_t refused = 0;    // InvalidArgument, ResourceExhausted or Unavailable at once
  int64_t answered = 0;   // with outputs
  int64_t failed = 0;     // with an error of the program
  int64_t expired = 0;    // DeadlineExceeded
  int64_t cancelled = 0;  // Cancelled
  int64_t waiting = 0;    // in the queue now
  int64_t running = 0;    // rows that are being computed now
  int64_t threads = 0;
  int64_t queue_limit = 0;
  int64_t programs = 0;          // that are compiled
  int64_t weight_bytes = 0;      // weights and panels, shared by all programs
  int64_t positions = 0;         // tokens of answered requests
  int64_t padded_positions = 0;  // the same with padding
  // batches[n]: the number of batches that had n rows, n = 1 .. max_batch.
  std::vector<int64_t> batches;
  // Seconds from Submit to the answer, of answered requests: counts[i] have at most kLatencyBounds[i] seconds and more
  // than the bound before; the last count is of those above all bounds.
  static constexpr std::array<double, 16> kLatencyBounds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                                            0.2,    0.5,   1,     2,     5,    10,   20,   60};
  std::array<int64_t, kLatencyBounds.size() + 1> latency_counts = {};
  double latency_sum = 0;  // seconds
  double queue_sum = 0;    // the part of it before the batch was started
  double busy_sum = 0;     // seconds of all threads with a batch
  // batch_sums[n]: seconds of the batches that batches[n] counts.
  std::vector<double> batch_sums;
};

// The number of CPUs that the process may use; at least 1.
int NumCpus();

// Thread-safe.
class Engine {
 public:
  // Called once with the answer, on a thread of the engine, or on the one whose call ended the request: Submit, Cancel,
  // Wait. It should not take long.
  using Callback = std::function<void(const Answer&)>;

  // Starts the threads. InvalidArgument for an option that is out of range; ResourceExhausted if no thread starts.
  static absl::StatusOr<std::unique_ptr<Engine>> Make(std::shared_ptr<const RowModel> model,
                                                      const EngineOptions& options = {});
  // Shutdown().
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Hands in a request. Never waits: errors are answers, too.
  Ticket Submit(Request request, Callback done = nullptr);
  // The same, but waits for room in the queue instead of failing.
  Ticket SubmitWhenRoom(Request request, Callback done = nullptr);
  // Submit and Wait.
  Answer Run(Request request) { return Submit(std::move(request)).Wait(); }
  // SubmitWhenRoom of all, and Wait. The answers have the order of the requests.
  std::vector<Answer> RunAll(std::vector<Request> requests);

  // Compiles the programs of rows of these lengths ahead, for batches of up to `most_rows` rows. Lengths are padded as
  // for requests. Weights are packed by the threads of an enclosing UseExecutor (aqt/graph/context.h).
  absl::Status Warm(absl::Span<const int64_t> lengths, int64_t most_rows = int64_t{1} << 30);
  // Refuses new requests, computes those that wait, ends the threads, and returns. Must not be called by a callback.
  void Shutdown();

  EngineStats stats() const;
  const RowModel& model() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_ENGINE_H_
