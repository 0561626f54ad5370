#ifndef AQT_CORE_CHECK_H_
#define AQT_CORE_CHECK_H_

// Checks of internal invariants. A user's mistake returns an absl::Status and never fails a check.

#if __cplusplus < 202002L
#error "aqt needs C++20: add  build --cxxopt=-std=c++20  to your .bazelrc"
#endif

namespace aqt::internal {
// Prints `file:line: check failed: condition` to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace aqt::internal

#define AQT_CHECK(condition) ((condition) ? (void)0 : ::aqt::internal::CheckFailed(__FILE__, __LINE__, #condition))

// Like AQT_CHECK, but compiled out with NDEBUG: the condition is then not evaluated.
#ifdef NDEBUG
#define AQT_DCHECK(condition) ((void)sizeof(!(condition)))
#else
#define AQT_DCHECK(condition) AQT_CHECK(condition)
#endif

#endif  // AQT_CORE_CHECK_H_
