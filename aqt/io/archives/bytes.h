#ifndef AQT_IO_ARCHIVES_BYTES_H_
#define AQT_IO_ARCHIVES_BYTES_H_

// Private to this folder: numbers in bytes.

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"

namespace aqt::io {

// The little-endian unsigned integer of `n` bytes, at most 8.
inline uint64_t LittleEndian(const void* bytes, int n) {
  uint64_t value = 0;
  std::memcpy(&value, bytes, static_cast<size_t>(n));
  return value;
}

// Bytes [offset, offset + n) of a file, which are inside it. `n` is small.
inline absl::StatusOr<std::string> ReadText(const RandomAccessFile& file, int64_t offset, int64_t n) {
  std::string text(static_cast<size_t>(n), '\0');
  AQT_RETURN_IF_ERROR(file.Read(offset, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  return text;
}

}  // namespace aqt::io

#endif  // AQT_IO_ARCHIVES_BYTES_H_
