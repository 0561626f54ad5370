#ifndef AQT_SERVING_ENGINE_ENGINE_CORE_H_
#define AQT_SERVING_ENGINE_ENGINE_CORE_H_

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "serving/engine/batch_runner.h"
#include "serving/engine/engine.h"
#include "serving/engine/row_model.h"
#include "serving/engine/row_programs.h"
#include "serving/engine/ticket_state.h"

namespace aqt::serving {

// The queue of an engine, and what its threads do. Thread-safe.
class EngineCore {
 public:
  EngineCore(std::shared_ptr<const RowModel> model, const EngineOptions& options)
      : model_(std::move(model)), options_(options), programs_(model_, options.max_programs) {
    stats_.queue_limit = options.queue_limit;
    const int64_t largest = facts().batches.empty() ? options.max_batch : facts().batches.back();
    stats_.batches.assign(largest + 1, 0);
    stats_.batch_sums.assign(largest + 1, 0);
  }

  const RowFacts& facts() const { return model_->facts(); }
  const RowModel& model() const { return *model_; }
  RowPrograms& programs() { return programs_; }

  // Puts the request into the queue, or answers it. With `wait`, waits for room.
  void Submit(const TicketStatePtr& state, bool wait);
  // Answers a request that cannot enter the queue.
  void Refuse(Ticket::State& state, const absl::Status& status);
  bool Cancel(Ticket::State& state);
  // Answers it with DeadlineExceeded if it is waiting.
  void Expire(Ticket::State& state);
  void Stop();
  // Computes batches until Stop.
  void Work();
  EngineStats stats() const;
  void set_threads(int threads) {
    const std::lock_guard<std::mutex> lock(mutex_);
    stats_.threads = threads;
  }

  // The batches of a length that there may be, ascending.
  std::vector<int64_t> BatchesOf(int64_t length) const;

 private:
  // Rows of one program, taken from the queue.
  struct Batch {
    std::vector<TicketStatePtr> rows, expired;
    int64_t size = 0;  // of the program
  };
  using Queue = std::list<TicketStatePtr>;

  absl::Status Enter(const TicketStatePtr& state, bool wait, std::vector<TicketStatePtr>& expired);
  // The caller holds mutex_.
  void Remove(Ticket::State& state);
  void RemoveExpired(Queue& queue, absl::Time now, std::vector<TicketStatePtr>& expired);
  void RemoveAllExpired(std::vector<TicketStatePtr>& expired);
  bool Take(Batch& batch);
  int64_t MostRows(int64_t length) const;
  void Compute(Batch& batch, BatchRunner& runner, std::vector<RowMemory>& memory);
  absl::Status RunRows(const Batch& batch, BatchRunner& runner, std::vector<RowMemory>& memory);

  const std::shared_ptr<const RowModel> model_;
  const EngineOptions options_;
  RowPrograms programs_;

  mutable std::mutex mutex_;
  std::condition_variable work_, room_;
  // Guarded by mutex_.
  std::map<int64_t, Queue> queues_;  // by program length; not empty
  int64_t next_number_ = 0;
  int idle_ = 0;
  bool stopping_ = false;
  EngineStats stats_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_ENGINE_CORE_H_
