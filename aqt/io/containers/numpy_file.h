#ifndef AQT_IO_CONTAINERS_NUMPY_FILE_H_
#define AQT_IO_CONTAINERS_NUMPY_FILE_H_

// Private to this folder: NumPy's .npy (one array) and .npz (a zip archive of them).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/io/archives/zip.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/tensor_spec.h"

namespace aqt::io {

// The header of an array, of format versions 1 to 3.
struct NpyHeader {
  FileDType dtype = FileDType::kF32;
  Shape shape;
  bool fortran_order = false;
  int64_t data_begin = 0;  // the byte after the header
};

// The beginning of every .npy.
inline constexpr absl::string_view kNpyMagic = "\x93NUMPY";

// `raw_dtype`: the type of elements that NumPy only knows as raw bytes of that size ("|V2"), as it stores bfloat16 and
// other types of ml_dtypes. DataLoss for a damaged header; Unimplemented, naming the type, for big-endian numbers,
// strings, Python objects, structures, and raw bytes without a raw_dtype of their size.
absl::StatusOr<NpyHeader> ReadNpyHeader(const RandomAccessFile& file, std::optional<FileDType> raw_dtype);

// An array is named like its file, or its member, without ".npy".
absl::StatusOr<std::unique_ptr<TensorSource>> OpenNpy(std::unique_ptr<RandomAccessFile> file,
                                                      std::optional<FileDType> raw_dtype,
                                                      const ContainerMemory& memory);
absl::StatusOr<std::unique_ptr<TensorSource>> OpenNpz(std::unique_ptr<RandomAccessFile> file,
                                                      const std::vector<ZipMember>& members,
                                                      std::optional<FileDType> raw_dtype,
                                                      const ContainerMemory& memory);

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_NUMPY_FILE_H_
