#include "serving/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "aqt/core/array.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "serving/engine/batch_runner.h"

namespace aqt::serving {
namespace {

class Core;
using SteadyTime = std::chrono::steady_clock::time_point;

// wait, or wait_until a time that may be infinite. False if the time passed.
template <class Done>
bool WaitUntilTime(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, absl::Time time, Done done) {
  if (time == absl::InfiniteFuture()) {
    condition.wait(lock, done);
    return true;
  }
  if (time == absl::InfinitePast()) return done();
  return condition.wait_until(lock, absl::ToChronoTime(time), done);
}

// Becomes true once.
class Event {
 public:
  void Set() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_set_ = true;
    condition_.notify_all();
  }
  // False if it did not become true until then.
  bool WaitUntil(absl::Time time) {
    std::unique_lock<std::mutex> lock(mutex_);
    return WaitUntilTime(condition_, lock, time, [this] { return is_set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool is_set_ = false;  // guarded by mutex_
};

double SecondsSince(SteadyTime start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

struct Ticket::State {
  // Written by Submit.
  std::shared_ptr<Core> core;
  std::vector<Array> inputs;                    // by RowFacts::inputs
  SlotValues outputs;                           // over the memory that is written when the row is computed
  absl::InlinedVector<void*, 4> output_memory;  // by RowFacts::outputs
  int64_t length = 0, program_length = 0;
  absl::Time deadline = absl::InfiniteFuture();
  Engine::Callback done;
  SteadyTime start = std::chrono::steady_clock::now();

  // Guarded by the mutex of `core`.
  enum class Phase : uint8_t { kNew, kWaiting, kRunning, kDone } phase = Phase::kNew;
  int64_t number = 0;                                 // in the order of Submit
  std::list<std::shared_ptr<State>>::iterator place;  // in the queue, while waiting

  // Written once, by the thread that sets kDone, before `answered`.
  Answer answer = absl::InternalError("no answer yet");
  Event answered;
};

namespace {

using State = Ticket::State;
using StatePtr = std::shared_ptr<State>;
using Phase = State::Phase;

void Finish(State& state, Answer answer) {
  state.answer = std::move(answer);
  if (state.done) state.done(state.answer);
  state.done = nullptr;
  state.answered.Set();
}

// ---- what a request must look like

absl::Status WrongInput(const RowPort& port, const Aval& aval) {
  std::vector<std::string> extents;
  for (int64_t axis = 0; axis < port.shape.rank(); ++axis) {
    extents.push_back(axis == port.length_axis ? "length" : absl::StrCat(port.shape[axis]));
  }
  return absl::InvalidArgumentError(absl::StrCat("input ", port.slot.ToString(), " is ", aval.ToString(), ", expected ",
                                                 ToString(port.dtype), "[", absl::StrJoin(extents, ","), "]"));
}

// The row's own shape of an input, without a leading batch axis of 1. Sets `length`, or compares with it.
absl::StatusOr<Array> RowInput(const RowFacts& facts, const RowPort& port, const Array& array,
                               std::optional<int64_t>& length) {
  const Shape& shape = array.shape();
  const int64_t lead = shape.rank() - port.shape.rank();
  if (array.dtype() != port.dtype || lead < 0 || lead > (facts.has_batch ? 1 : 0) || (lead == 1 && shape[0] != 1)) {
    return WrongInput(port, array.aval());
  }
  Shape row;
  for (int64_t axis = 0; axis < port.shape.rank(); ++axis) {
    const int64_t extent = shape[axis + lead];
    row.push_back(extent);
    if (axis != port.length_axis) {
      if (extent != port.shape[axis]) return WrongInput(port, array.aval());
      continue;
    }
    if (length.value_or(extent) != extent) {
      return absl::InvalidArgumentError(absl::StrCat("input ", port.slot.ToString(), " has a length of ", extent,
                                                     ", and another input one of ", *length, "; give both one length"));
    }
    if (extent < 1 || extent > facts.max_length) {
      return absl::InvalidArgumentError(absl::StrCat("input ", port.slot.ToString(), " has a length of ", extent,
                                                     ", expected 1 to ", facts.max_length));
    }
    length = extent;
  }
  return Array(Aval{port.dtype, std::move(row)}, array.buffer());
}

absl::Status ReadInputs(const RowFacts& facts, const SlotValues& given, State& state) {
  std::optional<int64_t> length;
  for (const RowPort& port : facts.inputs) {
    const auto it = given.find(port.slot);
    if (it == given.end()) {
      return absl::InvalidArgumentError(absl::StrCat("input ", port.slot.ToString(), " is missing"));
    }
    AQT_ASSIGN_OR_RETURN(Array row, RowInput(facts, port, it->second, length));
    state.inputs.push_back(std::move(row));
  }
  if (given.size() != facts.inputs.size()) {
    for (const auto& [slot, array] : given) {
      const bool known = std::any_of(facts.inputs.begin(), facts.inputs.end(),
                                     [&, &slot = slot](const RowPort& port) { return port.slot == slot; });
      if (known) continue;
      const auto name = [](std::string* out, const RowPort& port) { out->append(port.slot.ToString()); };
      return absl::InvalidArgumentError(absl::StrCat("the model has no input ", slot.ToString(), "; it has ",
                                                     absl::StrJoin(facts.inputs, ", ", name)));
    }
  }
  state.length = length.value_or(std::min<int64_t>(1, facts.max_length));  // no input depends on the length
  state.program_length = facts.ProgramLength(state.length);
  return absl::OkStatus();
}

void ReserveOutputs(const RowFacts& facts, State& state) {
  for (const RowPort& port : facts.outputs) {
    Shape shape;
    for (int64_t axis = 0; axis < port.shape.rank(); ++axis) {
      shape.push_back(axis == port.length_axis ? state.length : port.shape[axis]);
    }
    const Aval aval = {port.dtype, std::move(shape)};
    std::shared_ptr<void> memory = AllocateUninitialized(aval.num_bytes());
    state.output_memory.push_back(memory.get());
    state.outputs.emplace(port.slot, Array(aval, std::move(memory)));
  }
}

// ---- compiled programs

class Programs {
 public:
  Programs(std::shared_ptr<const RowModel> model, int64_t limit) : model_(std::move(model)), limit_(limit) {}

  // Compiles it if it is not kept. Other threads may compile others at the same time.
  absl::StatusOr<std::shared_ptr<const RowProgram>> Get(int64_t batch, int64_t length) {
    const std::shared_ptr<Entry> entry = Find(batch, length);
    const std::lock_guard<std::mutex> lock(entry->mutex);
    if (entry->program == nullptr) {
      AQT_ASSIGN_OR_RETURN(Executable executable, model_->Compile(batch, length));
      entry->program = std::make_shared<const RowProgram>(std::move(executable), model_->facts(), batch, length);
    }
    return entry->program;
  }

  int64_t size() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(entries_.size());
  }

 private:
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<const RowProgram> program;  // guarded by mutex
    int64_t last_use = 0;                       // guarded by Programs::mutex_
  };

  std::shared_ptr<Entry> Find(int64_t batch, int64_t length) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = entries_.find({length, batch});
    if (it != entries_.end()) {
      it->second->last_use = ++uses_;
      return it->second;
    }
    if (static_cast<int64_t>(entries_.size()) >= limit_) {
      entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
        return a.second->last_use < b.second->last_use;
      }));
    }
    const auto entry = std::make_shared<Entry>();
    entry->last_use = ++uses_;
    return entries_[{length, batch}] = entry;
  }

