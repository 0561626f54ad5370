#include "serving/convert_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "configs/convert.pb.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "re2/re2.h"
#include "serving/presets.h"

namespace aqt::serving {
namespace {

using google::protobuf::Message;
using google::protobuf::TextFormat;

// Keeps the first syntax error.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(absl::string_view source) : source_(source) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (message_.empty()) message_ = absl::StrCat(source_, ":", line + 1, ":", column + 1, ": ", message);
  }
  const std::string& message() const { return message_; }

 private:
  std::string source_;
  std::string message_;
};

// A message, and where in the text its fields stand.
class Place {
 public:
  Place(absl::string_view source, const TextFormat::ParseInfoTree* tree, int line, int column)
      : source_(source), tree_(tree), line_(line), column_(column) {}

  // The place of a field that is itself a message; the place of this message when the field is not set.
  Place In(const Message& message, const char* field, int index = -1) const {
    const auto* descriptor = message.GetDescriptor()->FindFieldByName(field);
    if (tree_ == nullptr) return *this;
    const auto at = tree_->GetLocation(descriptor, index);
    if (at.line < 0) return *this;
    const TextFormat::ParseInfoTree* nested = descriptor->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE
                                                  ? tree_->GetTreeForNested(descriptor, index)
                                                  : nullptr;
    return Place(source_, nested, at.line, at.column);
  }

  absl::Status Error(absl::string_view message) const { return absl::InvalidArgumentError(Text(message)); }
  absl::Status At(const absl::Status& status) const {
    return status.ok() ? status : absl::Status(status.code(), Text(status.message()));
  }

 private:
  std::string Text(absl::string_view message) const {
    return absl::StrCat(source_, ":", line_ + 1, ":", column_ + 1, ": ", message);
  }

  std::string source_;
  const TextFormat::ParseInfoTree* tree_;
  int line_, column_;
};

absl::Status CheckPattern(const std::string& pattern, const Place& place) {
  const RE2 re(pattern, RE2::Quiet);
  if (re.ok()) return absl::OkStatus();
  return place.Error(absl::StrCat("\"", pattern, "\" is no regular expression (RE2): ", re.error()));
}

absl::StatusOr<WeightScheme> ReadWeights(const config::Weights& message, const Place& place) {
  WeightScheme scheme;
  if (!message.has_num_bits()) return place.Error("weights need num_bits, from 2 to 8");
  scheme.num_bits = static_cast<int>(std::min<uint32_t>(message.num_bits(), 1000));
  scheme.symmetric = !message.has_symmetric() || message.symmetric();
  switch (message.granularity_case()) {
    case config::Weights::kPerTensor: scheme.strategy = WeightStrategy::kTensor; break;
    case config::Weights::kPerChannel: scheme.strategy = WeightStrategy::kChannel; break;
    case config::Weights::kPerGroup:
      scheme.strategy = WeightStrategy::kGroup;
      scheme.group_size = message.per_group().size();
      if (scheme.group_size == 0) return place.In(message, "per_group").Error("per_group needs a positive size");
      break;
    case config::Weights::GRANULARITY_NOT_SET:
      return place.Error("weights need one of per_tensor, per_channel, per_group");
  }
  return scheme;
}

absl::StatusOr<InputScheme> ReadInput(const config::InputActivations& message, const Place& place) {
  InputScheme scheme;
  if (!message.has_num_bits()) return place.Error("input_activations need num_bits, from 2 to 8");
  scheme.num_bits = static_cast<int>(std::min<uint32_t>(message.num_bits(), 1000));
  scheme.symmetric = !message.has_symmetric() || message.symmetric();
  switch (message.range_case()) {
    case config::InputActivations::kDynamicPerToken: scheme.strategy = InputStrategy::kToken; break;
    case config::InputActivations::kDynamicPerTensor: scheme.strategy = InputStrategy::kTensor; break;
    case config::InputActivations::kDynamicPerGroup:
      scheme.strategy = InputStrategy::kGroup;
      scheme.group_size = message.dynamic_per_group().size();
      if (scheme.group_size == 0) return place.In(message, "dynamic_per_group").Error("dynamic_per_group needs a positive size");
      break;
    case config::InputActivations::kStaticPerTensor:
      scheme.strategy = InputStrategy::kTensor;
      scheme.dynamic = false;
      break;
    case config::InputActivations::RANGE_NOT_SET:
      return place.Error(
          "input_activations need one of dynamic_per_token, dynamic_per_tensor, dynamic_per_group, static_per_tensor");
  }
  return scheme;
}

absl::StatusOr<Scheme> ReadScheme(const config::Scheme& message, const Place& place) {
  Scheme scheme;
  if (!message.has_weights()) return place.Error("quantize needs weights");
  AQT_ASSIGN_OR_RETURN(scheme.weights, ReadWeights(message.weights(), place.In(message, "weights")));
  if (message.has_input_activations()) {
    AQT_ASSIGN_OR_RETURN(scheme.input, ReadInput(message.input_activations(), place.In(message, "input_activations")));
  }
  switch (message.format()) {
    case config::FORMAT_INT_QUANTIZED: scheme.format = Format::kIntQuantized; break;
    case config::FORMAT_PACK_QUANTIZED: scheme.format = Format::kPackQuantized; break;
    default: scheme.format = DefaultFormat(message.has_input_activations()); break;
  }
  AQT_RETURN_IF_ERROR(place.At(Validate(scheme)));
  return scheme;
}

