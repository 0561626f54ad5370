#include "aqt/transforms/quantize/inject_proto.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/text/config_proto.h"
#include "aqt/quant/text/semantics_proto.h"
#include "configs/config_text.h"
#include "configs/embedded_text.h"
#include "configs/enum_values.h"
#include "configs/inject.pb.h"
#include "configs/inject_presets.h"
#include "google/protobuf/text_format.h"
#include "re2/re2.h"

namespace aqt {
namespace {

using config::NumberOf;
using config::Place;
using config::ReadEnum;
using internal::kModes;

// The values of the enum, in the order of the proto's numbers, starting at 1.
constexpr OperandOrigin kOrigins[] = {OperandOrigin::kAny, OperandOrigin::kParam, OperandOrigin::kData};

// Names in AQT, InjectConfig or the converter's configuration, and their names here.
constexpr config::Rename kRenames[] = {
    {"Inject", "rule", "rules { ... }"},
    {"Inject", "quant_rules", "prng_layout, arithmetic and weight_only themselves"},
    {"Inject", "semantics", "arithmetic, compat, prng_layout and weight_only themselves"},
    {"Inject", "base", "a dot_general { base: ... } in each rule; a whole Inject has no base"},
    {"InjectRule", "match", "scope"},
    {"InjectRule", "base", "dot_general { base: ... }"},
    {"", "TRAIN", "QUANT_MODE_TRAIN"},
    {"", "CALIBRATE", "QUANT_MODE_CALIBRATE"},
    {"", "CONVERT", "QUANT_MODE_CONVERT"},
    {"", "SERVE", "QUANT_MODE_SERVE"},
};

// kRenames and those of the nested contractions.
std::vector<config::Rename> Renames() {
  std::vector<config::Rename> all(std::begin(kRenames), std::end(kRenames));
  const absl::Span<const config::Rename> inner = DotGeneralRenames();
  all.insert(all.end(), inner.begin(), inner.end());
  return all;
}

absl::Status ReadMode(bool has, int number, const Place& place, std::optional<QuantMode>* out) {
  if (!has) return absl::OkStatus();
  return ReadEnum(kModes, number, place, &out->emplace());
}

// How a rule quantizes. An accumulator dtype that does not fit is an error, except in a rule only for convolutions,
// which ignore it.
absl::StatusOr<DotGeneralConfig> ReadDotGeneral(const config::InjectRule& message, const std::vector<std::string>& ops,
                                                const Compat& compat, const Place& place) {
  absl::StatusOr<DotGeneralConfig> checked = FromProto(message.dot_general(), place.In(message, "dot_general"));
  const auto is_conv = [](const std::string& op) { return op == "conv"; };
  const bool ignored = compat.conv_ignores_accumulator_dtype && std::all_of(ops.begin(), ops.end(), is_conv);
  if (checked.ok() || !ignored) return checked;
  absl::StatusOr<DotGeneralConfig> planned = PlannedFromProto(message.dot_general());
  return planned.ok() ? std::move(planned) : std::move(checked);  // whose error has a place
}

absl::StatusOr<InjectRule> ReadRule(const config::InjectRule& message, const Compat& compat, const Place& place) {
  InjectRule rule;
  rule.name = message.name();
  if (message.has_scope()) rule.scope = message.scope();
  RE2::Options options;
  options.set_log_errors(false);
  if (const RE2 pattern(rule.scope, options); !pattern.ok()) {
    return place.In(message, "scope")
        .Error(absl::StrCat("\"", rule.scope, "\" is not a valid regular expression: ", pattern.error()));
  }
  if (message.ops_size() > 0) rule.ops.assign(message.ops().begin(), message.ops().end());
  for (int i = 0; i < message.ops_size(); ++i) {
    const absl::Status known = ValidateKind(message.ops(i));
    if (!known.ok()) return place.In(message, "ops", i).Error(known.message());
  }
  if (message.has_lhs_origin()) {
    AQT_RETURN_IF_ERROR(ReadEnum(kOrigins, message.lhs_origin(), place.In(message, "lhs_origin"), &rule.lhs_origin));
  }
  if (message.has_rhs_origin()) {
    AQT_RETURN_IF_ERROR(ReadEnum(kOrigins, message.rhs_origin(), place.In(message, "rhs_origin"), &rule.rhs_origin));
  }
  AQT_RETURN_IF_ERROR(
      ReadMode(message.has_lhs_mode(), message.lhs_mode(), place.In(message, "lhs_mode"), &rule.lhs_mode));
  AQT_RETURN_IF_ERROR(
      ReadMode(message.has_rhs_mode(), message.rhs_mode(), place.In(message, "rhs_mode"), &rule.rhs_mode));
  if (message.has_key_slot()) rule.key_slot = message.key_slot();
  switch (message.action_case()) {
    case config::InjectRule::kDotGeneral: {
      AQT_ASSIGN_OR_RETURN(rule.dot_general, ReadDotGeneral(message, rule.ops, compat, place));
      break;
    }
    case config::InjectRule::kKeep:
      if (!message.keep()) return place.In(message, "keep").Error("keep can only be true; give a dot_general instead");
      break;
    case config::InjectRule::ACTION_NOT_SET:
      return place.Error("a rule needs dot_general { ... }, or keep: true to leave the contraction as it is");
  }
  return rule;
}

}  // namespace

absl::StatusOr<InjectConfig> InjectConfigFromText(absl::string_view textproto, absl::string_view source) {
  config::Inject message;
  google::protobuf::TextFormat::ParseInfoTree tree;
  AQT_RETURN_IF_ERROR(config::ParseText(textproto, source, Renames(), &message, &tree));
  const Place place(source, &tree);
  AQT_RETURN_IF_ERROR(config::CheckSchema(message, place));
  InjectConfig out;
  if (message.rules_size() == 0) return place.Error("there are no rules: nothing would be quantized");
  AQT_RETURN_IF_ERROR(internal::ReadSemantics(message, place, &out.semantics));
  for (int i = 0; i < message.rules_size(); ++i) {
    AQT_ASSIGN_OR_RETURN(InjectRule rule,
                         ReadRule(message.rules(i), out.semantics.compat, place.In(message, "rules", i)));
    out.rules.push_back(std::move(rule));
  }
  if (message.has_param_mode()) {
    AQT_RETURN_IF_ERROR(ReadEnum(kModes, message.param_mode(), place.In(message, "param_mode"), &out.param_mode));
  }
  if (message.has_data_mode()) {
    AQT_RETURN_IF_ERROR(ReadEnum(kModes, message.data_mode(), place.In(message, "data_mode"), &out.data_mode));
  }
  if (message.has_strict()) out.strict = message.strict();
  out.allow_requantize = message.allow_requantize();
  if (message.has_shared_key_slot()) out.shared_key_slot = message.shared_key_slot();
  return out;
}

absl::StatusOr<InjectConfig> InjectConfigFromPreset(absl::string_view name) {
  const std::vector<config::EmbeddedText> presets = config::InjectPresets();
  for (const config::EmbeddedText& preset : presets) {
    if (preset.name == name) return InjectConfigFromText(preset.text, absl::StrCat("preset ", name));
  }
  return absl::InvalidArgumentError(config::NoSuchPreset(name, presets));
}

std::vector<std::string> InjectPresetNames() { return config::PresetNames(config::InjectPresets()); }

std::string ToText(const InjectConfig& config) {
  const InjectConfig defaults;
  const InjectRule default_rule;
  config::Inject message;
  message.set_schema(1);
  for (const InjectRule& rule : config.rules) {
    config::InjectRule* out = message.add_rules();
    if (!rule.name.empty()) out->set_name(rule.name);
    out->set_scope(rule.scope);
    if (rule.ops != default_rule.ops) {
      for (const std::string& op : rule.ops) out->add_ops(op);
    }
    const auto origin = [](OperandOrigin value) {
      return static_cast<config::OperandOrigin>(NumberOf(kOrigins, value));
    };
    if (rule.lhs_origin != default_rule.lhs_origin) out->set_lhs_origin(origin(rule.lhs_origin));
    if (rule.rhs_origin != default_rule.rhs_origin) out->set_rhs_origin(origin(rule.rhs_origin));
    if (rule.dot_general.has_value()) *out->mutable_dot_general() = ToProto(*rule.dot_general);
    else out->set_keep(true);
    if (rule.lhs_mode.has_value()) out->set_lhs_mode(internal::ToProto(*rule.lhs_mode));
    if (rule.rhs_mode.has_value()) out->set_rhs_mode(internal::ToProto(*rule.rhs_mode));
    if (rule.key_slot.has_value()) out->set_key_slot(*rule.key_slot);
  }
  if (config.param_mode != defaults.param_mode) {
    message.set_param_mode(internal::ToProto(config.param_mode));
  }
  if (config.data_mode != defaults.data_mode) {
    message.set_data_mode(internal::ToProto(config.data_mode));
  }
  if (config.strict != defaults.strict) message.set_strict(config.strict);
  if (config.allow_requantize) message.set_allow_requantize(true);
  if (config.shared_key_slot != defaults.shared_key_slot) message.set_shared_key_slot(config.shared_key_slot);
  internal::WriteSemantics(config.semantics, &message);
  return config::PrintText(message);
}

}  // namespace aqt