  const std::shared_ptr<const RowModel> model_;
  const int64_t limit_;
  mutable std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<Entry>> entries_;  // by length, batch; guarded by mutex_
  int64_t uses_ = 0;                                                       // guarded by mutex_
};

// ---- the queue, and the threads' part of it

// Rows of one program, taken from the queue.
struct Batch {
  std::vector<StatePtr> rows, expired;
  int64_t size = 0;  // of the program
};

class Core {
 public:
  Core(std::shared_ptr<const RowModel> model, const EngineOptions& options)
      : model_(std::move(model)), options_(options), programs_(model_, options.max_programs) {
    stats_.queue_limit = options.queue_limit;
    const int64_t largest = facts().batches.empty() ? options.max_batch : facts().batches.back();
    stats_.batches.assign(largest + 1, 0);
    stats_.batch_sums.assign(largest + 1, 0);
  }

  const RowFacts& facts() const { return model_->facts(); }
  const RowModel& model() const { return *model_; }
  Programs& programs() { return programs_; }

  // Puts the request into the queue, or answers it. With `wait`, waits for room.
  void Submit(const StatePtr& state, bool wait);
  // Answers a request that cannot enter the queue.
  void Refuse(State& state, const absl::Status& status);
  bool Cancel(State& state);
  // Answers it with DeadlineExceeded if it is waiting.
  void Expire(State& state);
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
  using Queue = std::list<StatePtr>;

