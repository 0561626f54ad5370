#ifndef AQT_SERVING_C_CALL_H_
#define AQT_SERVING_C_CALL_H_

// What all functions of the C interface do: statuses become codes and errors, exceptions become statuses, handles are
// checked, and structs are read whatever version the caller was compiled with. Internal.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/c_api.h"
#include "aqt/core/status_macros.h"

namespace aqt::capi {

// Sets *error, if `error` is not null, and returns the code. Does not throw.
aqt_code Finish(const absl::Status& status, aqt_error** error) noexcept;
// The same for an exception that is being handled.
aqt_code FinishException(aqt_error** error) noexcept;

// Runs `body`, which returns an absl::Status.
template <class Body>
aqt_code Call(aqt_error** error, const Body& body) noexcept {
  try {
    return Finish(body(), error);
  } catch (...) {
    return FinishException(error);
  }
}

// InvalidArgument if an argument is NULL.
inline absl::Status NotNull(const void* pointer, const char* name) {
  return pointer != nullptr ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
}

// ---- handles: each begins with the tag of its type, until it is freed

enum class Tag : uint64_t {
  kFreed = 0,
  kExecutor = 0x6171745f65786563,  // "aqt_" and four letters
  kQTensor = 0x6171745f7174656e,
  kQuantizer = 0x6171745f7175616e,
  kDotGeneral = 0x6171745f646f7467,
  kPrepared = 0x6171745f70726570,
  kResiduals = 0x6171745f72657369,
  kProgram = 0x6171745f70726f67,
  kEmbedder = 0x6171745f656d6265,
};

// InvalidArgument, with the argument's name, if the handle is NULL or of another type. (A freed one cannot be told.)
template <class Handle>
absl::Status Check(const Handle* handle, const char* name) {
  AQT_RETURN_IF_ERROR(NotNull(handle, name));
  if (handle->tag == Handle::kTag) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is no handle of ", Handle::kName, ", or it was freed"));
}

template <class Handle>
void Free(Handle* handle) noexcept {
  if (handle == nullptr || handle->tag != Handle::kTag) return;
  handle->tag = Tag::kFreed;
  delete handle;
}

// Runs `body`, which returns an absl::StatusOr of what the handle holds, and makes the handle.
template <class Handle, class Body>
aqt_code Make(Handle** handle, aqt_error** error, const Body& body) noexcept {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(NotNull(handle, "the pointer that receives the handle"));
    *handle = nullptr;
    AQT_ASSIGN_OR_RETURN(auto made, body());
    *handle = new Handle(std::move(made));
    return absl::OkStatus();
  });
}

// ---- structs that begin with struct_size

// The size that a struct had in the first version of the interface.
template <class Struct>
inline constexpr size_t kFirstSize = sizeof(Struct);
template <>
inline constexpr size_t kFirstSize<aqt_embedder_options> = offsetof(aqt_embedder_options, calibration);

// `first`: kFirstSize.
absl::Status CheckStructSize(size_t size, size_t first, const char* name);
absl::Status CheckUnknownMembers(const void* given, size_t size, size_t known, const char* name);

// A struct of the caller; defaults for NULL. InvalidArgument for a size that no version had; Unimplemented if a member
// is set that this library does not know.
template <class Struct>
absl::StatusOr<Struct> Read(const Struct* given, const char* name) {
  Struct read = {};
  if (given != nullptr) {
    AQT_RETURN_IF_ERROR(CheckStructSize(given->struct_size, kFirstSize<Struct>, name));
    AQT_RETURN_IF_ERROR(CheckUnknownMembers(given, given->struct_size, sizeof(Struct), name));
    std::memcpy(&read, given, std::min(given->struct_size, sizeof(Struct)));
  }
  read.struct_size = sizeof(Struct);
  return read;
}

// Fills as much of a struct as the caller knows.
template <class Struct>
absl::Status Write(Struct value, Struct* out, const char* name) {
  AQT_RETURN_IF_ERROR(NotNull(out, name));
  AQT_RETURN_IF_ERROR(CheckStructSize(out->struct_size, kFirstSize<Struct>, name));
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, std::min(out->struct_size, sizeof(Struct)));
  return absl::OkStatus();
}

// ---- text

// Gives the text to *out.
absl::Status Return(std::string text, aqt_string** out);

}  // namespace aqt::capi

#endif  // AQT_SERVING_C_CALL_H_
