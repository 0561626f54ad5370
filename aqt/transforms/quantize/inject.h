#ifndef AQT_TRANSFORMS_QUANTIZE_INJECT_H_
#define AQT_TRANSFORMS_QUANTIZE_INJECT_H_

// Quantizes a model that was written without quantization: rules select contractions of its program and say how to
// quantize each.
//
//   InjectConfig config;
//   config.rules.push_back({.scope = ".*/logits"});                                   // these stay as they are
//   config.rules.push_back({.scope = "mlp/.*", .dot_general = FullyQuantized()});
//   absl::StatusOr<Program> quantized = Inject(program, config);
//
// A rule names the operations that it quantizes: "dot_general" by default, "conv", "ragged_dot" and "einsum"
// (ops/contraction/contractions.h). lhs and rhs are the operands of the operation. For an einsum they are the operands
// of its equation, in whichever order they are multiplied (QuantizedContraction says what is exchanged). A convolution
// is quantized by dot_general.fwd, such as ConvGeneralDilatedMake gives; dlhs, drhs and a tiling are refused. An
// attention (ops/attention/attention.h) has two dot_generals, in the scopes "qk" and "av" below its own. If a rule
// quantizes one of them, the equation is replaced by its parts.
//
// Inject before taking gradients, so that each quantized contraction brings its own backward pass.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"

namespace aqt {

// What an operand depends on.
enum class OperandOrigin {
  kAny,
  kParam,  // only parameters, statistics, frozen inputs and constants: a weight
  kData,   // anything else: an activation
};

// Selects contractions and says how to quantize them.
struct InjectRule {
  bool operator==(const InjectRule&) const = default;
  std::string name = "";  // for messages; "rule <number>" when empty
  // A rule matches an equation if all of these match.
  std::string scope = ".*";                        // regular expression (RE2) for the full scope
  std::vector<std::string> ops = {"dot_general"};  // the operation's name is one of these
  OperandOrigin lhs_origin = OperandOrigin::kAny, rhs_origin = OperandOrigin::kAny;

  // How to quantize it; if unset, it stays as it is.
  std::optional<DotGeneralConfig> dot_general = std::nullopt;
  // See QuantizedDotOptions. If unset, the mode of a quantized side is InjectConfig::param_mode if its operand depends
  // only on parameters; otherwise InjectConfig::data_mode if its calibration has state; otherwise TRAIN. A CALIBRATE
  // without state to update becomes TRAIN.
  std::optional<QuantMode> lhs_mode = std::nullopt, rhs_mode = std::nullopt;
  std::optional<std::string> key_slot = std::nullopt;
};

// The rules of Inject, and the modes in which the selected contractions run.
struct InjectConfig {
  bool operator==(const InjectConfig&) const = default;
  // The first rule that matches an equation decides. Equations that no rule matches stay as they are.
  std::vector<InjectRule> rules;
  // The mode of weights, unless a rule sets one: TRAIN, then CONVERT (and Fold), then SERVE, with one set of rules.
  // Only TRAIN has gradients and therefore their keys.
  QuantMode param_mode = QuantMode::kTrain;
  // The same for activations whose calibration has state: CALIBRATE updates their statistics, CONVERT (and Fold)
  // freezes the scale derived from them, SERVE reads it. Activations that are calibrated from themselves have nothing
  // to freeze.
  QuantMode data_mode = QuantMode::kTrain;
  // A rule that matches nothing is an error.
  bool strict = true;
  // If the frozen tensor of a side in mode SERVE is missing, the side is quantized in the operation instead. If its
  // calibration has state, the current statistics are used.
  bool allow_requantize = false;
  std::string shared_key_slot = kSharedKeySlot;  // for rules without a key_slot
  Semantics semantics = {};
};

// What Inject did with each contraction.
struct InjectReport {
  struct Contraction {
    std::string op;                  // "dot_general", "conv", "ragged_dot" or "einsum"
    std::string name;                // the first ContractionName of the scope that no other contraction has
    std::string operands;            // "f32[2,3], f32[3,4]"
    int rule;                        // position of the matching rule; -1: none
    std::string lhs = {}, rhs = {};  // the result: "int8:s8", "float", "int4:s4 in QUANT_MODE_SERVE"; "" if unchanged
    std::vector<std::string> requantized = {};  // sides that allow_requantize quantizes each time
  };
  std::vector<Contraction> contractions;
  std::vector<int> hits;               // matches per rule
  std::vector<std::string> unmatched;  // names of the rules without matches
  // The number of quantized contractions per kind, and a line for each; then a line for each unmatched rule.
  std::string ToString(const InjectConfig& config) const;
};

// Quantizes the contractions of `program` that the rules of `config` match. `frozen` has the tensors that can be
// served; null if they are not known yet. `report`, if not null, is filled unless the rules themselves are wrong.
// Errors: InvalidArgument for an invalid regular expression, an operation that cannot be quantized, and a rule that
// matches nothing (if strict); NotFound, naming the slot, for a missing frozen tensor; and those of QuantizedDot, for a
// configuration that is illegal for a matched contraction, with the contraction's scope, operands and source line.
absl::StatusOr<Program> Inject(const Program& program, const InjectConfig& config, const SlotValues* frozen = nullptr,
                               InjectReport* report = nullptr);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_QUANTIZE_INJECT_H_