  absl::Status Enter(const StatePtr& state, bool wait, std::vector<StatePtr>& expired);
  // The caller holds mutex_.
  void Remove(State& state);
  void RemoveExpired(Queue& queue, absl::Time now, std::vector<StatePtr>& expired);
  void RemoveAllExpired(std::vector<StatePtr>& expired);
  bool Take(Batch& batch);
  int64_t MostRows(int64_t length) const;
  void Compute(Batch& batch, BatchRunner& runner, std::vector<RowMemory>& memory);
  absl::Status RunRows(const Batch& batch, BatchRunner& runner, std::vector<RowMemory>& memory);

  const std::shared_ptr<const RowModel> model_;
  const EngineOptions options_;
  Programs programs_;

  mutable std::mutex mutex_;
  std::condition_variable work_, room_;
  // Guarded by mutex_.
  std::map<int64_t, Queue> queues_;  // by program length; not empty
  int64_t next_number_ = 0;
  int idle_ = 0;
  bool stopping_ = false;
  EngineStats stats_;
};

absl::Status Late(const State& state) {
  return absl::DeadlineExceededError(absl::StrCat("the deadline of the request, ", absl::FormatTime(state.deadline),
                                                  ", passed before it was started"));
}

void AnswerLate(const std::vector<StatePtr>& expired) {
  for (const StatePtr& state : expired) Finish(*state, Late(*state));
}

void Core::Remove(State& state) {
  const auto queue = queues_.find(state.program_length);
  queue->second.erase(state.place);
  if (queue->second.empty()) queues_.erase(queue);
  --stats_.waiting;
  room_.notify_all();
}

void Core::RemoveExpired(Queue& queue, absl::Time now, std::vector<StatePtr>& expired) {
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

void Core::RemoveAllExpired(std::vector<StatePtr>& expired) {
  const absl::Time now = absl::Now();
  for (auto it = queues_.begin(); it != queues_.end();) {
    RemoveExpired(it->second, now, expired);
    it = it->second.empty() ? queues_.erase(it) : std::next(it);
  }
}

absl::Status Core::Enter(const StatePtr& state, bool wait, std::vector<StatePtr>& expired) {
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

void Core::Submit(const StatePtr& state, bool wait) {
  std::vector<StatePtr> expired;
  const absl::Status status = Enter(state, wait, expired);
  AnswerLate(expired);
  if (!status.ok()) Finish(*state, status);
}

void Core::Refuse(State& state, const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state.phase = Phase::kDone;
    ++stats_.refused;
  }
  Finish(state, status);
}

bool Core::Cancel(State& state) {
  StatePtr own;  // the queue may hold the last reference
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

void Core::Expire(State& state) {
  StatePtr own;
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

void Core::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
  work_.notify_all();
  room_.notify_all();
}

int64_t Core::MostRows(int64_t length) const {
  if (!facts().joins) return 1;
  if (!facts().batches.empty()) return facts().batches.back();
  return std::clamp<int64_t>(options_.max_batch_positions / std::max<int64_t>(length, 1), 1, options_.max_batch);
}

std::vector<int64_t> Core::BatchesOf(int64_t length) const {
  if (!facts().batches.empty()) return facts().batches;
  std::vector<int64_t> batches;
  for (int64_t batch = 1; batch <= MostRows(length); batch *= 2) batches.push_back(batch);
  return batches;
}

// Rows of the length that waits longest: as many as one of the batches has, but not more than a fair share if other
// threads are idle.
bool Core::Take(Batch& batch) {
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

absl::Status Core::RunRows(const Batch& batch, BatchRunner& runner, std::vector<RowMemory>& memory) {
  try {
    AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const RowProgram> program,
                         programs_.Get(batch.size, batch.rows[0]->program_length));
    memory.clear();
    for (const StatePtr& row : batch.rows) memory.push_back({row->inputs, row->output_memory, row->length});
    return runner.Run(*program, memory);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory for ", batch.rows.size(), " rows of length ",
                                                     batch.rows[0]->program_length,
                                                     "; use fewer threads, smaller "
                                                     "batches or shorter rows"));
  }
}

void Core::Compute(Batch& batch, BatchRunner& runner, std::vector<RowMemory>& memory) {
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
    for (const StatePtr& row : batch.rows) {
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
  for (const StatePtr& row : batch.rows) Finish(*row, status.ok() ? Answer(std::move(row->outputs)) : Answer(status));
}

void Core::Work() {
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

EngineStats Core::stats() const {
  EngineStats stats;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stats = stats_;
  }
  stats.programs = programs_.size();
  stats.weight_bytes = model_->weight_bytes();
  return stats;
}

absl::Status CheckOptions(const EngineOptions& options) {
  const auto check = [](absl::string_view name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", expected ", low, " to ", high));
  };
  AQT_RETURN_IF_ERROR(check("threads", options.threads, 0, 4096));
  AQT_RETURN_IF_ERROR(check("threads_per_batch", options.threads_per_batch, 1, 4096));
  AQT_RETURN_IF_ERROR(check("queue_limit", options.queue_limit, 1, int64_t{1} << 30));
  AQT_RETURN_IF_ERROR(check("max_batch", options.max_batch, 1, int64_t{1} << 16));
  AQT_RETURN_IF_ERROR(check("max_batch_positions", options.max_batch_positions, 1, int64_t{1} << 30));
  return check("max_programs", options.max_programs, 1, int64_t{1} << 20);
}

}  // namespace

