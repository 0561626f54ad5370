#include "serving/families/role.h"

namespace aqt::serving {

absl::string_view ToString(Role role) {
  switch (role) {
    case Role::kLinear: return "linear";
    case Role::kTower: return "vision or audio tower";
    case Role::kHead: return "output head";
    case Role::kEmbedding: return "embedding";
    case Role::kNorm: return "norm";
    case Role::kRouter: return "router";
    case Role::kPositions: return "relative positions";
    case Role::kClassifier: return "classifier";
    case Role::kMtp: return "multi-token prediction";
    case Role::kMultihead: return "projection of nn.MultiheadAttention";
    case Role::kTransposed: return "transposed";
    case Role::kConvolution: return "convolution";
    case Role::kExperts: return "experts in one tensor";
  }
  return "?";
}

bool IsBuiltInIgnored(Role role) {
  switch (role) {
    case Role::kTower:
    case Role::kHead:
    case Role::kEmbedding:
    case Role::kNorm:
    case Role::kRouter:
    case Role::kPositions:
    case Role::kClassifier:
    case Role::kMtp:
    case Role::kMultihead: return true;
    case Role::kLinear:
    case Role::kTransposed:
    case Role::kConvolution:
    case Role::kExperts: return false;
  }
  return false;
}

bool IsOutsideOfLinear(Role role) {
  switch (role) {
    case Role::kHead:
    case Role::kEmbedding:
    case Role::kNorm:
    case Role::kRouter:
    case Role::kPositions: return true;
    default: return false;
  }
}

}  // namespace aqt::serving
