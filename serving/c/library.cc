// The library itself: versions, targets, names, threads.

#include <string>

#include "absl/strings/str_join.h"
#include "aqt/c_api.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/target_name.h"
#include "aqt/core/machine/verbose.h"
#include "serving/c/array.h"
#include "serving/c/call.h"
#include "serving/tools/version.h"

using aqt::capi::Call;
using aqt::capi::Make;

uint32_t aqt_api_version(void) { return AQT_C_API_VERSION; }

const char* aqt_version(void) { return aqt::serving::kVersion; }

const char* aqt_simd_target(void) {
  static const std::string* const name = new std::string(aqt::kernels::ToString(aqt::kernels::BestTarget()));
  return name->c_str();
}

const char* aqt_supported_targets(void) {
  static const std::string* const names = new std::string(absl::StrJoin(
      aqt::kernels::SupportedTargets(), ",",
      [](std::string* out, aqt::kernels::Target target) { absl::StrAppend(out, aqt::kernels::ToString(target)); }));
  return names->c_str();
}

const char* aqt_code_name(aqt_code code) {
  constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS"};
  return code >= AQT_OK && code <= AQT_DATA_LOSS ? kNames[code] : "UNKNOWN";
}

aqt_code aqt_check_environment(aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(aqt::kernels::MaxTargetFromEnvironment().status());
    return aqt::kernels::VerbosityFromEnvironment().status();
  });
}

const char* aqt_dtype_name(aqt_dtype dtype) {
  const absl::StatusOr<aqt::DType> known = aqt::capi::ToDType(dtype, "");
  return known.ok() ? aqt::ToString(*known).data() : nullptr;  // a literal
}

size_t aqt_dtype_size(aqt_dtype dtype) {
  const absl::StatusOr<aqt::DType> known = aqt::capi::ToDType(dtype, "");
  return known.ok() ? static_cast<size_t>(aqt::SizeOf(*known)) : 0;
}

aqt_code aqt_executor_make(int32_t threads, aqt_executor** executor, aqt_error** error) {
  return Make(executor, error, [&]() -> absl::StatusOr<int> {
    constexpr int kMost = 4096;
    if (threads >= 1 && threads <= kMost) return threads;
    return absl::InvalidArgumentError(absl::StrCat("threads is ", threads, ", expected 1 .. ", kMost));
  });
}

int32_t aqt_executor_threads(const aqt_executor* executor) {
  return aqt::capi::Check(executor, "executor").ok() ? executor->pool.NumThreads() : 0;
}

void aqt_executor_free(aqt_executor* executor) { aqt::capi::Free(executor); }
