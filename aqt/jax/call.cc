#include "aqt/jax/call.h"

#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"

namespace aqt::jax {
namespace {

absl::StatusOr<DType> ToDType(int32_t dtype, absl::string_view what, int64_t index) {
  switch (dtype) {
    case abi::kPred: return DType::kBool;
    case abi::kS8: return DType::kS8;
    case abi::kU8: return DType::kU8;
    case abi::kS16: return DType::kS16;
    case abi::kS32: return DType::kS32;
    case abi::kU32: return DType::kU32;
    case abi::kS64: return DType::kS64;
    case abi::kF16: return DType::kF16;
    case abi::kBF16: return DType::kBF16;
    case abi::kF32: return DType::kF32;
    case abi::kF64: return DType::kF64;
    case abi::kF8E4M3FN: return DType::kE4M3FN;
    case abi::kF8E5M2: return DType::kE5M2;
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " ", index, " has XLA's data type ", dtype,
                                                 ", which is not supported; cast it before the call"));
}

template <class Ref>
absl::StatusOr<Ref> BufferAt(const abi::Buffers& buffers, int64_t index, absl::string_view what) {
  if (index < 0 || index >= buffers.size) {
    return absl::InvalidArgumentError(absl::StrCat("the call has ", buffers.size, " ", what, "s, but ", what, " ",
                                                   index, " is needed: the Python package does not fit this library"));
  }
  if (buffers.types[index] != abi::kBufferArgument) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", index, " is not an array"));
  }
  const abi::Buffer& buffer = *static_cast<const abi::Buffer*>(buffers.buffers[index]);
  AQT_ASSIGN_OR_RETURN(const DType dtype, ToDType(buffer.dtype, what, index));
  return Ref(dtype, Shape(absl::MakeConstSpan(buffer.dims, buffer.rank)), buffer.data);
}

abi::Error* MakeError(const abi::CallFrame& frame, const absl::Status& status) {
  const std::string message(status.message());
  abi::CreateErrorArguments arguments{.struct_size = sizeof(abi::CreateErrorArguments),
                                      .extensions = nullptr,
                                      .message = message.c_str(),
                                      .code = static_cast<int32_t>(status.code())};
  return frame.api->create_error(&arguments);
}

absl::Status RunBody(const abi::CallFrame& frame, absl::FunctionRef<absl::Status(const Call&)> body) {
  try {
    return body(Call(frame));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace

absl::StatusOr<ArrayRef> Call::Argument(int64_t index) const {
  return BufferAt<ArrayRef>(frame_.arguments, index, "argument");
}

absl::StatusOr<MutableArrayRef> Call::Result(int64_t index) const {
  return BufferAt<MutableArrayRef>(frame_.results, index, "result");
}

absl::StatusOr<Key> Call::KeyArgument(int64_t index) const {
  AQT_ASSIGN_OR_RETURN(const ArrayRef key, Argument(index));
  if (key.aval() != Aval{DType::kU32, {2}}) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument ", index, " is ", key.aval().ToString(), ", but a key is u32[2]"));
  }
  return Key{key.As<uint32_t>()[0], key.As<uint32_t>()[1]};
}

absl::StatusOr<absl::string_view> Call::Text(absl::string_view name) const {
  const abi::Attributes& attributes = frame_.attributes;
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (absl::string_view(attributes.names[i]->data, attributes.names[i]->size) != name) continue;
    if (attributes.types[i] != abi::kStringAttribute) break;
    const abi::Bytes& text = *static_cast<const abi::Bytes*>(attributes.values[i]);
    return absl::string_view(text.data, text.size);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the call has no string attribute '", name, "': the Python package does not fit this library"));
}

absl::Status Call::ExpectCounts(int64_t arguments, int64_t results) const {
  if (num_arguments() == arguments && num_results() == results) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the call has ", num_arguments(), " arguments and ", num_results(),
                                                 " results, expected ", arguments, " and ", results,
                                                 ": the Python package does not fit this library"));
}

abi::Error* Handle(abi::CallFrame* frame, absl::FunctionRef<absl::Status(const Call&)> body) {
  for (abi::Extension* extension = frame->extensions; extension != nullptr; extension = extension->next) {
    if (extension->type != abi::kMetadataExtension) continue;
    abi::Metadata& metadata = *reinterpret_cast<abi::MetadataExtension*>(extension)->metadata;
    metadata.version.major_version = abi::kMajor;
    metadata.version.minor_version = abi::kMinor;
    metadata.traits = 0;
    return nullptr;
  }
  if (frame->stage != abi::kExecuteStage) return nullptr;
  const absl::Status status = RunBody(*frame, body);
  return status.ok() ? nullptr : MakeError(*frame, status);
}

}  // namespace aqt::jax
