#include "aqt/core/machine/verbose.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace aqt::kernels {
namespace {

absl::StatusOr<Verbosity> Read() {
  const char* variable = std::getenv("AQT_VERBOSE");
  const absl::string_view text = variable == nullptr ? "" : variable;
  if (text.empty()) return Verbosity::kOff;
  if (text == "dispatch") return Verbosity::kDispatch;
  if (text == "profile") return Verbosity::kProfile;
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable AQT_VERBOSE is \"", text, "\"; expected dispatch or profile"));
}

}  // namespace

absl::StatusOr<Verbosity> VerbosityFromEnvironment() {
  static const auto* const verbosity = new absl::StatusOr<Verbosity>(Read());
  return *verbosity;
}

}  // namespace aqt::kernels
