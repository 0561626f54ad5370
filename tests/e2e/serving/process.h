#ifndef TESTS_E2E_SERVING_PROCESS_H_
#define TESTS_E2E_SERVING_PROCESS_H_

// The `aqt` program as a separate process.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace aqt::serving {

// Starts it with these arguments. `in_child` is called in the new process before the program, to set limits,
// descriptors or signals.
pid_t Start(std::vector<std::string> args, const std::function<void()>& in_child = nullptr);

struct Outcome {
  int code = -1;     // exit code; -1 if a signal ended it
  int signal = 0;    // signal that ended it
  int64_t peak = 0;  // of RssAnon + RssShmem, sampled every millisecond
  std::string err;   // standard error, filled by RunAqt
};
// Waits until it ends.
Outcome Watch(pid_t pid);

Outcome RunAqt(std::vector<std::string> args, const std::function<void()>& in_child = nullptr);

}  // namespace aqt::serving

#endif  // TESTS_E2E_SERVING_PROCESS_H_
