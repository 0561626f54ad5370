#ifndef AQT_TESTS_FAMILIES_AGREEMENT_H_
#define AQT_TESTS_FAMILIES_AGREEMENT_H_

// The properties on which a plan of the converter must agree with a record of a model family; README.md has the format
// of records. agreement.py is the same for the scripts.

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"

namespace aqt::families {

// vLLM's renames of a model's modules, which also apply to `ignore`.
struct VllmNames {
  using Renames = std::vector<std::pair<std::string, std::string>>;
  Renames substrings, prefixes, suffixes;                  // applied in this order
  std::map<std::string, std::vector<std::string>> packed;  // fused layer -> its parts in the checkpoint
  std::vector<std::string> expert_names = {"gate_proj", "up_proj", "down_proj"};
};

struct FamilyRecord {
  std::string family;
  std::string config;  // the text of config.json
  std::map<std::string, Shape> tensors;
  std::set<std::string> integers;
  std::map<std::string, std::string> classes;  // of modules that are not of class Linear
  std::set<std::string> tied, quantized, ignore, ask, ask_quantized, experts;
  std::set<std::string> free;               // either, vllm_float: may be quantized or not
  std::map<std::string, std::string> kept;  // tensor -> why
  std::vector<std::string> towers;          // prefixes
  bool in_vllm = false;
  VllmNames vllm;
};

// InvalidArgument if the text is not a record.
absl::StatusOr<FamilyRecord> ParseRecord(absl::string_view json);

// The decisions of a plan.
struct PlanFacts {
  std::set<std::string> quantized;  // modules
  std::vector<std::string> ignore;  // names, and "re:" with a pattern that matches from the start of a name
};

// One line per module that is quantized and must not be, or vice versa. A tower may stay in float completely.
std::vector<std::string> WrongModules(const FamilyRecord& record, const PlanFacts& plan);

// One line per name for which a loader that follows `ignore` builds the wrong module.
std::vector<std::string> WrongIgnores(const FamilyRecord& record, const PlanFacts& plan);

// The same for vLLM, with its names. Heads are left out: their class is not a linear layer there.
std::vector<std::string> WrongInVllm(const FamilyRecord& record, const PlanFacts& plan);

}  // namespace aqt::families

#endif  // AQT_TESTS_FAMILIES_AGREEMENT_H_
