#include "aqt/graph/context.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace aqt {
namespace internal {

TraceContext& CurrentContext() {
  thread_local TraceContext context;
  return context;
}

void ReportError(const absl::Status& status) {
  absl::Status* error = CurrentContext().error;
  if (error != nullptr && error->ok()) *error = status;
}

}  // namespace internal

namespace {

std::string Join(absl::string_view outer, absl::string_view inner) {
  if (outer.empty()) return std::string(inner);
  if (inner.empty()) return std::string(outer);
  return absl::StrCat(outer, "/", inner);
}

}  // namespace

NamedScope::NamedScope(absl::string_view name) : saved_(internal::CurrentContext().scope) {
  internal::CurrentContext().scope = Join(saved_, name);
}

NamedScope::~NamedScope() { internal::CurrentContext().scope = std::move(saved_); }

const std::string& CurrentScope() { return internal::CurrentContext().scope; }

UseExecutor::UseExecutor(Executor* executor) { internal::CurrentContext().executor = executor; }

Executor* CurrentExecutor() { return internal::CurrentContext().executor; }

SuspendTrace::SuspendTrace() {
  internal::CurrentContext().recorder = nullptr;
  internal::CurrentContext().error = nullptr;
}

CallSite::CallSite(SourceLine where) {
  std::optional<SourceLine>& current = internal::CurrentContext().where;
  if (!current.has_value()) current = where;
}

Provenance::Provenance(absl::string_view scope, SourceLine where) {
  internal::TraceContext& context = internal::CurrentContext();
  context.scope = Join(context.scope, scope);
  context.where = where;
}

}  // namespace aqt
