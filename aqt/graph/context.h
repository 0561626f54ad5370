#ifndef AQT_GRAPH_CONTEXT_H_
#define AQT_GRAPH_CONTEXT_H_

// The context of an operation's call: the trace that records it (if any), the named scopes and the threads that it may
// use. Each thread has one context; the classes here change it for the lifetime of an object.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/core/executor.h"
#include "aqt/graph/source_line.h"

namespace aqt {

// Puts operations inside the scope `.../name`: NamedScope a("mlp"); NamedScope b("fc1"); gives "mlp/fc1".
class NamedScope {
 public:
  explicit NamedScope(absl::string_view name);
  ~NamedScope();
  NamedScope(const NamedScope&) = delete;
  NamedScope& operator=(const NamedScope&) = delete;

 private:
  std::string saved_;
};

// The current scope; "" outside all scopes.
const std::string& CurrentScope();

namespace internal {

class Recorder;

struct TraceContext {
  Recorder* recorder = nullptr;   // records operations; if null, they run at once
  absl::Status* error = nullptr;  // the first error of the trace
  std::string scope;
  std::optional<SourceLine> where;  // overrides the callers' lines; set while equations are recorded again
  Executor* executor = nullptr;     // if null, only the calling thread
};

TraceContext& CurrentContext();

// Keeps `status` as the trace's error if a trace is active and has none yet.
void ReportError(const absl::Status& status);

// Restores the context when it is destroyed.
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

// Contractions inside, eager or in Eval, use the threads of `executor`, which must outlive this object. Null means only
// the calling thread, as without a UseExecutor. Their bits do not depend on it.
class UseExecutor {
 public:
  explicit UseExecutor(Executor* executor);

 private:
  internal::SaveContext saved_;
};

// The executor of the innermost UseExecutor; null if there is none.
Executor* CurrentExecutor();

// Operations inside run at once even while a trace is active; otherwise an evaluation would be recorded.
class SuspendTrace {
 public:
  SuspendTrace();

 private:
  internal::SaveContext saved_;
};

// Operations inside get the line `where`, unless an enclosing object has set one. For functions composed of operations.
class CallSite {
 public:
  explicit CallSite(SourceLine where);

 private:
  internal::SaveContext saved_;
};

// Operations inside get the scope (relative to the current one) and the line of the equation they replace.
class Provenance {
 public:
  Provenance(absl::string_view scope, SourceLine where);

 private:
  internal::SaveContext saved_;
};

}  // namespace aqt

#endif  // AQT_GRAPH_CONTEXT_H_
