#ifndef AQT_GRAPH_BIND_ONE_H_
#define AQT_GRAPH_BIND_ONE_H_

// Bind for an operation with one output.

#include <source_location>

#include "absl/types/span.h"
#include "aqt/graph/op.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"

namespace aqt {

// Bind(op, operands, where)[0]. `where` defaults to the caller's line; in a rule it is the line of the rule's equation.
inline Value BindOne(const Op& op, absl::Span<const Value> operands,
                     const SourceLine& where = std::source_location::current()) {
  return Bind(op, operands, where)[0];
}

}  // namespace aqt

#endif  // AQT_GRAPH_BIND_ONE_H_
