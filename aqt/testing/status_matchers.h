#ifndef AQT_TESTING_STATUS_MATCHERS_H_
#define AQT_TESTING_STATUS_MATCHERS_H_

// For tests: EXPECT_THAT(status_or_statusor, IsOk()), IsOkAndHolds(value matcher), StatusIs(code[, message matcher]).

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

namespace aqt::testing {
namespace internal {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <class T>
const absl::Status& StatusOf(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

}  // namespace internal

MATCHER(IsOk, negation ? "is an error" : "is OK") {
  const absl::Status& status = internal::StatusOf(arg);
  *result_listener << status.ToString();
  return status.ok();
}

// `message` is a matcher for the complete message, e.g. HasSubstr("...").
MATCHER_P2(StatusIs, code, message, "is a status of the expected code and message") {
  const absl::Status& status = internal::StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code && ::testing::Matches(message)(std::string(status.message()));
}

inline auto StatusIs(absl::StatusCode code) { return StatusIs(code, ::testing::_); }

MATCHER_P(IsOkAndHolds, matcher, "is OK and holds the expected value") {
  if (!arg.ok()) {
    *result_listener << arg.status().ToString();
    return false;
  }
  return ::testing::ExplainMatchResult(matcher, *arg, result_listener);
}

// An error with this code whose message contains all these parts:
// EXPECT_THAT(s, FailsWith(kInvalidArgument, {"dot", "[8,64]"})).
inline auto FailsWith(absl::StatusCode code, std::vector<std::string> parts) {
  std::vector<::testing::Matcher<std::string>> has;
  for (std::string& part : parts) has.push_back(::testing::HasSubstr(std::move(part)));
  return StatusIs(code, ::testing::AllOfArray(has));
}

}  // namespace aqt::testing

#endif  // AQT_TESTING_STATUS_MATCHERS_H_
