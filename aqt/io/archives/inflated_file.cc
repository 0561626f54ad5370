#include "aqt/io/archives/inflated_file.h"

#include <zlib.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"

namespace aqt::io {
namespace {

constexpr int64_t kInputBytes = 16 << 10;
constexpr int64_t kMinSpacing = 8 << 20;  // of kept decoders
constexpr int64_t kParts = 16;            // of a stream, with a decoder before each

}  // namespace

class InflaterPool::Inflater {
 public:
  Inflater(uint64_t owner, const DeflatedRange& range) : owner_(owner), range_(range) {}
  ~Inflater() {
    if (started_) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  uint64_t owner() const { return owner_; }
  int64_t position() const { return position_; }

  // The same state; null if there is too little memory.
  std::unique_ptr<Inflater> Copy() {
    auto copy = std::make_unique<Inflater>(owner_, range_);
    copy->position_ = position_;
    copy->crc_ = crc_;
    copy->consumed_ = consumed_ - static_cast<int64_t>(stream_.avail_in);
    if (started_) {
      if (inflateCopy(&copy->stream_, &stream_) != Z_OK) return nullptr;
      copy->started_ = true;
      copy->stream_.avail_in = 0;  // is read again
    }
    return copy;
  }

  // Decodes the next bytes.
  absl::Status Read(const RandomAccessFile& file, absl::Span<uint8_t> dst) {
    if (!started_) {
      constexpr int kRawDeflate = -15;
      if (inflateInit2(&stream_, kRawDeflate) != Z_OK) return absl::ResourceExhaustedError("no memory to inflate");
      started_ = true;
    }
    stream_.next_out = dst.data();
    stream_.avail_out = static_cast<uInt>(dst.size());
    bool ended = false;
    while (stream_.avail_out > 0) {
      AQT_RETURN_IF_ERROR(Refill(file));
      AQT_ASSIGN_OR_RETURN(ended, Step());
      if (ended && stream_.avail_out > 0) return Damaged("ends early");
    }
    position_ += static_cast<int64_t>(dst.size());
    crc_ = crc32(crc_, dst.data(), static_cast<uInt>(dst.size()));
    return position_ == range_.size ? Finish(file, ended) : absl::OkStatus();
  }

 private:
  absl::Status Refill(const RandomAccessFile& file) {
    if (stream_.avail_in > 0 || consumed_ == range_.deflated_bytes) return absl::OkStatus();
    input_.resize(static_cast<size_t>(std::min(kInputBytes, range_.deflated_bytes - consumed_)));
    AQT_RETURN_IF_ERROR(file.Read(range_.begin + consumed_, absl::MakeSpan(input_)));
    consumed_ += static_cast<int64_t>(input_.size());
    stream_.next_in = input_.data();
    stream_.avail_in = static_cast<uInt>(input_.size());
    return absl::OkStatus();
  }

  // Decodes what input and output allow; true at the end of the stream.
  absl::StatusOr<bool> Step() {
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result == Z_STREAM_END) return true;
    if (result == Z_MEM_ERROR) return absl::ResourceExhaustedError("no memory to inflate");
    if (result == Z_OK) return false;
    return Damaged(result == Z_BUF_ERROR ? "is cut off" : "is not deflate data");
  }

  // After the last byte: the stream ends, with the checksum.
  absl::Status Finish(const RandomAccessFile& file, bool ended) {
    while (!ended) {
      uint8_t extra;
      stream_.next_out = &extra;
      stream_.avail_out = 1;
      AQT_RETURN_IF_ERROR(Refill(file));
      AQT_ASSIGN_OR_RETURN(ended, Step());
      if (stream_.avail_out == 0) return Damaged("has more bytes than its header says");
    }
    if (crc_ != range_.crc) return Damaged("does not have the checksum that its header says");
    return absl::OkStatus();
  }

  absl::Status Damaged(absl::string_view how) const {
    return absl::DataLossError(absl::StrCat("the compressed data at byte ", range_.begin, " ", how));
  }

  const uint64_t owner_;
  const DeflatedRange range_;
  z_stream stream_ = {};
  bool started_ = false;
  int64_t consumed_ = 0;  // deflated bytes that were read
  int64_t position_ = 0;
  uLong crc_ = 0;
  std::vector<uint8_t> input_;
};

InflaterPool::InflaterPool() = default;
InflaterPool::~InflaterPool() = default;

InflatedFile::InflatedFile(std::shared_ptr<const RandomAccessFile> file, const DeflatedRange& range,
                           std::shared_ptr<BlockCache> cache, std::shared_ptr<InflaterPool> pool)
    : file_(std::move(file)),
      range_(range),
      cache_(std::move(cache)),
      pool_(std::move(pool)),
      owner_(cache_->NewOwner()),
      info_(file_->info()) {
  info_.size = range.size;
}

absl::Status InflatedFile::Read(int64_t offset, absl::Span<uint8_t> dst) const {
  const int64_t bytes = static_cast<int64_t>(dst.size());
  if (offset < 0 || offset > size() || bytes > size() - offset) {
    return absl::OutOfRangeError(
        absl::StrCat("'", path(), "': ", bytes, " bytes at ", offset, " are not inside a part of ", size(), " bytes"));
  }
  return cache_->Read(owner_, size(), offset, dst,
                      [this](int64_t begin, absl::Span<uint8_t> block) { return Decode(begin, block); });
}

// `offset` is that of a block, and `dst` is a block.
absl::Status InflatedFile::Decode(int64_t offset, absl::Span<uint8_t> dst) const {
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  auto& inflaters = pool_->inflaters_;
  auto best = inflaters.end();
  for (auto it = inflaters.begin(); it != inflaters.end(); ++it) {
    if ((*it)->owner() != owner_ || (*it)->position() > offset) continue;
    if (best == inflaters.end() || (*it)->position() > (*best)->position()) best = it;
  }
  std::unique_ptr<InflaterPool::Inflater> inflater;
  if (best == inflaters.end()) {
    inflater = std::make_unique<InflaterPool::Inflater>(owner_, range_);
  } else {
    inflater = std::move(*best);
    inflaters.erase(best);
  }
  const auto keep = [&](std::unique_ptr<InflaterPool::Inflater> kept) {
    if (kept == nullptr) return;
    inflaters.push_front(std::move(kept));
    if (inflaters.size() > InflaterPool::kMaxInflaters) inflaters.pop_back();
  };
  const int64_t spacing =
      std::max(kMinSpacing, range_.size / kParts / BlockCache::kBlockBytes * BlockCache::kBlockBytes);
  std::vector<uint8_t> skipped;
  while (true) {
    // A decoder stays at the beginning of each part.
    if (inflater->position() % spacing == 0 && inflater->position() > 0) keep(inflater->Copy());
    if (inflater->position() == offset) break;
    const int64_t next = std::min(offset, inflater->position() + BlockCache::kBlockBytes);
    skipped.resize(static_cast<size_t>(next - inflater->position()));
    AQT_RETURN_IF_ERROR(inflater->Read(*file_, absl::MakeSpan(skipped)));
  }
  AQT_RETURN_IF_ERROR(inflater->Read(*file_, dst));
  if (inflater->position() < range_.size) keep(std::move(inflater));
  return absl::OkStatus();
}

}  // namespace aqt::io
