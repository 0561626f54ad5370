// The symbols of the shared library: XLA's handlers, and the functions that Python calls through ctypes.
//
// Python's functions return 0 or a code of absl::StatusCode, and a text in memory that aqt_jax_free frees: JSON, or the
// message of the error.

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/jax/call.h"
#include "aqt/jax/contraction_calls.h"
#include "aqt/jax/describe.h"
#include "aqt/jax/ffi_abi.h"
#include "aqt/jax/program_calls.h"

namespace aqt::jax {
namespace {

absl::StatusOr<std::string> Caught(absl::FunctionRef<absl::StatusOr<std::string>()> body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

int Return(char** text, absl::FunctionRef<absl::StatusOr<std::string>()> body) {
  const absl::StatusOr<std::string> result = Caught(body);
  const absl::string_view answer = result.ok() ? absl::string_view(*result) : result.status().message();
  *text = static_cast<char*>(std::malloc(answer.size() + 1));
  if (*text == nullptr) return static_cast<int>(absl::StatusCode::kResourceExhausted);
  std::memcpy(*text, answer.data(), answer.size());
  (*text)[answer.size()] = 0;
  return static_cast<int>(result.status().code());
}

}  // namespace
}  // namespace aqt::jax

#define AQT_JAX_EXPORT extern "C" __attribute__((visibility("default")))

AQT_JAX_EXPORT aqt::jax::abi::Error* aqt_jax_forward(aqt::jax::abi::CallFrame* frame) {
  return aqt::jax::Handle(frame, aqt::jax::Forward);
}
AQT_JAX_EXPORT aqt::jax::abi::Error* aqt_jax_gradient(aqt::jax::abi::CallFrame* frame) {
  return aqt::jax::Handle(frame, aqt::jax::Gradient);
}
AQT_JAX_EXPORT aqt::jax::abi::Error* aqt_jax_quantize(aqt::jax::abi::CallFrame* frame) {
  return aqt::jax::Handle(frame, aqt::jax::QuantizeSide);
}
AQT_JAX_EXPORT aqt::jax::abi::Error* aqt_jax_pack(aqt::jax::abi::CallFrame* frame) {
  return aqt::jax::Handle(frame, aqt::jax::PackOperand);
}
AQT_JAX_EXPORT aqt::jax::abi::Error* aqt_jax_dequantize(aqt::jax::abi::CallFrame* frame) {
  return aqt::jax::Handle(frame, aqt::jax::DequantizeTensor);
}
AQT_JAX_EXPORT aqt::jax::abi::Error* aqt_jax_program(aqt::jax::abi::CallFrame* frame) {
  return aqt::jax::Handle(frame, aqt::jax::RunProgram);
}

AQT_JAX_EXPORT int aqt_jax_describe_contraction(const char* spec, const char* lhs, const char* rhs, int forward_only,
                                                char** text) {
  return aqt::jax::Return(text, [&] { return aqt::jax::DescribeContraction(spec, lhs, rhs, forward_only != 0); });
}
AQT_JAX_EXPORT int aqt_jax_describe_program(const char* path, char** text) {
  return aqt::jax::Return(text, [&] { return aqt::jax::DescribeProgram(path); });
}
AQT_JAX_EXPORT int aqt_jax_compat(const char* names, char** text) {
  return aqt::jax::Return(text, [&] { return aqt::jax::CompatText(names); });
}
AQT_JAX_EXPORT int aqt_jax_complete_config(const char* textproto, char** text) {
  return aqt::jax::Return(text, [&] { return aqt::jax::CompleteConfig(textproto); });
}
AQT_JAX_EXPORT void aqt_jax_free(char* text) { std::free(text); }
