#ifndef AQT_SERVING_C_ARRAY_H_
#define AQT_SERVING_C_ARRAY_H_

// Arrays and options of the C interface as those of the library. Internal.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/c_api.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/aval.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "serving/c/call.h"

struct aqt_executor {
  static constexpr aqt::capi::Tag kTag = aqt::capi::Tag::kExecutor;
  static constexpr char kName[] = "aqt_executor";
  explicit aqt_executor(int threads) : pool(threads) {}

  aqt::capi::Tag tag = kTag;
  aqt::kernels::ThreadPool pool;
};

namespace aqt::capi {

aqt_dtype FromDType(DType dtype);
// InvalidArgument, naming `name`, for a number that is no dtype.
absl::StatusOr<DType> ToDType(aqt_dtype dtype, absl::string_view name);

// All errors below are InvalidArgument and name `name`.

absl::StatusOr<Aval> ToAval(const aqt_aval* aval, absl::string_view name);
// `dims` of the result are those of `aval`, which outlives it.
aqt_aval FromAval(const Aval& aval);

// The array in the caller's memory.
absl::StatusOr<ArrayRef> ToArrayRef(const aqt_array* array, absl::string_view name);
// The same for an output: an error if two elements may share memory.
absl::StatusOr<MutableArrayRef> ToMutableArrayRef(const aqt_array* array, absl::string_view name);
// `dims` of the result are those of `array`, which outlives it.
aqt_array FromArray(const Array& array);

// InvalidArgument, naming both, if the bytes between the first and the last element of two arrays overlap.
absl::Status CheckApart(const ArrayRef& a, absl::string_view a_name, const ArrayRef& b, absl::string_view b_name);

// InvalidArgument, with both, unless the dtypes and shapes are equal.
absl::Status CheckAval(const Aval& got, const Aval& want, absl::string_view name);

// `count` axes. InvalidArgument if there are more than AQT_MAX_RANK, or none where `axes` is NULL.
absl::StatusOr<Axes> ToAxes(const int64_t* axes, size_t count, absl::string_view name);

// "" for NULL.
inline absl::string_view TextOf(const char* text) { return text == nullptr ? absl::string_view() : text; }

absl::StatusOr<PlanOptions> ToPlanOptions(const aqt_plan_options* options);

// The options of one call.
struct CallOptions {
  Executor* executor = nullptr;
  Context context;
  std::vector<ArrayRef> old_state;
  std::vector<MutableArrayRef> new_state;
};
absl::StatusOr<CallOptions> ToCallOptions(const aqt_call_options* options);

}  // namespace aqt::capi

#endif  // AQT_SERVING_C_ARRAY_H_
