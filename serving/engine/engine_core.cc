#include "serving/engine/engine_core.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"

namespace aqt::serving {
namespace {

using Phase = Ticket::State::Phase;
using SteadyTime = std::chrono::steady_clock::time_point;

double SecondsSince(SteadyTime start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

absl::Status Late(const Ticket::State& state) {
  return absl::DeadlineExceededError(absl::StrCat("the deadline of the request, ", absl::FormatTime(state.deadline),
                                                  ", passed before it was started"));
}

void AnswerLate(const std::vector<TicketStatePtr>& expired) {
  for (const TicketStatePtr& state : expired) Finish(*state, Late(*state));
}

}  // namespace

void EngineCore::Remove(Ticket::State& state) {
  const auto queue = queues_.find(state.program_length);
  queue->second.erase(state.place);
  if (queue->second.empty()) queues_.erase(queue);
  --stats_.waiting;
  room_.notify_all();
}

void EngineCore::RemoveExpired(Queue& queue, absl::Time now, std::vector<TicketStatePtr>& expired) {
  for (auto it = queue.begin(); it != queue.end();) {
    if ((*it)->deadline > now) {
      ++it;
      continue;
    }
    (*it)->phase = Phase::kDone;
    expired.push_back(std::move(*it));
    it = queue.erase(it);
    --stats_.waiting;
    ++stats_.expired;
    room_.notify_all();
  }
}

void EngineCore::RemoveAllExpired(std::vector<TicketStatePtr>& expired) {
  const absl::Time now = absl::Now();
  for (auto it = queues_.begin(); it != queues_.end();) {
    RemoveExpired(it->second, now, expired);
    it = it->second.empty() ? queues_.erase(it) : std::next(it);
  }
}

absl::Status EngineCore::Enter(const TicketStatePtr& state, bool wait, std::vector<TicketStatePtr>& expired) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!stopping_ && stats_.waiting >= options_.queue_limit) RemoveAllExpired(expired);
  if (wait) {
    WaitUntilTime(room_, lock, state->deadline, [this] { return stopping_ || stats_.waiting < options_.queue_limit; });
  }
  state->phase = Phase::kDone;
  if (stopping_) {
    ++stats_.refused;
    return absl::UnavailableError("the engine shuts down and takes no more requests");
  }
  if (state->deadline <= absl::Now()) {
    ++stats_.accepted;
    ++stats_.expired;
    return Late(*state);
  }
  if (stats_.waiting >= options_.queue_limit) {
    ++stats_.refused;
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", stats_.waiting,
                                                     " requests wait, which is its limit; try again later, or raise "
                                                     "queue_limit"));
  }
  Queue& queue = queues_[state->program_length];
  state->phase = Phase::kWaiting;
  state->number = next_number_++;
  state->place = queue.insert(queue.end(), state);
  ++stats_.waiting;
  ++stats_.accepted;
  work_.notify_one();
  return absl::OkStatus();
}

void EngineCore::Submit(const TicketStatePtr& state, bool wait) {
  std::vector<TicketStatePtr> expired;
  const absl::Status status = Enter(state, wait, expired);
  AnswerLate(expired);
  if (!status.ok()) Finish(*state, status);
}

void EngineCore::Refuse(Ticket::State& state, const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state.phase = Phase::kDone;
    ++stats_.refused;
  }
  Finish(state, status);
}

bool EngineCore::Cancel(Ticket::State& state) {
  TicketStatePtr own;  // the queue may hold the last reference
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state.phase != Phase::kWaiting) return false;
    own = *state.place;
    state.phase = Phase::kDone;
    Remove(state);
    ++stats_.cancelled;
  }
  Finish(state, absl::CancelledError("the request was cancelled before it was started"));
  return true;
}

void EngineCore::Expire(Ticket::State& state) {
  TicketStatePtr own;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state.phase != Phase::kWaiting) return;
    own = *state.place;
    state.phase = Phase::kDone;
    Remove(state);
    ++stats_.expired;
  }
  Finish(state, Late(state));
}

void EngineCore::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
  work_.notify_all();
  room_.notify_all();
}

int64_t EngineCore::MostRows(int64_t length) const {
  if (!facts().joins) return 1;
  if (!facts().batches.empty()) return facts().batches.back();
  return std::clamp<int64_t>(options_.max_batch_positions / std::max<int64_t>(length, 1), 1, options_.max_batch);
}