// ---- tickets

Answer Ticket::Wait() const {
  if (state_->deadline != absl::InfiniteFuture() && !state_->answered.WaitUntil(state_->deadline)) {
    state_->core->Expire(*state_);
  }
  state_->answered.WaitUntil(absl::InfiniteFuture());
  return state_->answer;
}

bool Ticket::WaitUntil(absl::Time time) const {
  if (state_->deadline < time && !state_->answered.WaitUntil(state_->deadline)) {
    state_->core->Expire(*state_);
  }
  return state_->answered.WaitUntil(time);
}

bool Ticket::Cancel() const { return state_->core->Cancel(*state_); }

// ---- the engine

struct Engine::Impl {
  std::shared_ptr<Core> core;
  std::mutex join_mutex;
  std::vector<std::thread> threads;  // guarded by join_mutex

  Ticket Submit(Request request, Callback done, bool wait) {
    const auto state = std::make_shared<State>();
    state->core = core;
    state->deadline = request.deadline;
    state->done = std::move(done);
    absl::Status status = ReadInputs(core->facts(), request.inputs, *state);
    if (status.ok()) {
      try {
        ReserveOutputs(core->facts(), *state);
      } catch (const std::bad_alloc&) {
        status = absl::ResourceExhaustedError("out of memory for the outputs of the request");
      }
    }
    if (status.ok()) {
      core->Submit(state, wait);
    } else {
      core->Refuse(*state, status);
    }
    return Ticket(state);
  }
};

int NumCpus() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

absl::StatusOr<std::unique_ptr<Engine>> Engine::Make(std::shared_ptr<const RowModel> model,
                                                     const EngineOptions& options) {
  AQT_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>();
  impl->core = std::make_shared<Core>(std::move(model), options);
  const int all = options.threads > 0 ? options.threads : NumCpus();
  const int workers = std::max(1, all / options.threads_per_batch);
  {
    const std::lock_guard<std::mutex> lock(impl->join_mutex);
    try {
      for (int i = 0; i < workers; ++i) {
        impl->threads.emplace_back([core = impl->core] { core->Work(); });
      }
    } catch (const std::system_error&) {
      if (impl->threads.empty()) {
        return absl::ResourceExhaustedError("the system starts no thread for the engine; raise its limit (ulimit -u)");
      }
    }
    impl->core->set_threads(static_cast<int>(impl->threads.size()) * options.threads_per_batch);
  }
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() { Shutdown(); }

Ticket Engine::Submit(Request request, Callback done) {
  return impl_->Submit(std::move(request), std::move(done), /*wait=*/false);
}

Ticket Engine::SubmitWhenRoom(Request request, Callback done) {
  return impl_->Submit(std::move(request), std::move(done), /*wait=*/true);
}

std::vector<Answer> Engine::RunAll(std::vector<Request> requests) {
  std::vector<Ticket> tickets;
  tickets.reserve(requests.size());
  for (Request& request : requests) tickets.push_back(SubmitWhenRoom(std::move(request)));
  std::vector<Answer> answers;
  answers.reserve(tickets.size());
  for (const Ticket& ticket : tickets) answers.push_back(ticket.Wait());
  return answers;
}

absl::Status Engine::Warm(absl::Span<const int64_t> lengths, int64_t most_rows) {
  for (const int64_t length : lengths) {
    const int64_t program_length = impl_->core->facts().ProgramLength(length);
    for (const int64_t batch : impl_->core->BatchesOf(program_length)) {
      if (batch > most_rows) break;
      AQT_RETURN_IF_ERROR(impl_->core->programs().Get(batch, program_length).status());
    }
  }
  return absl::OkStatus();
}

void Engine::Shutdown() {
  impl_->core->Stop();
  const std::lock_guard<std::mutex> lock(impl_->join_mutex);
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

EngineStats Engine::stats() const { return impl_->core->stats(); }
const RowModel& Engine::model() const { return impl_->core->model(); }

}  // namespace aqt::serving
