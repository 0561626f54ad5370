#ifndef AQT_SERVING_FAMILIES_MODEL_FAMILY_H_
#define AQT_SERVING_FAMILIES_MODEL_FAMILY_H_

// The table of model families as structs (configs/families.proto, which describes the fields), and the selection of
// those that describe a model.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "configs/config_text.h"
#include "configs/families.pb.h"
#include "serving/families/role.h"
#include "serving/formats/model_config.h"

namespace aqt::serving {

// A tensor with a matrix of each expert of a layer (aqt.config.FusedExperts, which describes the fields).
struct FusedExperts {
  std::string stored;
  std::vector<std::string> parts;
  bool in_out = false;
  bool either_order = false;
  bool interleaved = false;
};

struct ModelFamily {
  std::string name;
  std::vector<std::string> model_types;
  std::vector<std::string> architectures;
  // The patterns (RE2) of each role that has some, in the order in which roles are tried. Patterns of towers are
  // separate: they must match a part of a path.
  std::vector<std::pair<Role, std::vector<std::string>>> patterns;
  std::vector<std::string> towers;
  std::vector<std::string> tied_heads;
  std::optional<bool> has_towers;
  std::vector<std::vector<std::string>> fused;
  std::vector<std::pair<std::string, std::string>> expert_names;  // the stored name, the requested name
  std::vector<FusedExperts> fused_experts;

  bool for_every_model() const { return model_types.empty() && architectures.empty(); }
};

// InvalidArgument, with the place, for a family without a name or a pattern that does not compile.
absl::StatusOr<ModelFamily> ReadModelFamily(const config::ModelFamily& message, const config::Place& place);

// The table configs/model_families.textproto. The last family is for every model.
const std::vector<ModelFamily>& BuiltInFamilies();

// The families that describe the model: those of `own`, then the built-in ones. In each, families for the outermost
// type of the model come first, then those for its parts, then those for every model.
std::vector<const ModelFamily*> FamiliesOf(const ModelFacts& facts, absl::Span<const ModelFamily> own);

// Whether a family describes this model itself, not only a part of it or every model.
bool IsKnown(const ModelFacts& facts, absl::Span<const ModelFamily* const> families);

// The model's name in messages: "llama" or "LlamaForCausalLM". Empty if config.json has neither.
std::string TypeName(const ModelFacts& facts);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FAMILIES_MODEL_FAMILY_H_