std::vector<int64_t> EngineCore::BatchesOf(int64_t length) const {
  if (!facts().batches.empty()) return facts().batches;
  std::vector<int64_t> batches;
  for (int64_t batch = 1; batch <= MostRows(length); batch *= 2) batches.push_back(batch);
  return batches;
}

// Rows of the length that waits longest: as many as one of the batches has, but not more than a fair share if other
// threads are idle.
bool EngineCore::Take(Batch& batch) {
  batch.rows.clear();
  batch.expired.clear();
  std::unique_lock<std::mutex> lock(mutex_);
  ++idle_;
  work_.wait(lock, [this] { return stats_.waiting > 0 || stopping_; });
  --idle_;
  if (stats_.waiting == 0) return false;
  const auto it = std::min_element(queues_.begin(), queues_.end(), [](const auto& a, const auto& b) {
    return a.second.front()->number < b.second.front()->number;
  });
  Queue& queue = it->second;
  RemoveExpired(queue, absl::Now(), batch.expired);
  const int64_t there = static_cast<int64_t>(queue.size());
  int64_t rows = std::min(MostRows(it->first), CeilDiv(there, idle_ + 1));
  if (rows > 0) {
    if (facts().batches.empty()) {
      for (batch.size = 1; 2 * batch.size <= rows;) batch.size *= 2;
      rows = batch.size;
    } else {
      batch.size = *std::lower_bound(facts().batches.begin(), facts().batches.end(), rows);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    batch.rows.push_back(std::move(queue.front()));
    queue.pop_front();
    batch.rows.back()->phase = Phase::kRunning;
    --stats_.waiting;
    ++stats_.running;
    room_.notify_all();
  }
  if (queue.empty()) queues_.erase(it);
  return true;
}

absl::Status EngineCore::RunRows(const Batch& batch, BatchRunner& runner, std::vector<RowMemory>& memory) {
  try {
    AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const RowProgram> program,
                         programs_.Get(batch.size, batch.rows[0]->program_length));
    memory.clear();
    for (const TicketStatePtr& row : batch.rows) memory.push_back({row->inputs, row->output_memory, row->length});
    return runner.Run(*program, memory);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory for ", batch.rows.size(), " rows of length ",
                                                     batch.rows[0]->program_length,
                                                     "; use fewer threads, smaller "
                                                     "batches or shorter rows"));
  }
}

void EngineCore::Compute(Batch& batch, BatchRunner& runner, std::vector<RowMemory>& memory) {
  const SteadyTime start = std::chrono::steady_clock::now();
  const absl::Status status = RunRows(batch, runner, memory);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t rows = static_cast<int64_t>(batch.rows.size());
    stats_.running -= rows;
    (status.ok() ? stats_.answered : stats_.failed) += rows;
    ++stats_.batches[rows];
    const double taken = SecondsSince(start);
    stats_.busy_sum += taken;
    stats_.batch_sums[rows] += taken;
    for (const TicketStatePtr& row : batch.rows) {
      row->phase = Phase::kDone;
      if (!status.ok()) continue;
      const double seconds = SecondsSince(row->start);
      const auto& bounds = EngineStats::kLatencyBounds;
      ++stats_.latency_counts[std::lower_bound(bounds.begin(), bounds.end(), seconds) - bounds.begin()];
      stats_.latency_sum += seconds;
      stats_.queue_sum += std::chrono::duration<double>(start - row->start).count();
      stats_.positions += row->length;
      stats_.padded_positions += row->program_length;
    }
  }
  for (const TicketStatePtr& row : batch.rows)
    Finish(*row, status.ok() ? Answer(std::move(row->outputs)) : Answer(status));
}

void EngineCore::Work() {
  std::optional<kernels::ThreadPool> pool;
  if (options_.threads_per_batch > 1) pool.emplace(options_.threads_per_batch);
  const UseExecutor use(pool.has_value() ? &*pool : nullptr);
  BatchRunner runner(facts());
  std::vector<RowMemory> memory;
  Batch batch;
  while (Take(batch)) {
    AnswerLate(batch.expired);
    if (!batch.rows.empty()) Compute(batch, runner, memory);
    batch.rows.clear();
  }
}

EngineStats EngineCore::stats() const {
  EngineStats stats;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stats = stats_;
  }
  stats.programs = programs_.size();
  stats.weight_bytes = model_->weight_bytes();
  return stats;
}

}  // namespace aqt::serving
