#ifndef AQT_RUNTIME_PROFILE_H_
#define AQT_RUNTIME_PROFILE_H_

// The time that Executables spend, by operation, scope and step.
//
//   Profile profile;
//   AQT_ASSIGN_OR_RETURN(outputs, step.Run(args, &profile));  // as often as you like
//   std::cerr << profile.Table();
//
// With AQT_VERBOSE=profile all calls of a process are counted. When it ends, the table goes to standard error, and the
// trace to the file named by AQT_PROFILE_TRACE, if set.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"

namespace aqt {

// The times of an Executable's calls. Thread-safe.
class Profile {
 public:
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Times of all calls and bytes of one call (operands and results, each read or written once): by kind of operation,
  // by scope, and by step, the slowest first. Steps of several equations have the kind "fused".
  std::string Table() const;
  // The steps of the first calls, up to 100,000, as JSON that chrome://tracing and Perfetto open.
  std::string Trace() const;

  // The profile of the process; null unless AQT_VERBOSE=profile.
  static Profile* OfProcess();

  // For Executable:
  struct Step {
    std::string name, kind, scope;
    int64_t bytes;
  };
  using Clock = std::chrono::steady_clock;
  // The index of the first of these steps. An `owner` always passes the same steps.
  int Register(int64_t owner, absl::Span<const Step> steps);
  static int64_t NewOwner();
  void Add(int step, Clock::time_point start, Clock::time_point end);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace aqt

#endif  // AQT_RUNTIME_PROFILE_H_
