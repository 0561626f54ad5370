#ifndef AQT_GGUF_HEADER_READER_H_
#define AQT_GGUF_HEADER_READER_H_

// Private to this folder: reads the header of a GGUF file from the beginning, through a small buffer.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"

namespace aqt::gguf {

// Nothing is allocated for a length before it is known that the file has as many bytes.
class HeaderReader {
 public:
  explicit HeaderReader(const io::RandomAccessFile& file) : file_(file) {}

  int64_t position() const { return position_; }
  int64_t remaining() const { return file_.size() - position_; }

  // Reads a little-endian number. `what` names it in the error of a file that ends too early.
  template <class T>
  absl::Status Read(absl::string_view what, T& value) {
    if (const absl::Status status = Fill(what, sizeof(T)); !status.ok()) return status;
    std::memcpy(&value, buffer_.data() + (position_ - buffer_begin_), sizeof(T));
    position_ += static_cast<int64_t>(sizeof(T));
    return absl::OkStatus();
  }
  // A length of 64 bits and that many bytes. DataLoss if they are more than `max_bytes`.
  absl::Status ReadString(absl::string_view what, int64_t max_bytes, std::string& value);
  // A string that is not kept.
  absl::Status SkipString(absl::string_view what);
  // DataLoss if the file does not have `count` times `bytes` more bytes.
  absl::Status Skip(absl::string_view what, uint64_t count, int64_t bytes);

 private:
  // Makes `bytes` bytes from position_ on available in the buffer.
  absl::Status Fill(absl::string_view what, size_t bytes);
  absl::Status Truncated(absl::string_view what, uint64_t needed) const;

  const io::RandomAccessFile& file_;
  int64_t position_ = 0;
  int64_t buffer_begin_ = 0;
  std::vector<uint8_t> buffer_;
};

}  // namespace aqt::gguf

#endif  // AQT_GGUF_HEADER_READER_H_
