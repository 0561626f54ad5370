#include "aqt/ops/panel_cache.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"

namespace aqt::internal {
namespace {

struct Entry {
  std::vector<std::weak_ptr<const void>> sources = {};
  Aval aval = {};
  std::weak_ptr<const void> panels = {};

  bool IsAlive() const {
    return !panels.expired() && std::none_of(sources.begin(), sources.end(), [](const auto& s) { return s.expired(); });
  }
};

}  // namespace

struct PanelCache::Impl {
  std::mutex mutex;
  absl::flat_hash_map<std::string, Entry> entries;  // guarded by mutex
  size_t next_cleaning = 64;                        // guarded by mutex

  // The panels of the entry if it is alive. A live buffer is the only one at its address, so a live entry with the
  // caller's addresses belongs to the caller's buffers. The caller holds mutex.
  std::optional<Array> Find(const std::string& key) {
    const auto it = entries.find(key);
    if (it == entries.end() || !it->second.IsAlive()) return std::nullopt;
    std::shared_ptr<const void> panels = it->second.panels.lock();
    if (panels == nullptr) return std::nullopt;  // another thread held the last reference
    return Array(it->second.aval, std::move(panels));
  }

  void RemoveDead() {
    absl::erase_if(entries, [](const auto& entry) { return !entry.second.IsAlive(); });
    next_cleaning = 2 * entries.size() + 64;
  }
};

PanelCache& PanelCache::OfProcess() {
  static PanelCache& cache = *new PanelCache();
  return cache;
}

PanelCache::PanelCache() : impl_(std::make_unique<Impl>()) {}
PanelCache::~PanelCache() = default;

absl::StatusOr<Array> PanelCache::Get(absl::Span<const Array> sources, absl::string_view form,
                                      absl::FunctionRef<absl::StatusOr<Array>()> pack) {
  Entry entry;
  std::string key(form);
  for (const Array& source : sources) {
    absl::StrAppend(&key, " ", source.aval().ToString(), "@", reinterpret_cast<uintptr_t>(source.data()));
    entry.sources.push_back(source.buffer());
  }
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (std::optional<Array> panels = impl_->Find(key); panels.has_value()) return *std::move(panels);
  }
  AQT_ASSIGN_OR_RETURN(Array packed, pack());
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  // Another thread may have been faster.
  if (std::optional<Array> panels = impl_->Find(key); panels.has_value()) return *std::move(panels);
  if (impl_->entries.size() >= impl_->next_cleaning) impl_->RemoveDead();
  entry.aval = packed.aval();
  entry.panels = packed.buffer();
  impl_->entries[key] = std::move(entry);
  return packed;
}

size_t PanelCache::size() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->RemoveDead();
  return impl_->entries.size();
}

}  // namespace aqt::internal
