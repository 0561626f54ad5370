#include "aqt/graph/value.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/graph/context.h"

namespace aqt {
namespace {

// Reports to the trace, if any, and returns the error.
absl::Status Fail(absl::StatusCode code, absl::string_view message, const SourceLine& where) {
  const std::string& scope = CurrentScope();
  absl::Status status(code, absl::StrCat("value", scope.empty() ? "" : absl::StrCat(" [", scope, "]"), ": ", message,
                                         "; at ", where.ToString()));
  internal::ReportError(status);
  return status;
}

}  // namespace

Value::Value()
    : content_(
          absl::FailedPreconditionError("a Value without content was used: assign it the result of an operation")) {}

Value::Value(Array array) : aval_(array.aval()), content_(std::move(array)) {}

int64_t Value::dim(int64_t axis, const std::source_location& where) const {
  const int64_t normalized = axis < 0 ? axis + rank() : axis;
  if (normalized >= 0 && normalized < rank()) return shape()[normalized];
  Fail(absl::StatusCode::kInvalidArgument, absl::StrCat("no axis ", axis, " in ", aval_.ToString()), where)
      .IgnoreError();
  return 1;
}

absl::Status Value::status() const {
  const absl::Status* status = std::get_if<absl::Status>(&content_);
  return status == nullptr ? absl::OkStatus() : *status;
}

absl::StatusOr<Array> Value::ToArray(const std::source_location& where) const { return Data(where); }

absl::StatusOr<Array> Value::Data(const SourceLine& where) const {
  if (const Array* data = array()) return *data;
  if (!is_traced()) return status();
  return Fail(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("the data of a traced ", aval_.ToString(),
                   " was asked for: while tracing only its shape and dtype are known. A branch on data must be an "
                   "ops::Select inside the function, or be taken outside of it"),
      where);
}

absl::StatusOr<Array> Value::ItemData(DType dtype, const SourceLine& where) const {
  if (is_array() && (aval_.dtype != dtype || aval_.shape.num_elements() != 1)) {
    return Fail(absl::StatusCode::kInvalidArgument,
                absl::StrCat("one element of ", ToString(dtype), " was asked for, the value is ", aval_.ToString()),
                where);
  }
  return Data(where);
}

}  // namespace aqt
