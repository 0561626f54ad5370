#include "serving/plan/convert_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/quant/weights/ggml_types.h"
#include "aqt/quant/weights/microscaled.h"
#include "configs/config_text.h"
#include "configs/convert.pb.h"
#include "google/protobuf/text_format.h"
#include "re2/re2.h"
#include "serving/formats/named_schemes.h"
#include "serving/formats/weight_formats.h"
#include "serving/plan/presets.h"
#include "serving/plan/scheme_preset.h"

namespace aqt::serving {
namespace {

using config::Place;

absl::Status CheckPattern(const std::string& pattern, const Place& place) {
  if (absl::StartsWith(pattern, "re:")) {
    return place.Error(
        absl::StrCat("\"", pattern, "\" has the prefix \"re:\" of quantization_config; every pattern here is a ",
                     "regular expression, which must match the whole name: write \"", pattern.substr(3), "\"",
                     absl::EndsWith(pattern, ".*") ? "" : ", with \".*\" after it if more may follow"));
  }
  const RE2 re(pattern, RE2::Quiet);
  if (re.ok()) return absl::OkStatus();
  return place.Error(absl::StrCat("\"", pattern, "\" is not a valid regular expression (RE2): ", re.error()));
}

ValueType ReadType(config::NumberType type) {
  return type == config::NUMBER_TYPE_FLOAT ? ValueType::kFloat : ValueType::kInt;
}

// Only avoids overflow; later checks compare the number with the scheme.
template <class Message>
absl::StatusOr<int> ReadBits(const Message& message, const Place& place) {
  constexpr uint32_t kMost = 1000;
  if (message.num_bits() <= kMost) return static_cast<int>(message.num_bits());
  return place.In(message, "num_bits")
      .Error(absl::StrCat("num_bits is ", message.num_bits(), "; expected 2 to 8 for integers, 4, 6 or 8 for floats"));
}

absl::StatusOr<WeightScheme> ReadWeights(const config::Weights& message, const Place& place) {
  WeightScheme scheme;
  if (!message.has_num_bits()) return place.Error("weights need num_bits: 2 to 8 for integers, 4, 6 or 8 for floats");
  AQT_ASSIGN_OR_RETURN(scheme.num_bits, ReadBits(message, place));
  scheme.symmetric = !message.has_symmetric() || message.symmetric();
  scheme.type = ReadType(message.type());
  switch (message.granularity_case()) {
    case config::Weights::kPerTensor: scheme.strategy = WeightStrategy::kTensor; break;
    case config::Weights::kPerChannel: scheme.strategy = WeightStrategy::kChannel; break;
    case config::Weights::kPerGroup:
      scheme.strategy = WeightStrategy::kGroup;
      scheme.group_size = message.per_group().size();
      if (scheme.group_size == 0) return place.In(message, "per_group").Error("per_group needs a positive size, got 0");
      break;
    case config::Weights::kPerBlock:
      scheme.strategy = WeightStrategy::kBlock;
      scheme.block = {message.per_block().rows(), message.per_block().columns()};
      if (scheme.block[0] == 0 || scheme.block[1] == 0) {
        return place.In(message, "per_block").Error("per_block needs positive rows and columns");
      }
      break;
    case config::Weights::kPerMxGroup:
    case config::Weights::kPerNvfp4Group:
      scheme.strategy = WeightStrategy::kGroup;
      scheme.scale_type = message.has_per_mx_group() ? ScaleType::kE8M0 : ScaleType::kE4M3;
      scheme.group_size = compressed_tensors::GroupSizeOf(scheme.scale_type);
      break;
    case config::Weights::GRANULARITY_NOT_SET:
      return place.Error(
          "weights need one of per_tensor, per_channel, per_group, per_block, per_mx_group, per_nvfp4_group");
  }
  return scheme;
}

absl::StatusOr<InputScheme> ReadInput(const config::InputActivations& message, const Place& place) {
  InputScheme scheme;
  if (!message.has_num_bits()) {
    return place.Error("input_activations need num_bits: 2 to 8 for integers, 4, 6 or 8 for floats");
  }
  AQT_ASSIGN_OR_RETURN(scheme.num_bits, ReadBits(message, place));
  scheme.symmetric = !message.has_symmetric() || message.symmetric();
  scheme.type = ReadType(message.type());
  switch (message.range_case()) {
    case config::InputActivations::kDynamicPerToken: scheme.strategy = InputStrategy::kToken; break;
    case config::InputActivations::kDynamicPerTensor: scheme.strategy = InputStrategy::kTensor; break;
    case config::InputActivations::kDynamicPerGroup:
      scheme.strategy = InputStrategy::kGroup;
      scheme.group_size = message.dynamic_per_group().size();
      if (scheme.group_size == 0)
        return place.In(message, "dynamic_per_group").Error("dynamic_per_group needs a positive size, got 0");
      break;
    case config::InputActivations::kStaticPerTensor:
      scheme.strategy = InputStrategy::kTensor;
      scheme.dynamic = false;
      break;
    case config::InputActivations::kDynamicPerMxGroup:
    case config::InputActivations::kLocalPerNvfp4Group:
      scheme.strategy = InputStrategy::kGroup;
      scheme.scale_type = message.has_dynamic_per_mx_group() ? ScaleType::kE8M0 : ScaleType::kE4M3;
      scheme.group_size = compressed_tensors::GroupSizeOf(scheme.scale_type);
      break;
    case config::InputActivations::RANGE_NOT_SET:
      return place.Error(
          "input_activations need one of dynamic_per_token, dynamic_per_tensor, dynamic_per_group, static_per_tensor, "
          "dynamic_per_mx_group, local_per_nvfp4_group");
  }
  return scheme;
}

// "pack-quantized" for FORMAT_PACK_QUANTIZED.
std::string FormatName(config::Format format) {
  absl::string_view name = config::Format_Name(format);
  absl::ConsumePrefix(&name, "FORMAT_");
  return absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"_", "-"}});
}

