#ifndef AQT_JAX_FAKE_XLA_H_
#define AQT_JAX_FAKE_XLA_H_

// XLA's side of a call, for tests: a call frame made by hand, and a pool of threads.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/jax/ffi_abi.h"

namespace aqt::jax {

// What a fake pool does with a task.
enum class Pool {
  kNone,      // there is no pool: scheduling fails
  kInCaller,  // it runs at once, on the thread that schedules it
  kNever,     // it waits in the queue, until the destructor runs it
  kThreads,   // it runs on a thread of its own
};

// One call. Arguments and results are arrays; the memory of results belongs to this object.
class FakeXla {
 public:
  explicit FakeXla(Pool pool = Pool::kNone, int64_t num_threads = 1);
  ~FakeXla();
  FakeXla(const FakeXla&) = delete;
  FakeXla& operator=(const FakeXla&) = delete;

  void AddArgument(const Array& array);
  // The index of the result.
  size_t AddResult(const Aval& aval);
  void SetText(std::string name, std::string value);
  // Calls the handler. The message of its error, or "".
  std::string Run(abi::Error* (*handler)(abi::CallFrame*));
  Array Result(size_t index) const { return results_[index]; }
  // The frame of the call, as a handler gets it.
  abi::CallFrame& Frame();

  // For the functions of the fake XLA.
  struct State;

 private:
  void Append(const Aval& aval, void* data, std::vector<abi::Buffer>& buffers, std::deque<std::vector<int64_t>>& dims);

  State* const state_;
  std::vector<Array> arguments_, results_;
  std::vector<abi::Buffer> argument_buffers_, result_buffers_;
  std::deque<std::vector<int64_t>> dims_;
  std::vector<std::pair<std::string, std::string>> texts_;
  std::vector<int32_t> argument_types_, result_types_, text_types_;
  std::vector<void*> argument_pointers_, result_pointers_, text_pointers_;
  std::deque<abi::Bytes> bytes_;
  std::vector<abi::Bytes*> names_;
  abi::CallFrame frame_ = {};
};

}  // namespace aqt::jax

#endif  // AQT_JAX_FAKE_XLA_H_
