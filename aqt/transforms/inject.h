#ifndef AQT_TRANSFORMS_INJECT_H_
#define AQT_TRANSFORMS_INJECT_H_

// Quantizes a model that knows nothing of it: rules pick contractions of its program and say how each is quantized.
//
//   InjectConfig config;
//   config.rules.push_back({.scope = ".*/logits"});                                   // these stay as they are
//   config.rules.push_back({.scope = "mlp/.*", .dot_general = FullyQuantized()});
//   absl::StatusOr<Program> quantized = Inject(program, config);
//
// Before gradients are taken: then each quantized contraction brings its own backward pass.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/ops/aqt_parts.h"
#include "aqt/quant/config.h"

namespace aqt {

// What an operand depends on.
enum class OperandOrigin {
  kAny,
  kParam,  // parameters, frozen inputs and constants alone: a weight
  kData,   // anything else: an activation
};

struct InjectRule {
  bool operator==(const InjectRule&) const = default;
  std::string name = "";  // for messages; "rule <number>" when empty
  // An equation is hit when all of these hold.
  std::string scope = ".*";                        // regular expression (RE2) for the whole scope
  std::vector<std::string> ops = {"dot_general"};  // the operation's name
  OperandOrigin lhs_origin = OperandOrigin::kAny, rhs_origin = OperandOrigin::kAny;

  // What becomes of it; null: it stays as it is.
  std::optional<DotGeneral> dot_general = std::nullopt;
  // See QuantizedDotOptions. A mode that is null is, where the side is quantized: InjectConfig::param_mode when its
  // operand depends on parameters alone; InjectConfig::data_mode when it does not, and its calibration has state;
  // otherwise TRAIN. And it is TRAIN in place of a CALIBRATE that has no state to update.
  std::optional<QuantMode> lhs_mode = std::nullopt, rhs_mode = std::nullopt;
  std::optional<std::string> key_slot = std::nullopt;
};

struct InjectConfig {
  bool operator==(const InjectConfig&) const = default;
  // The first rule that hits an equation decides; equations that no rule hits stay as they are.
  std::vector<InjectRule> rules;
  // What happens to the weights, unless a rule says otherwise: TRAIN, then CONVERT (and Fold), then SERVE, with one set
  // of rules. Gradients, and so their keys, belong to TRAIN.
  QuantMode param_mode = QuantMode::kTrain;
  // The same for activations whose calibration has state: CALIBRATE updates their statistics, CONVERT (and Fold)
  // freezes the scale that these hold, SERVE reads it. Activations that are calibrated from themselves have nothing to
  // freeze.
  QuantMode data_mode = QuantMode::kTrain;
  // A rule that hits nothing is an error.
  bool strict = true;
  // A side in mode SERVE whose frozen tensor is missing is quantized in the operation instead, with its statistics as
  // they are if its calibration has state.
  bool allow_requantize = false;
  std::string shared_key_slot = kSharedKeySlot;  // of rules without a key_slot
  QuantRules quant_rules = {};
};

struct InjectReport {
  struct Contraction {
    std::string name;                      // the first ContractionName of the scope that no other contraction has
    std::string operands;                  // "f32[2,3], f32[3,4]"
    int rule;                              // position of the rule that hit it; -1: none
    std::vector<std::string> requantized;  // sides that allow_requantize quantizes each time
  };
  std::vector<Contraction> contractions;
  std::vector<int> hits;               // by rule
  std::vector<std::string> unmatched;  // names of the rules without hits
  // One line for each contraction and unmatched rule.
  std::string ToString(const InjectConfig& config) const;
};

// `frozen` are the tensors that can be served, null when that is not known yet; `report`, if not null, is filled in any
// case but for wrong rules.
// Errors: InvalidArgument for a pattern that is none, an operation that cannot be quantized, a rule that hits nothing
// (when strict); NotFound, naming the slot, for a frozen tensor that is missing; and those of QuantizedDot: a
// configuration that is illegal for a contraction that it hits, with the contraction's scope, operands and source line.
absl::StatusOr<Program> Inject(const Program& program, const InjectConfig& config, const SlotValues* frozen = nullptr,
                               InjectReport* report = nullptr);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_INJECT_H_
