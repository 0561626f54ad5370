#ifndef AQT_IO_CONTAINERS_TORCH_FILE_H_
#define AQT_IO_CONTAINERS_TORCH_FILE_H_

// Private to this folder: files of torch.save with tensors in dicts: pytorch_model.bin, .pt, .pth. Nothing in them is
// executed (pickle.h).

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/containers/zip.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"

namespace aqt::io {

// The beginning of the format of PyTorch before 1.6, which is not a zip archive.
inline constexpr absl::string_view kOldTorchMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);

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
