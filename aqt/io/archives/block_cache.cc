#include "aqt/io/archives/block_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "aqt/core/status_macros.h"

namespace aqt::io {

uint64_t BlockCache::NewOwner() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ++owners_;
}

absl::StatusOr<const BlockCache::Block*> BlockCache::Find(uint64_t owner, int64_t size, int64_t begin,
                                                          const Make& make) {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                  [&](const Block& block) { return block.owner == owner && block.begin == begin; });
  if (found != blocks_.end()) {
    blocks_.splice(blocks_.begin(), blocks_, found);
    return &blocks_.front();
  }
  Block block;
  if (blocks_.size() == kMaxBlocks) {
    block = std::move(blocks_.back());  // for its memory
    blocks_.pop_back();
  }
  block.owner = owner;
  block.begin = begin;
  block.bytes.resize(static_cast<size_t>(std::min(kBlockBytes, size - begin)));
  AQT_RETURN_IF_ERROR(make(begin, absl::MakeSpan(block.bytes)));
  blocks_.push_front(std::move(block));
  return &blocks_.front();
}

absl::Status BlockCache::Read(uint64_t owner, int64_t size, int64_t offset, absl::Span<uint8_t> dst, const Make& make) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!dst.empty()) {
    const int64_t begin = offset / kBlockBytes * kBlockBytes;
    AQT_ASSIGN_OR_RETURN(const Block* block, Find(owner, size, begin, make));
    const size_t from = static_cast<size_t>(offset - begin);
    const size_t bytes = std::min(dst.size(), block->bytes.size() - from);
    std::memcpy(dst.data(), block->bytes.data() + from, bytes);
    offset += static_cast<int64_t>(bytes);
    dst.remove_prefix(bytes);
  }
  return absl::OkStatus();
}

}  // namespace aqt::io
