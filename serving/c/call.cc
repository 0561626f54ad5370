#include "serving/c/call.h"

#include <memory>

namespace {

// What errors of a library that is out of memory point to.
constexpr char kOutOfMemory[] = "out of memory";

}  // namespace

struct aqt_error {
  aqt_code code;
  std::string message;
};

struct aqt_string {
  std::string text;
};

namespace aqt::capi {
namespace {

// Given without allocating; never freed.
aqt_error& OutOfMemory() {
  static aqt_error error = {AQT_RESOURCE_EXHAUSTED, kOutOfMemory};
  return error;
}

}  // namespace

aqt_code Finish(const absl::Status& status, aqt_error** error) noexcept {
  if (error != nullptr) *error = nullptr;
  if (status.ok()) return AQT_OK;
  const aqt_code code = static_cast<aqt_code>(status.code());
  if (error == nullptr) return code;
  try {
    *error = new aqt_error{code, std::string(status.message())};
  } catch (const std::bad_alloc&) {
    *error = &OutOfMemory();
  }
  return code;
}

aqt_code FinishException(aqt_error** error) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    if (error != nullptr) *error = &OutOfMemory();
    return AQT_RESOURCE_EXHAUSTED;
  } catch (const std::exception& e) {
    try {
      return Finish(absl::InternalError(e.what()), error);
    } catch (const std::bad_alloc&) {
      return FinishException(error);
    }
  } catch (...) {
    return Finish(absl::InternalError("an unknown exception"), error);
  }
}

absl::Status CheckStructSize(size_t size, size_t first, const char* name) {
  constexpr size_t kLargest = 4096;  // no struct of a later version is this large
  if (first <= size && size <= kLargest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ".struct_size is ", size, ", expected at least ", first,
                                                 "; initialize the struct with its AQT_..._INIT"));
}

absl::Status CheckUnknownMembers(const void* given, size_t size, size_t known, const char* name) {
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (size_t i = known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return absl::UnimplementedError(absl::StrCat(name, " has a member at byte ", i, " that this library, version ",
                                                 AQT_C_API_VERSION,
                                                 " of the interface, does not know; leave it 0, or "
                                                 "load a newer library"));
  }
  return absl::OkStatus();
}

absl::Status Return(std::string text, aqt_string** out) {
  AQT_RETURN_IF_ERROR(NotNull(out, "the pointer that receives the text"));
  *out = new aqt_string{std::move(text)};
  return absl::OkStatus();
}

}  // namespace aqt::capi

using aqt::capi::OutOfMemory;

aqt_code aqt_error_code(const aqt_error* error) { return error == nullptr ? AQT_OK : error->code; }

const char* aqt_error_message(const aqt_error* error) { return error == nullptr ? "" : error->message.c_str(); }

void aqt_error_free(aqt_error* error) {
  if (error != &OutOfMemory()) delete error;
}

const char* aqt_string_data(const aqt_string* string) { return string == nullptr ? "" : string->text.c_str(); }

size_t aqt_string_size(const aqt_string* string) { return string == nullptr ? 0 : string->text.size(); }

void aqt_string_free(aqt_string* string) { delete string; }