absl::StatusOr<Scheme> ReadScheme(const config::Scheme& message, const Place& place) {
  Scheme scheme;
  if (!message.has_weights()) return place.Error("quantize needs weights");
  AQT_ASSIGN_OR_RETURN(scheme.weights, ReadWeights(message.weights(), place.In(message, "weights")));
  if (message.has_input_activations()) {
    AQT_ASSIGN_OR_RETURN(scheme.input, ReadInput(message.input_activations(), place.In(message, "input_activations")));
  }
  scheme.format = message.format() == config::FORMAT_UNSPECIFIED
                      ? DefaultFormat(scheme.weights, scheme.input.has_value())
                      : FindWeightFormat(FormatName(message.format()));
  if (scheme.format == nullptr) {
    return place.In(message, "format")
        .Error(absl::StrCat(config::Format_Name(message.format()), " is not a format; ", WeightFormatNames(), " are"));
  }
  AQT_RETURN_IF_ERROR(place.At(Validate(scheme)));
  return scheme;
}

// Fields that only `quantize` has.
absl::Status CheckOnlyQuantize(const config::ConvertRule& message, absl::string_view action, const Place& place) {
  if (message.quantize_tied()) {
    return place.In(message, "quantize_tied")
        .Error(absl::StrCat("quantize_tied is only valid with quantize, not with ", action));
  }
  if (message.has_on_split_group()) {
    return place.In(message, "on_split_group")
        .Error(absl::StrCat("on_split_group is only valid with quantize, not with ", action));
  }
  return absl::OkStatus();
}

absl::StatusOr<ggml::Type> ReadGguf(const config::Gguf& message, const Place& place) {
  std::vector<absl::string_view> names;
  for (const ggml::Type type : ggml::WrittenTypes()) {
    names.push_back(ggml::InfoOf(type).name);
    if (absl::EqualsIgnoreCase(names.back(), message.type())) return type;
  }
  return place.Error(absl::StrCat("gguf has the type \"", io::Printable(message.type()), "\"; ",
                                  absl::StrJoin(names, ", "), " are written"));
}

absl::StatusOr<ConfigRule> ReadRule(const config::ConvertRule& message, const Place& place) {
  ConfigRule rule;
  if (message.match().empty()) return place.Error("a rule needs match, a regular expression");
  AQT_RETURN_IF_ERROR(CheckPattern(message.match(), place.In(message, "match")));
  rule.match = message.match();
  rule.name = message.name().empty() ? message.match() : message.name();
  rule.override_ignore = message.override_ignore();
  rule.quantize_tied = message.quantize_tied();
  rule.keep_unsuitable = message.on_unsuitable() == config::ON_UNSUITABLE_KEEP_FLOAT;
  if (message.on_split_group() == config::ON_SPLIT_GROUP_KEEP_FLOAT) rule.on_split_group = OnSplitGroup::kKeepFloat;
  if (message.on_split_group() == config::ON_SPLIT_GROUP_QUANTIZE) rule.on_split_group = OnSplitGroup::kQuantize;
  switch (message.action_case()) {
    case config::ConvertRule::kQuantize: {
      AQT_ASSIGN_OR_RETURN(rule.scheme, ReadScheme(message.quantize(), place.In(message, "quantize")));
      break;
    }
    case config::ConvertRule::kKeepFloat:
      if (rule.keep_unsuitable)
        return place.In(message, "on_unsuitable")
            .Error("on_unsuitable is only valid with quantize, not with keep_float");
      AQT_RETURN_IF_ERROR(CheckOnlyQuantize(message, "keep_float", place));
      break;
    case config::ConvertRule::kGguf: {
      AQT_ASSIGN_OR_RETURN(rule.gguf, ReadGguf(message.gguf(), place.In(message, "gguf")));
      AQT_RETURN_IF_ERROR(CheckOnlyQuantize(message, "gguf", place));
      break;
    }
    case config::ConvertRule::ACTION_NOT_SET: return place.Error("a rule needs quantize, keep_float or gguf");
  }
  return rule;
}

}  // namespace

