#include "serving/engine/engine.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "serving/engine/engine_core.h"
#include "serving/engine/ticket_state.h"

namespace aqt::serving {
namespace {

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
  std::shared_ptr<EngineCore> core;
  std::mutex join_mutex;
  std::vector<std::thread> threads;  // guarded by join_mutex

  Ticket Submit(Request request, Callback done, bool wait) {
    const auto state = std::make_shared<Ticket::State>();
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
  impl->core = std::make_shared<EngineCore>(std::move(model), options);
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
