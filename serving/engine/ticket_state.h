#ifndef AQT_SERVING_ENGINE_TICKET_STATE_H_
#define AQT_SERVING_ENGINE_TICKET_STATE_H_

// A request on its way through the engine.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"
#include "serving/engine/engine.h"
#include "serving/engine/row_model.h"

namespace aqt::serving {

class EngineCore;

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

struct Ticket::State {
  // Written by Submit.
  std::shared_ptr<EngineCore> core;
  std::vector<Array> inputs;                    // by RowFacts::inputs
  SlotValues outputs;                           // over the memory that is written when the row is computed
  absl::InlinedVector<void*, 4> output_memory;  // by RowFacts::outputs
  int64_t length = 0, program_length = 0;
  absl::Time deadline = absl::InfiniteFuture();
  Engine::Callback done;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  // Guarded by the mutex of `core`.
  enum class Phase : uint8_t { kNew, kWaiting, kRunning, kDone } phase = Phase::kNew;
  int64_t number = 0;                                 // in the order of Submit
  std::list<std::shared_ptr<State>>::iterator place;  // in the queue, while waiting

  // Written once, by the thread that sets kDone, before `answered`.
  Answer answer = absl::InternalError("no answer yet");
  Event answered;
};

using TicketStatePtr = std::shared_ptr<Ticket::State>;

// Gives the answer to whoever waits for it. Called once, without the mutex of the core.
void Finish(Ticket::State& state, Answer answer);

// Sets the inputs and lengths of `state`. InvalidArgument, naming the input, if one is missing, unknown, or has another
// dtype or shape.
absl::Status ReadInputs(const RowFacts& facts, const SlotValues& given, Ticket::State& state);
// Allocates the outputs. std::bad_alloc if there is no memory.
void ReserveOutputs(const RowFacts& facts, Ticket::State& state);

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_TICKET_STATE_H_
