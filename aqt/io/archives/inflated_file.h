#ifndef AQT_IO_ARCHIVES_INFLATED_FILE_H_
#define AQT_IO_ARCHIVES_INFLATED_FILE_H_

// Private to this folder: the content of a deflate stream as a file. It can only be decoded from its beginning on, so
// the states of a few decoders are kept: where the last read ended, and some before it.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/io/archives/block_cache.h"
#include "aqt/io/file.h"

namespace aqt::io {

// Decoders at certain positions of streams, about 50 KiB each. Thread-safe. A file and all its shards share one.
class InflaterPool {
 public:
  static constexpr size_t kMaxInflaters = 24;

  class Inflater;  // reads one stream forwards

  InflaterPool();
  ~InflaterPool();

 private:
  friend class InflatedFile;
  std::mutex mutex_;
  std::list<std::unique_ptr<Inflater>> inflaters_;  // the latest first; guarded by mutex_
};

// Raw deflate: bytes [begin, begin + deflated_bytes) of `file`, which give `size` bytes with this CRC-32.
struct DeflatedRange {
  int64_t begin = 0;
  int64_t deflated_bytes = 0;
  int64_t size = 0;
  uint32_t crc = 0;
};

// Reading in order decodes each byte once, with any number of threads (BlockCache). A read that goes back further
// decodes again from the latest decoder before it, which is at most a sixteenth of the stream, or 8 MiB, away, unless
// more than kMaxInflaters were needed since. DataLoss, for a damaged stream; checksum and size are compared when a read
// reaches the end.
class InflatedFile final : public RandomAccessFile {
 public:
  InflatedFile(std::shared_ptr<const RandomAccessFile> file, const DeflatedRange& range,
               std::shared_ptr<BlockCache> cache, std::shared_ptr<InflaterPool> pool);

  const std::string& path() const override { return file_->path(); }
  const FileInfo& info() const override { return info_; }
  absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override;

 private:
  absl::Status Decode(int64_t offset, absl::Span<uint8_t> dst) const;

  const std::shared_ptr<const RandomAccessFile> file_;
  const DeflatedRange range_;
  const std::shared_ptr<BlockCache> cache_;
  const std::shared_ptr<InflaterPool> pool_;
  const uint64_t owner_;
  FileInfo info_;
};

}  // namespace aqt::io

#endif  // AQT_IO_ARCHIVES_INFLATED_FILE_H_
