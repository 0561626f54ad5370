#ifndef AQT_CORE_STATUS_MACROS_H_
#define AQT_CORE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// Evaluates `expression`, an absl::Status, and returns it from the enclosing function if it is an error.
#define AQT_RETURN_IF_ERROR(expression)                                                 \
  do {                                                                                  \
    if (absl::Status aqt_status_ = (expression); !aqt_status_.ok()) return aqt_status_; \
  } while (false)

// `AQT_ASSIGN_OR_RETURN(auto x, MakeX());` assigns the value, or returns the error from the enclosing function.
#define AQT_ASSIGN_OR_RETURN(declaration, expression) \
  AQT_ASSIGN_OR_RETURN_IMPL_(AQT_STATUS_CONCAT_(aqt_statusor_, __COUNTER__), declaration, expression)

#define AQT_STATUS_CONCAT_(a, b) AQT_STATUS_CONCAT_IMPL_(a, b)
#define AQT_STATUS_CONCAT_IMPL_(a, b) a##b
#define AQT_ASSIGN_OR_RETURN_IMPL_(statusor, declaration, expression) \
  auto statusor = (expression);                                       \
  if (!statusor.ok()) return statusor.status();                       \
  declaration = *std::move(statusor)

namespace aqt {

// Prepends `context` and ": " to the message of an error; OK stays OK.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

}  // namespace aqt

#endif  // AQT_CORE_STATUS_MACROS_H_
