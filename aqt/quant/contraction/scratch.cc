#include "aqt/quant/contraction/scratch.h"

#include <algorithm>

#include "aqt/core/array.h"
#include "aqt/core/check.h"

namespace aqt {

Scratch& Scratch::OfThisThread() {
  thread_local Scratch scratch;
  return scratch;
}

void Scratch::Reserve(int64_t bytes) {
  if (top_ != 0 || bytes <= block_bytes_ || is_borrowed_) return;  // a block in use stays where it is
  block_.reset();
  block_ = AllocateUninitialized(bytes);
  block_bytes_ = bytes;
}

void Scratch::Free() {
  AQT_CHECK(top_ == 0);
  block_.reset();
  block_bytes_ = highest_ = 0;
}

int64_t Scratch::num_bytes() const { return block_bytes_ + overflow_bytes_; }

void* Scratch::Push(int64_t bytes) {
  const int64_t begin = top_;
  top_ += bytes;
  highest_ = std::max(highest_, top_);
  if (top_ <= block_bytes_) return static_cast<char*>(block_.get()) + begin;
  overflow_.push_back(AllocateUninitialized(bytes));
  overflow_bytes_ += bytes;
  return overflow_.back().get();
}

void Scratch::PopTo(int64_t top) {
  top_ = top;
  if (top != 0 || overflow_.empty()) return;
  overflow_.clear();
  overflow_bytes_ = 0;
  Reserve(highest_);  // so that the next such call has room
}

}  // namespace aqt
