#include "aqt/quant/config/call_options.h"

#include "absl/strings/str_cat.h"

namespace aqt {

absl::Status Validate(const PlanOptions& options) {
  if (!options.target.has_value() || kernels::IsSupported(*options.target)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("PlanOptions: this machine does not run the target ", kernels::ToString(*options.target)));
}

}  // namespace aqt
