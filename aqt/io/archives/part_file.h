#ifndef AQT_IO_ARCHIVES_PART_FILE_H_
#define AQT_IO_ARCHIVES_PART_FILE_H_

// Private to this folder: ranges of a file, one after the other, as a file.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"

namespace aqt::io {

class PartFile final : public RandomAccessFile {
 public:
  struct Range {
    int64_t begin = 0;
    int64_t bytes = 0;
  };

  // All ranges are inside the file; there is at least one.
  PartFile(std::shared_ptr<const RandomAccessFile> file, std::vector<Range> ranges);

  const std::string& path() const override { return file_->path(); }
  const FileInfo& info() const override { return info_; }
  absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override;

 private:
  const std::shared_ptr<const RandomAccessFile> file_;
  const std::vector<Range> ranges_;
  std::vector<int64_t> ends_;  // of the ranges, in this file
  FileInfo info_;
};

}  // namespace aqt::io

#endif  // AQT_IO_ARCHIVES_PART_FILE_H_
