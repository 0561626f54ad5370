#ifndef AQT_IO_CONTAINERS_FLAX_FILE_H_
#define AQT_IO_CONTAINERS_FLAX_FILE_H_

// Private to this folder: trees of arrays as flax.serialization writes them, in msgpack: flax_model.msgpack, and the
// variables of models that AQT has converted for serving.

#include <memory>

#include "absl/status/statusor.h"
#include "aqt/io/archives/zip.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::io {

// An array is named by the keys that lead to it: "params.Dense_0.kernel". Integers of 2 and 4 bits are I8 and U8.
// DataLoss, naming byte and cause, for damaged msgpack; Unimplemented, naming the array, for types that tensors cannot
// have.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenFlaxFile(std::unique_ptr<RandomAccessFile> file,
                                                           const ContainerMemory& memory);

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_FLAX_FILE_H_
