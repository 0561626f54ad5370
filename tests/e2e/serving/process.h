#ifndef TESTS_E2E_SERVING_PROCESS_H_
#define TESTS_E2E_SERVING_PROCESS_H_

// The `aqt` program as a process of its own.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace aqt::serving {

// Starts it with these arguments. `in_child` is called in the new process ahead of the program: for limits,
// descriptors, signals.
pid_t Start(std::vector<std::string> args, const std::function<void()>& in_child = nullptr);

struct Outcome {
  int code = -1;     // of exit; -1 when a signal ended it
  int signal = 0;    // that ended it
  int64_t peak = 0;  // of RssAnon + RssShmem, sampled every millisecond
  std::string err;   // what RunAqt saw on standard error
};
// Waits for its end.
Outcome Watch(pid_t pid);

Outcome RunAqt(std::vector<std::string> args, const std::function<void()>& in_child = nullptr);

}  // namespace aqt::serving

#endif  // TESTS_E2E_SERVING_PROCESS_H_
