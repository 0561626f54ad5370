#ifndef AQT_OPS_PANEL_CACHE_H_
#define AQT_OPS_PANEL_CACHE_H_

// Packed operands that are in use in this process: programs with the same weight share its packed form. Internal.

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"

namespace aqt::internal {

// Owns nothing: an entry exists while both the packed array and its sources are in use. Thread-safe.
class PanelCache {
 public:
  static PanelCache& OfProcess();

  PanelCache();
  ~PanelCache();
  PanelCache(const PanelCache&) = delete;
  PanelCache& operator=(const PanelCache&) = delete;

  // The array packed earlier from the same buffers with the same `form`, otherwise the result of `pack`. `form` must
  // contain everything that the result depends on besides the sources' data.
  absl::StatusOr<Array> Get(absl::Span<const Array> sources, absl::string_view form,
                            absl::FunctionRef<absl::StatusOr<Array>()> pack);

  // The number of entries in use.
  size_t size();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aqt::internal

#endif  // AQT_OPS_PANEL_CACHE_H_
