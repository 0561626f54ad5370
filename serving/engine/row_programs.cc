#include "serving/engine/row_programs.h"

#include <algorithm>

#include "aqt/core/status_macros.h"

namespace aqt::serving {

absl::StatusOr<std::shared_ptr<const RowProgram>> RowPrograms::Get(int64_t batch, int64_t length) {
  const std::shared_ptr<Entry> entry = Find(batch, length);
  const std::lock_guard<std::mutex> lock(entry->mutex);
  if (entry->program == nullptr) {
    AQT_ASSIGN_OR_RETURN(Executable executable, model_->Compile(batch, length));
    entry->program = std::make_shared<const RowProgram>(std::move(executable), model_->facts(), batch, length);
  }
  return entry->program;
}

int64_t RowPrograms::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

std::shared_ptr<RowPrograms::Entry> RowPrograms::Find(int64_t batch, int64_t length) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find({length, batch});
  if (it != entries_.end()) {
    it->second->last_use = ++uses_;
    return it->second;
  }
  if (static_cast<int64_t>(entries_.size()) >= limit_) {
    entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return a.second->last_use < b.second->last_use;
    }));
  }
  const auto entry = std::make_shared<Entry>();
  entry->last_use = ++uses_;
  return entries_[{length, batch}] = entry;
}

}  // namespace aqt::serving
