#ifndef AQT_IO_TENSORS_MAP_TENSOR_H_
#define AQT_IO_TENSORS_MAP_TENSOR_H_

// Tensors of safetensors files that stay in their files.

#include <optional>

#include "aqt/core/array.h"
#include "aqt/io/mapped_files.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::io {

// The tensor in memory of its file (MappedFiles::Map). Nothing if it is empty, if it is not numbers of whole bytes that
// the file has aligned for them, if its shard is not a safetensors file, or if that cannot be mapped. `tensor` is one
// of source.tensors(), and `source` a checkpoint of `files`.
std::optional<Array> MapTensor(const MappedFiles& files, const TensorSource& source, const TensorInfo& tensor);

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_MAP_TENSOR_H_
