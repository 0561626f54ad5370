#ifndef AQT_GRAPH_CONTEXT_H_
#define AQT_GRAPH_CONTEXT_H_

// What surrounds an operation when it is called: the trace that records it (if any), the named scopes, and the threads
// that it may use. One context per thread; the classes here change it for the lifetime of an object.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/core/executor.h"
#include "aqt/graph/source_line.h"

namespace aqt {

// Operations inside are named `.../name`: NamedScope a("mlp"); NamedScope b("fc1"); gives "mlp/fc1".
class NamedScope {
 public:
  explicit NamedScope(absl::string_view name);
  ~NamedScope();
  NamedScope(const NamedScope&) = delete;
  NamedScope& operator=(const NamedScope&) = delete;

 private:
  std::string saved_;
};

// The current scope, "" outside all.
const std::string& CurrentScope();

namespace internal {

class Recorder;

struct TraceContext {
  Recorder* recorder = nullptr;   // records operations; null: they run at once
  absl::Status* error = nullptr;  // the first error of the trace
  std::string scope;
  std::optional<SourceLine> where;  // overrides the callers' lines: set while equations are recorded again
  Executor* executor = nullptr;     // null: the calling thread alone
};

TraceContext& CurrentContext();

// Keeps `status` as the trace's error if a trace is active and has none yet.
void ReportError(const absl::Status& status);

// Restores the whole context at the end of its life.
class SaveContext {
 public:
  SaveContext() : saved_(CurrentContext()) {}
  ~SaveContext() { CurrentContext() = saved_; }
  SaveContext(const SaveContext&) = delete;
  SaveContext& operator=(const SaveContext&) = delete;

 private:
  TraceContext saved_;
};

}  // namespace internal

// Contractions that run inside, eagerly or in Eval, use the threads of `executor`, which must outlive this; null: the
// calling thread alone, as without any. Their bits do not depend on it.
class UseExecutor {
 public:
  explicit UseExecutor(Executor* executor);

 private:
  internal::SaveContext saved_;
};

// The executor of the innermost UseExecutor, null without one.
Executor* CurrentExecutor();

// Operations inside run at once even while a trace is active (evaluation needs this, or it would be recorded).
class SuspendTrace {
 public:
  SuspendTrace();

 private:
  internal::SaveContext saved_;
};

// Operations inside are located at `where`, unless an enclosing object says so already: for functions that are made of
// operations.
class CallSite {
 public:
  explicit CallSite(SourceLine where);

 private:
  internal::SaveContext saved_;
};

// Operations inside are named and located as the equation that they replace: scope relative to the current one.
class Provenance {
 public:
  Provenance(absl::string_view scope, SourceLine where);

 private:
  internal::SaveContext saved_;
};

}  // namespace aqt

#endif  // AQT_GRAPH_CONTEXT_H_
