#ifndef AQT_JAX_FFI_ABI_H_
#define AQT_JAX_FFI_ABI_H_

// The part of XLA's foreign function interface that our handlers use, as C structs: version 0.1 of its ABI.
//
// XLA refuses a handler whose version is newer than its own, and accepts every version from 0.1. So one library built
// against this file works with every jaxlib from 0.4.35 on. It also needs no header of a particular jaxlib. The layout
// is that of xla/ffi/api/c_api.h in the wheel of jaxlib 0.4.35; aqt/jax/tests/ffi_abi_check.cc compares the two.

#include <cstddef>
#include <cstdint>

namespace aqt::jax::abi {

inline constexpr int kMajor = 0;
inline constexpr int kMinor = 1;

struct ExecutionContext;  // of one call; XLA's
struct Error;             // XLA's
struct Api;

// A linked list of additions to a struct.
struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
inline constexpr int32_t kMetadataExtension = 1;

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major_version;
  int32_t minor_version;
};

// xla::PrimitiveType
enum DataType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Bytes {
  const char* data;
  size_t size;
};

inline constexpr int32_t kBufferArgument = 1;
inline constexpr int32_t kStringAttribute = 4;

// The arguments or the results of a call.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;
  void** buffers;
};

// Sorted by name.
struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;
  Bytes** names;
  void** values;
};

inline constexpr int32_t kExecuteStage = 3;

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  ExecutionContext* context;
  int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  void* future;
};

struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};

// With this extension a call only asks for the metadata of the handler.
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct CreateErrorArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int32_t code;  // of absl::StatusCode
};

struct DestroyErrorArguments {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};

struct ScheduleArguments {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  void (*task)(void* data);
  void* data;
};

struct NumThreadsArguments {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  int64_t* num_threads;
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  void* internal;
  Error* (*create_error)(CreateErrorArguments*);
  void* get_message;
  void (*destroy_error)(DestroyErrorArguments*);
  void* unused[8];  // registration, streams, types, state, device memory
  Error* (*schedule)(ScheduleArguments*);
  // jaxlib 0.4.35 has another function here. It also states a smaller struct_size.
  Error* (*num_threads)(NumThreadsArguments*);
};

}  // namespace aqt::jax::abi

#endif  // AQT_JAX_FFI_ABI_H_
