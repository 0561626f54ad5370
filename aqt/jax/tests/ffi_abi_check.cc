// Compares ffi_abi.h with the header of a jaxlib, when it is compiled:
//
//   g++ -std=c++20 -fsyntax-only -I. -I$(python -c 'import jaxlib; print(jaxlib.__path__[0])')/include \
//       aqt/jax/tests/ffi_abi_check.cc
//
// With -DAQT_HAS_NUM_THREADS for jaxlib 0.5 and later.
#include "aqt/jax/ffi_abi.h"
#include "xla/ffi/api/c_api.h"

namespace abi = aqt::jax::abi;
#define SAME(a, fa, b, fb) static_assert(offsetof(a, fa) == offsetof(abi::b, fb))
SAME(XLA_FFI_Api, XLA_FFI_Error_Create, Api, create_error);
SAME(XLA_FFI_Api, XLA_FFI_Error_Destroy, Api, destroy_error);
SAME(XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule, Api, schedule);
#ifdef AQT_HAS_NUM_THREADS
SAME(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads, Api, num_threads);
#endif
SAME(XLA_FFI_CallFrame, api, CallFrame, api);
SAME(XLA_FFI_CallFrame, ctx, CallFrame, context);
SAME(XLA_FFI_CallFrame, stage, CallFrame, stage);
SAME(XLA_FFI_CallFrame, args, CallFrame, arguments);
SAME(XLA_FFI_CallFrame, rets, CallFrame, results);
SAME(XLA_FFI_CallFrame, attrs, CallFrame, attributes);
SAME(XLA_FFI_CallFrame, future, CallFrame, future);
static_assert(sizeof(XLA_FFI_Buffer) == sizeof(abi::Buffer));
SAME(XLA_FFI_Buffer, dims, Buffer, dims);
SAME(XLA_FFI_Args, args, Buffers, buffers);
SAME(XLA_FFI_Attrs, attrs, Attributes, values);
SAME(XLA_FFI_Metadata, api_version, Metadata, version);
SAME(XLA_FFI_Metadata, traits, Metadata, traits);
SAME(XLA_FFI_Metadata_Extension, metadata, MetadataExtension, metadata);
SAME(XLA_FFI_Error_Create_Args, errc, CreateErrorArguments, code);
SAME(XLA_FFI_ThreadPool_Schedule_Args, data, ScheduleArguments, data);
