#include "aqt/io/containers/container_testing.h"

#include <zlib.h>

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace aqt::io {
namespace {

class MemoryTextFile final : public RandomAccessFile {
 public:
  MemoryTextFile(std::string path, std::string content) : path_(std::move(path)), content_(std::move(content)) {
    info_.size = static_cast<int64_t>(content_.size());
  }
  const std::string& path() const override { return path_; }
  const FileInfo& info() const override { return info_; }
  absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override {
    if (offset < 0 || offset > size() || static_cast<int64_t>(dst.size()) > size() - offset) {
      return absl::OutOfRangeError(
          absl::StrCat("a read at ", offset, " of ", dst.size(), " bytes in a file of ", size()));
    }
    std::memcpy(dst.data(), content_.data() + offset, dst.size());
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const std::string content_;
  FileInfo info_;
};

std::string Number(uint64_t value, int bytes) {
  return std::string(reinterpret_cast<const char*>(&value), static_cast<size_t>(bytes));
}

}  // namespace

std::unique_ptr<RandomAccessFile> TextFile(std::string path, std::string content) {
  return std::make_unique<MemoryTextFile>(std::move(path), std::move(content));
}

uint32_t Crc(const std::string& text) {
  return static_cast<uint32_t>(crc32(0, reinterpret_cast<const uint8_t*>(text.data()), static_cast<uInt>(text.size())));
}

std::string Deflate(const std::string& text) {
  z_stream stream = {};
  deflateInit2(&stream, 1, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<uint8_t*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string MakeZip(const std::vector<ZipContent>& members) {
  std::string zip, directory;
  for (const ZipContent& member : members) {
    const std::string stored = member.deflate ? Deflate(member.content) : member.content;
    const std::string sizes =
        absl::StrCat(Number(member.deflate ? 8 : 0, 2), Number(0, 4), Number(Crc(member.content), 4),
                     Number(stored.size(), 4), Number(member.content.size(), 4));
    const std::string lengths = absl::StrCat(Number(member.name.size(), 2), Number(0, 2));
    absl::StrAppend(&directory, "PK\x01\x02", Number(20, 2), Number(20, 2), Number(0, 2), sizes, lengths, Number(0, 2));
    absl::StrAppend(&directory, Number(0, 8), Number(zip.size(), 4), member.name);
    absl::StrAppend(&zip, "PK\x03\x04", Number(20, 2), Number(0, 2), sizes, lengths, member.name, stored);
  }
  const size_t begin = zip.size();
  absl::StrAppend(&zip, directory, "PK\x05\x06", Number(0, 4), Number(members.size(), 2), Number(members.size(), 2));
  absl::StrAppend(&zip, Number(directory.size(), 4), Number(begin, 4), Number(0, 2));
  return zip;
}

std::string MakeNpy(const std::string& dict, const std::string& content) {
  return absl::StrCat("\x93NUMPY", Number(1, 2), Number(dict.size(), 2), dict, content);
}

}  // namespace aqt::io
