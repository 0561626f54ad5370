#include "aqt/gguf/header_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"

namespace aqt::gguf {
namespace {

constexpr int64_t kBufferBytes = 1 << 16;

}  // namespace

absl::Status HeaderReader::Truncated(absl::string_view what, uint64_t needed) const {
  return absl::DataLossError(absl::StrCat("the file ends within ", what, ", which needs ", needed, " bytes from byte ",
                                          position_, " on, and the file has ", file_.size(),
                                          "; it is truncated or damaged: copy or download it again"));
}

absl::Status HeaderReader::Fill(absl::string_view what, size_t bytes) {
  const int64_t needed = static_cast<int64_t>(bytes);
  if (position_ >= buffer_begin_ && position_ + needed <= buffer_begin_ + static_cast<int64_t>(buffer_.size())) {
    return absl::OkStatus();
  }
  if (needed > remaining()) return Truncated(what, bytes);
  buffer_.resize(static_cast<size_t>(std::min(std::max(kBufferBytes, needed), remaining())));
  buffer_begin_ = position_;
  return file_.Read(position_, absl::MakeSpan(buffer_));
}

absl::Status HeaderReader::ReadString(absl::string_view what, int64_t max_bytes, std::string& value) {
  uint64_t length = 0;
  AQT_RETURN_IF_ERROR(Read(what, length));
  if (length > static_cast<uint64_t>(remaining())) return Truncated(what, length);
  if (length > static_cast<uint64_t>(max_bytes)) {
    return absl::DataLossError(absl::StrCat(what, " has ", length, " bytes, more than the limit of ", max_bytes));
  }
  AQT_RETURN_IF_ERROR(Fill(what, length));
  value.assign(reinterpret_cast<const char*>(buffer_.data()) + (position_ - buffer_begin_), length);
  position_ += static_cast<int64_t>(length);
  return absl::OkStatus();
}

absl::Status HeaderReader::SkipString(absl::string_view what) {
  uint64_t length = 0;
  AQT_RETURN_IF_ERROR(Read(what, length));
  return Skip(what, length, 1);
}

absl::Status HeaderReader::Skip(absl::string_view what, uint64_t count, int64_t bytes) {
  uint64_t total = 0;
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(bytes), &total)) total = UINT64_MAX;
  if (total > static_cast<uint64_t>(remaining())) return Truncated(what, total);
  position_ += static_cast<int64_t>(total);
  return absl::OkStatus();
}

}  // namespace aqt::gguf