absl::StatusOr<ConfigRule> ReadRule(const config::ConvertRule& message, const Place& place) {
  ConfigRule rule;
  if (message.match().empty()) return place.Error("a rule needs match, a regular expression");
  AQT_RETURN_IF_ERROR(CheckPattern(message.match(), place.In(message, "match")));
  rule.match = message.match();
  rule.name = message.name().empty() ? message.match() : message.name();
  rule.override_ignore = message.override_ignore();
  rule.keep_unsuitable = message.on_unsuitable() == config::ON_UNSUITABLE_KEEP_FLOAT;
  switch (message.action_case()) {
    case config::ConvertRule::kQuantize: {
      AQT_ASSIGN_OR_RETURN(rule.scheme, ReadScheme(message.quantize(), place.In(message, "quantize")));
      break;
    }
    case config::ConvertRule::kKeepFloat:
      if (rule.keep_unsuitable) return place.In(message, "on_unsuitable").Error("on_unsuitable goes with quantize, not with keep_float");
      break;
    case config::ConvertRule::ACTION_NOT_SET: return place.Error("a rule needs quantize or keep_float");
  }
  return rule;
}

// Parses and checks one text on its own; `base` may still be open.
struct Source {
  config::Convert message;
  std::vector<ConfigRule> rules;
};

absl::StatusOr<Source> ReadSource(absl::string_view text, absl::string_view name) {
  Source source;
  FirstError errors(name);
  TextFormat::ParseInfoTree tree;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&tree);
  if (!parser.ParseFromString(std::string(text), &source.message)) return absl::InvalidArgumentError(errors.message());
  const config::Convert& message = source.message;
  const Place place(name, &tree, 0, 0);
  if (message.schema() != 1) {
    return place.In(message, "schema")
        .Error(message.has_schema() ? absl::StrCat("schema ", message.schema(), " is not known; this version reads schema 1")
                                    : "the first field must be  schema: 1");
  }
  for (int i = 0; i < message.rule_size(); ++i) {
    AQT_ASSIGN_OR_RETURN(ConfigRule rule, ReadRule(message.rule(i), place.In(message, "rule", i)));
    source.rules.push_back(std::move(rule));
  }
  for (int i = 0; i < message.ignore_size(); ++i) {
    AQT_RETURN_IF_ERROR(CheckPattern(message.ignore(i), place.In(message, "ignore", i)));
  }
  if (message.has_base()) {
    const std::vector<std::string> names = ConvertPresetNames();
    if (std::find(names.begin(), names.end(), message.base()) == names.end()) {
      return place.In(message, "base")
          .Error(absl::StrCat("there is no preset \"", message.base(), "\"; presets are ", absl::StrJoin(names, ", ")));
    }
  } else if (message.rule_size() == 0) {
    return place.Error("there is neither a rule nor a base: nothing would be quantized");
  }
  return source;
}

absl::StatusOr<Source> ReadMerged(absl::string_view text, absl::string_view name) {
  AQT_ASSIGN_OR_RETURN(Source source, ReadSource(text, name));
  if (!source.message.has_base()) return source;
  for (const EmbeddedText& preset : ConvertPresets()) {
    if (preset.name != source.message.base()) continue;
    AQT_ASSIGN_OR_RETURN(Source merged, ReadMerged(preset.text, absl::StrCat("preset ", preset.name)));
    if (source.message.rule_size() > 0) {  // lists replace
      merged.message.clear_rule();
      merged.rules = std::move(source.rules);
    }
    if (source.message.ignore_size() > 0) merged.message.clear_ignore();
    source.message.clear_base();
    merged.message.MergeFrom(source.message);
    return merged;
  }
  return absl::InternalError("a preset has vanished");
}

}  // namespace

absl::string_view ToString(WeightRules rules) {
  switch (rules) {
    case WeightRules::kCompressedTensors: return "compressed_tensors";
    case WeightRules::kAqt: return "aqt";
  }
  return "?";
}

absl::StatusOr<ConvertConfig> ParseConvertConfig(absl::string_view text, absl::string_view source_name) {
  AQT_ASSIGN_OR_RETURN(Source source, ReadMerged(text, source_name));
  const config::Convert& message = source.message;
  ConvertConfig config;
  config.rules = std::move(source.rules);
  config.ignore.assign(message.ignore().begin(), message.ignore().end());
  config.default_ignore = !message.has_default_ignore() || message.default_ignore();
  if (message.weight_rules() == config::WEIGHT_RULES_AQT) config.weight_rules = WeightRules::kAqt;
  config.keep_non_finite = message.non_finite() == config::NON_FINITE_KEEP_FLOAT;
  TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  if (!printer.PrintToString(message, &config.text)) return absl::InternalError("the configuration cannot be printed");
  return config;
}

absl::StatusOr<ConvertConfig> ConvertPreset(absl::string_view name) {
  for (const EmbeddedText& preset : ConvertPresets()) {
    if (preset.name == name) return ParseConvertConfig(preset.text, absl::StrCat("preset ", name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no preset \"", name, "\"; presets are ", absl::StrJoin(ConvertPresetNames(), ", ")));
}

std::vector<std::string> ConvertPresetNames() {
  std::vector<std::string> names;
  for (const EmbeddedText& preset : ConvertPresets()) names.push_back(preset.name);
  return names;
}

}  // namespace aqt::serving
