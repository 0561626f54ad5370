#ifndef AQT_IO_CONTAINERS_TORCH_FILE_H_
#define AQT_IO_CONTAINERS_TORCH_FILE_H_

// Private to this folder: files of torch.save with tensors in dicts: pytorch_model.bin, .pt, .pth. Nothing in them is
// executed (pickle.h).

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/archives/zip.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::io {

// The format of PyTorch before 1.6, which is not a zip archive, begins with a number as a pickle of any protocol from 2
// on. The bytes of that pickle; 0 if `begin`, the first 32 bytes of a file, has none.
int64_t OldTorchMagicBytes(absl::string_view begin);

// Whether a zip archive with these members was written by torch.save.
bool IsTorchArchive(const std::vector<ZipMember>& members);

// Tensors that share a storage are given under each of their names, those that are views of another one as what they
// show. The errors of ReadPickledTensors; DataLoss if a storage is missing or too short; Unimplemented for TorchScript
// and big-endian files.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenTorchArchive(std::unique_ptr<RandomAccessFile> file,
                                                               const std::vector<ZipMember>& members,
                                                               const ContainerMemory& memory);
absl::StatusOr<std::unique_ptr<TensorSource>> OpenOldTorchFile(std::unique_ptr<RandomAccessFile> file,
                                                               const ContainerMemory& memory);

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_TORCH_FILE_H_
