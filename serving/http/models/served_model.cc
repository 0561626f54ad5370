#include "serving/http/models/served_model.h"

#include "absl/status/status.h"

namespace aqt::serving {

absl::StatusOr<std::vector<TextOutput>> ServedModel::RunTexts(absl::Span<const TextInput>, const TextOptions&) const {
  return absl::InvalidArgumentError("this model takes tensors, not texts; use /v2/models/NAME/infer");
}

absl::StatusOr<std::vector<NamedTensor>> ServedModel::RunTensors(absl::Span<const NamedTensor>,
                                                                 const CallOptions&) const {
  return absl::InvalidArgumentError("this model takes texts, not tensors");
}

}  // namespace aqt::serving
