#ifndef AQT_OPS_PANEL_CACHE_H_
#define AQT_OPS_PANEL_CACHE_H_

// Packed operands that are alive in this process: programs that hold one weight share its packed form. Internal.

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"

namespace aqt::internal {

// Owns nothing: an entry lives as long as somebody holds what was packed and what it was packed from. Thread-safe.
class PanelCache {
 public:
  static PanelCache& OfProcess();

  PanelCache();
  ~PanelCache();
  PanelCache(const PanelCache&) = delete;
  PanelCache& operator=(const PanelCache&) = delete;

  // What was packed before from the same buffers, as `form` says, or what `pack` makes now. `form` holds everything
  // that the result depends on besides the sources' data.
  absl::StatusOr<Array> Get(absl::Span<const Array> sources, absl::string_view form,
                            absl::FunctionRef<absl::StatusOr<Array>()> pack);

  // The number of entries that are alive.
  size_t size();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aqt::internal

#endif  // AQT_OPS_PANEL_CACHE_H_
