#ifndef AQT_SERVING_FAMILIES_ROLE_H_
#define AQT_SERVING_FAMILIES_ROLE_H_

// The roles of a model's modules.

#include <cstdint>

#include "absl/strings/string_view.h"

namespace aqt::serving {

enum class Role : uint8_t {
  kLinear,
  // These stay in floating point unless a rule overrides the built-in list.
  kTower,
  kHead,
  kEmbedding,
  kNorm,
  kRouter,
  kPositions,  // a table of relative positions
  kClassifier,
  kMtp,        // a part of multi-token prediction that servers load in floating point
  kMultihead,  // read by nn.MultiheadAttention, which does not call the module
  // These cannot be quantized.
  kTransposed,   // stores [in, out]
  kConvolution,  // rank 3 or more
  kExperts,      // all experts in one tensor of rank 3 or more
};
// "embedding", "output head", ...
absl::string_view ToString(Role role);
// Whether the role is on the built-in ignore list.
bool IsBuiltInIgnored(Role role);
// Whether such a module is not of the class Linear, or nearly always on the ignore list when quantizing by class:
// embeddings, heads, norms, routers and tables of positions. "Linear" covers towers and classifiers, for example.
bool IsOutsideOfLinear(Role role);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FAMILIES_ROLE_H_
