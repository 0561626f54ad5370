#ifndef AQT_SERVING_RULES_H_
#define AQT_SERVING_RULES_H_

// Which weights are quantized, and how: an ordered list of rules, made from a converter configuration or from the
// quantization_config of another model, and applied to one tensor after the other.
//
// Only tensors named `<module>.weight` of rank 2 or more are candidates; everything else is carried over as it is. For
// a candidate the rules are tried in order. The first that matches decides, except that a rule that quantizes is passed
// over for a weight that is ignored, unless the rule may override that.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/safetensors.h"
#include "serving/convert_config.h"
#include "serving/quantization_config.h"
#include "serving/scheme.h"

namespace aqt::serving {

struct Decision {
  std::optional<Scheme> scheme;  // null: carried over as it is
  bool candidate = false;
  // A rule asks for a scheme and nothing that the user wrote speaks against it, yet the weight stays in floating point:
  // it is on the built-in ignore list, or the scheme does not fit.
  bool left_out = false;
  std::string reason;   // what decided: "rule 1 \"attention\"", "rank 1"
  std::string warning;  // not empty when the user should look: an unsuitable weight
};

class RuleSet {
 public:
  static absl::StatusOr<RuleSet> FromConfig(const ConvertConfig& config);
  // True for the name of a module of the checkpoint.
  using IsModule = std::function<bool(absl::string_view)>;
  // Targets in the package's order of precedence: exact names, then "re:" patterns in bytewise order, then classes. The
  // class Linear stands for every rank-2 `*.weight` outside the built-in ignore list; what does not fit the scheme
  // among them stays in floating point. Unimplemented for patterns that RE2 does not know (look-around), and for other
  // classes: a target that is written like one ("LlamaMLP") and that no module is named like.
  static absl::StatusOr<RuleSet> FromQuantizationConfig(const QuantizationConfig& config, const IsModule& is_module);

  RuleSet(RuleSet&&) = default;
  RuleSet& operator=(RuleSet&&) = default;

  // Counts which rules decide. InvalidArgument or Unimplemented, naming tensor, rule and remedy, when a scheme is asked
  // for that does not fit. `tied`: the model's input and output embeddings are one tensor. With `trace`, one line per
  // rule that was looked at is added to it.
  absl::StatusOr<Decision> Decide(const io::TensorSpec& tensor, bool tied, std::vector<std::string>* trace = nullptr);

  // True for modules on the built-in list.
  static bool IsBuiltInIgnored(absl::string_view module);

  // Rules and ignore entries that have had no effect so far, by their labels.
  std::vector<std::string> Unused() const;

 private:
  using Matcher = std::function<bool(absl::string_view tensor, absl::string_view module)>;
  struct Ignore {
    std::string label;
    Matcher matches;
    bool built_in = false;
    bool used = false;
  };
  struct Rule {
    std::string label;
    Matcher matches;
    std::optional<Scheme> scheme;
    bool heeds_ignore = true;    // the list of the user
    bool heeds_built_in = true;  // and ours
    bool keep_unsuitable = false;
    bool used = false;
  };

  RuleSet() = default;
  static absl::StatusOr<Matcher> MakeMatcher(absl::string_view entry);
  void AddBuiltInIgnores();
  const Ignore* FindIgnore(absl::string_view tensor, absl::string_view module, bool user, bool built_in);

  std::vector<Ignore> ignores_;
  std::vector<Rule> rules_;
};

// The entry of `targets` or `ignore` that stands for this module and nothing else: its name, or "re:^Linear$" for one
// that a loader would also take for a class, or for a pattern.
std::string TargetOf(absl::string_view module);

// True for names such as "model.embed_tokens" and "transformer.wte": never modules of the class Linear.
bool IsEmbeddingName(absl::string_view module);
// True for "lm_head" and its like.
bool IsHeadName(absl::string_view module);

}  // namespace aqt::serving

#endif  // AQT_SERVING_RULES_H_
