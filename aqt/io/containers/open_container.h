#ifndef AQT_IO_CONTAINERS_OPEN_CONTAINER_H_
#define AQT_IO_CONTAINERS_OPEN_CONTAINER_H_

// Formats other than safetensors, as the OpenOther of a Checkpoint:
//
//   io::CheckpointOptions options;
//   options.open_other = io::OpenContainers();
//   AQT_ASSIGN_OR_RETURN(io::Checkpoint checkpoint, io::Checkpoint::Open(fs, "model/", options));
//
// NumPy's .npy and .npz, files of torch.save with dicts of tensors, and trees of flax in msgpack. A file is recognized
// by its content. docs/formats/containers.md says what is read and refused.

#include <optional>

#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/tensor_spec.h"

namespace aqt::io {

struct ContainerOptions {
  // The type of elements that NumPy stores as raw bytes without a type ("|V2"), as it does bfloat16.
  std::optional<FileDType> raw_dtype;
};

// All files that one result opens share their memory: 12 MiB, and 2 MiB for decoders of compressed data. Only an array
// that is both compressed and not in row-major order needs more: it is decoded as a whole, up to 256 MiB.
//
// The result returns DataLoss, naming file, position and cause, for a damaged file, and Unimplemented for what is not
// read. Nothing in a file is executed.
OpenOther OpenContainers(const ContainerOptions& options = {});

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_OPEN_CONTAINER_H_
