#include "aqt/io/archives/part_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"

namespace aqt::io {

PartFile::PartFile(std::shared_ptr<const RandomAccessFile> file, std::vector<Range> ranges)
    : file_(std::move(file)), ranges_(std::move(ranges)), info_(file_->info()) {
  info_.size = 0;
  for (const Range& range : ranges_) {
    info_.size += range.bytes;
    ends_.push_back(info_.size);
  }
}

absl::Status PartFile::Read(int64_t offset, absl::Span<uint8_t> dst) const {
  const int64_t bytes = static_cast<int64_t>(dst.size());
  if (offset < 0 || offset > size() || bytes > size() - offset) {
    return absl::OutOfRangeError(
        absl::StrCat("'", path(), "': ", bytes, " bytes at ", offset, " are not inside a part of ", size(), " bytes"));
  }
  size_t i = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
  while (!dst.empty()) {
    const int64_t from = offset - (ends_[i] - ranges_[i].bytes);
    const size_t here = std::min(dst.size(), static_cast<size_t>(ranges_[i].bytes - from));
    AQT_RETURN_IF_ERROR(file_->Read(ranges_[i].begin + from, dst.first(here)));
    offset += static_cast<int64_t>(here);
    dst.remove_prefix(here);
    ++i;
  }
  return absl::OkStatus();
}

}  // namespace aqt::io
