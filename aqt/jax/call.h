#ifndef AQT_JAX_CALL_H_
#define AQT_JAX_CALL_H_

// One call of a handler by XLA: its arguments, results and attributes, with errors instead of undefined behaviour.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/rng.h"
#include "aqt/jax/ffi_abi.h"

namespace aqt::jax {

class Call {
 public:
  explicit Call(const abi::CallFrame& frame) : frame_(frame) {}

  const abi::CallFrame& frame() const { return frame_; }
  int64_t num_arguments() const { return frame_.arguments.size; }
  int64_t num_results() const { return frame_.results.size; }

  // InvalidArgument if there is no such argument or result, or if its dtype is not one of ours. XLA's arrays of s4 and
  // s2 are packed in some versions, so they are refused; ours pass as s8.
  absl::StatusOr<ArrayRef> Argument(int64_t index) const;
  absl::StatusOr<MutableArrayRef> Result(int64_t index) const;
  // An argument u32[2].
  absl::StatusOr<Key> KeyArgument(int64_t index) const;
  // InvalidArgument if there is no such attribute, or if it is not a string.
  absl::StatusOr<absl::string_view> Text(absl::string_view name) const;

  // InvalidArgument unless the call has this many arguments and results.
  absl::Status ExpectCounts(int64_t arguments, int64_t results) const;

 private:
  const abi::CallFrame& frame_;
};

// What every handler does: answers a question for metadata, or runs `body` and turns its error into XLA's. An exception
// for lack of memory becomes RESOURCE_EXHAUSTED.
abi::Error* Handle(abi::CallFrame* frame, absl::FunctionRef<absl::Status(const Call&)> body);

}  // namespace aqt::jax

#endif  // AQT_JAX_CALL_H_
