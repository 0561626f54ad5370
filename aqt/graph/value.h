#ifndef AQT_GRAPH_VALUE_H_
#define AQT_GRAPH_VALUE_H_

// The values that model functions compute with: arrays, or variables of the program that is being traced. The same
// function runs at once on arrays and is recorded while a trace is active.
//
// An operation that fails gives a poisoned Value, and so does every operation on one. Trace() returns the error; if no
// trace is active, ToArray() does.

#include <cstdint>
#include <source_location>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/source_line.h"

namespace aqt {

// The index of a variable in its program.
using VarId = int32_t;

// An array, a traced variable or an error.
class Value {
 public:
  Value();  // poisoned: "a Value without content was used"
  explicit Value(Array array);

  const Aval& aval() const { return aval_; }
  DType dtype() const { return aval_.dtype; }
  // A guess if the value is poisoned: read extents through dim(), which is safe for any value.
  const Shape& shape() const { return aval_.shape; }
  int64_t rank() const { return aval_.shape.rank(); }
  // Extent of an axis in -rank .. rank-1. For any other axis 1, and an active trace fails with InvalidArgument.
  int64_t dim(int64_t axis, const std::source_location& where = std::source_location::current()) const;

  bool is_array() const { return std::holds_alternative<Array>(content_); }
  bool is_traced() const { return std::holds_alternative<TracedVar>(content_); }
  // The error of a poisoned value, otherwise OK.
  absl::Status status() const;

  // The data. A poisoned value returns its error. A traced value has no data yet: FailedPrecondition, and the trace
  // fails.
  absl::StatusOr<Array> ToArray(const std::source_location& where = std::source_location::current()) const;

  // The only element of an array of T. T{} if there is no such element (traced, poisoned, another dtype or shape). An
  // active trace then fails, so that a branch on the result is an error and is not silently taken.
  template <class T>
  T Item(const std::source_location& where = std::source_location::current()) const;

  // For recorders and evaluators.
  struct TracedVar {
    uint64_t trace;  // id of the trace
    VarId var;
  };
  static Value Traced(Aval aval, TracedVar var) { return Value(std::move(aval), var); }
  static Value Poisoned(Aval guess, absl::Status status) { return Value(std::move(guess), std::move(status)); }
  // Null if the value is of the other kind.
  const Array* array() const { return std::get_if<Array>(&content_); }
  const TracedVar* traced() const { return std::get_if<TracedVar>(&content_); }

 private:
  using Content = std::variant<Array, TracedVar, absl::Status>;
  Value(Aval aval, Content content) : aval_(std::move(aval)), content_(std::move(content)) {}
  absl::StatusOr<Array> Data(const SourceLine& where) const;
  absl::StatusOr<Array> ItemData(DType dtype, const SourceLine& where) const;

  Aval aval_;
  Content content_;
};

template <class T>
T Value::Item(const std::source_location& where) const {
  absl::StatusOr<Array> item = ItemData(kDTypeOf<T>, where);
  return item.ok() ? item->View<T>()[0] : T{};
}

}  // namespace aqt

#endif  // AQT_GRAPH_VALUE_H_