absl::StatusOr<ConvertConfig> ParseConvertConfig(absl::string_view text, absl::string_view source) {
  config::Convert message;
  google::protobuf::TextFormat::ParseInfoTree tree;
  AQT_RETURN_IF_ERROR(config::ParseText(text, source, /*renames=*/{}, &message, &tree));
  const Place place(source, &tree);
  AQT_RETURN_IF_ERROR(config::CheckSchema(message, place));
  std::vector<config::EmbeddedText> presets = ConvertPresets();
  // The presets of the package have no files; their text is made when one is the base.
  const std::string generated = SchemePresetText(message.base());
  if (!generated.empty()) presets.push_back({message.base(), generated});
  AQT_RETURN_IF_ERROR(config::ResolveBase(presets, place, &message));
  if (message.rule_size() == 0) return place.Error("there is neither a rule nor a base: nothing would be quantized");

  ConvertConfig result;
  for (int i = 0; i < message.rule_size(); ++i) {
    AQT_ASSIGN_OR_RETURN(ConfigRule rule, ReadRule(message.rule(i), place.In(message, "rule", i)));
    result.rules.push_back(std::move(rule));
  }
  for (int i = 0; i < message.ignore_size(); ++i) {
    AQT_RETURN_IF_ERROR(CheckPattern(message.ignore(i), place.In(message, "ignore", i)));
  }
  result.ignore.assign(message.ignore().begin(), message.ignore().end());
  result.default_ignore = !message.has_default_ignore() || message.default_ignore();
  if (message.weight_rules() == config::WEIGHT_RULES_AQT) result.weight_rules = WeightRules::kAqt;
  result.keep_non_finite = message.non_finite() == config::NON_FINITE_KEEP_FLOAT;
  if (message.experts() == config::EXPERTS_SPLIT) result.experts = Experts::kSplit;
  if (message.experts() == config::EXPERTS_KEEP) result.experts = Experts::kKeep;
  for (int i = 0; i < message.family_size(); ++i) {
    AQT_ASSIGN_OR_RETURN(ModelFamily family, ReadModelFamily(message.family(i), place.In(message, "family", i)));
    result.families.push_back(std::move(family));
  }
  result.text = config::PrintText(message);
  return result;
}

std::string TextWith(const ConvertConfig& config, WeightRules weight_rules, bool keep_non_finite, Experts experts) {
  if (config.weight_rules == weight_rules && config.keep_non_finite == keep_non_finite && config.experts == experts) {
    return config.text;
  }
  config::Convert message;
  google::protobuf::TextFormat::ParseInfoTree tree;
  // This is the text of a message, so parsing succeeds.
  config::ParseText(config.text, "", /*renames=*/{}, &message, &tree).IgnoreError();
  message.set_weight_rules(weight_rules == WeightRules::kAqt ? config::WEIGHT_RULES_AQT
                                                             : config::WEIGHT_RULES_COMPRESSED_TENSORS);
  message.set_non_finite(keep_non_finite ? config::NON_FINITE_KEEP_FLOAT : config::NON_FINITE_ERROR);
  if (config.experts != experts) {
    message.set_experts(experts == Experts::kAuto    ? config::EXPERTS_AUTO
                        : experts == Experts::kSplit ? config::EXPERTS_SPLIT
                                                     : config::EXPERTS_KEEP);
  }
  return config::PrintText(message);
}

absl::StatusOr<ConvertConfig> ConvertPreset(absl::string_view name) {
  const std::string source = absl::StrCat("preset ", name);
  const std::vector<config::EmbeddedText> presets = ConvertPresets();
  for (const config::EmbeddedText& preset : presets) {
    if (preset.name == name) return ParseConvertConfig(preset.text, source);
  }
  if (const std::string text = SchemePresetText(name); !text.empty()) return ParseConvertConfig(text, source);
  return absl::InvalidArgumentError(absl::StrCat("there is no preset \"", io::Printable(name), "\"; presets are ",
                                                 absl::StrJoin(ConvertPresetNames(), ", ")));
}

std::vector<std::string> ConvertPresetNames() {
  std::vector<std::string> names = config::PresetNames(ConvertPresets());
  const std::vector<std::string> of_package = SchemeNames();
  names.insert(names.end(), of_package.begin(), of_package.end());
  return names;
}

}  // namespace aqt::serving
