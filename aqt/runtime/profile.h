#ifndef AQT_RUNTIME_PROFILE_H_
#define AQT_RUNTIME_PROFILE_H_

// Where the time of Executables goes.
//
//   Profile profile;
//   AQT_ASSIGN_OR_RETURN(outputs, step.Run(args, &profile));  // as often as you like
//   std::cerr << profile.Table();
//
// With AQT_VERBOSE=profile all calls of a process are counted; when it ends, the table goes to standard error, and the
// trace to the file that AQT_PROFILE_TRACE names, if it is set.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"

namespace aqt {

// Thread-safe.
class Profile {
 public:
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Times in all calls and bytes of one call (operands and results, each read or written once): by kind of operation,
  // by scope, and by step, the slowest first. Steps of several equations have the kind "fused".
  std::string Table() const;
  // The steps of the first calls, up to 100,000, as JSON that chrome://tracing and Perfetto open.
  std::string Trace() const;

  // What a process collects; null unless AQT_VERBOSE=profile.
  static Profile* OfProcess();

  // For Executable:
  struct Step {
    std::string name, kind, scope;
    int64_t bytes;
  };
  using Clock = std::chrono::steady_clock;
  // The number of the first of these steps, which always are those of `owner`.
  int Register(int64_t owner, absl::Span<const Step> steps);
  static int64_t NewOwner();
  void Add(int step, Clock::time_point start, Clock::time_point end);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace aqt

#endif  // AQT_RUNTIME_PROFILE_H_
