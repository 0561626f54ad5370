#include "aqt/transforms/precision/amp_proto.h"

#include <utility>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "configs/amp.pb.h"
#include "configs/config_text.h"
#include "configs/enum_values.h"
#include "google/protobuf/text_format.h"

namespace aqt {
namespace {

using config::NumberOf;
using config::Place;
using config::ReadEnum;

// The values of the enums, in the order of the proto's numbers, starting at 1.
constexpr AmpRule::Kind kPrecisions[] = {AmpRule::Kind::kOriginal, AmpRule::Kind::kCompute, AmpRule::Kind::kWidest};
constexpr DType kDTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

// Names in jaxamp and AmpOptions, and their names here.
constexpr config::Rename kRenames[] = {
    {"Amp", "amp_policy", "rules { ... }"},
    {"Amp", "policy", "rules { ... }"},
    {"Amp", "rule", "rules { ... }"},
    {"AmpRule", "scope", "key"},
    {"AmpRule", "op", "key"},
    {"", "f16", "AMP_DTYPE_F16"},
    {"", "bf16", "AMP_DTYPE_BF16"},
    {"", "f32", "AMP_DTYPE_F32"},
    {"", "original", "AMP_PRECISION_ORIGINAL"},
    {"", "compute", "AMP_PRECISION_COMPUTE"},
    {"", "widest", "AMP_PRECISION_WIDEST"},
};

absl::StatusOr<AmpRule> ReadRule(const config::AmpRule& message, const Place& place) {
  if (message.key().empty()) return place.Error("a rule needs a key: the name of a scope or of an operation");
  if (message.has_precision() == message.has_dtype()) {
    return place.Error("a rule needs a precision or a dtype, and not both");
  }
  if (message.has_dtype()) {
    DType dtype = DType::kF32;
    AQT_RETURN_IF_ERROR(ReadEnum(kDTypes, message.dtype(), place.In(message, "dtype"), &dtype));
    return UsePrecision(dtype);
  }
  AmpRule rule;
  AQT_RETURN_IF_ERROR(ReadEnum(kPrecisions, message.precision(), place.In(message, "precision"), &rule.kind));
  return rule;
}

bool SameRule(const AmpRule& a, const AmpRule& b) {
  return a.kind == b.kind && (a.kind != AmpRule::Kind::kDType || a.dtype == b.dtype);
}

}  // namespace

absl::StatusOr<AmpOptions> AmpOptionsFromText(absl::string_view textproto, absl::string_view source) {
  config::Amp message;
  google::protobuf::TextFormat::ParseInfoTree tree;
  AQT_RETURN_IF_ERROR(config::ParseText(textproto, source, kRenames, &message, &tree));
  const Place place(source, &tree);
  AQT_RETURN_IF_ERROR(config::CheckSchema(message, place));
  AmpOptions options;
  if (message.has_compute_dtype()) {
    const Place own = place.In(message, "compute_dtype");
    AQT_RETURN_IF_ERROR(ReadEnum(kDTypes, message.compute_dtype(), own, &options.compute_dtype));
    if (options.compute_dtype == DType::kF64) return own.Error("compute_dtype is f16, bf16 or f32");
  }
  if (message.no_defaults()) options.policy.clear();
  for (int i = 0; i < message.remove_size(); ++i) {
    if (options.policy.erase(message.remove(i)) == 0) {
      return place.In(message, "remove", i).Error(absl::StrCat("\"", message.remove(i), "\" is no default rule"));
    }
  }
  absl::btree_set<std::string> keys;
  for (int i = 0; i < message.rules_size(); ++i) {
    const config::AmpRule& rule = message.rules(i);
    const Place own = place.In(message, "rules", i);
    AQT_ASSIGN_OR_RETURN(AmpRule read, ReadRule(rule, own));
    if (!keys.insert(rule.key()).second) {
      return own.Error(absl::StrCat("there are two rules with the key \"", rule.key(), "\""));
    }
    options.policy[rule.key()] = std::move(read);
  }
  return options;
}

absl::StatusOr<std::string> ToText(const AmpOptions& options) {
  const AmpPolicy defaults = DefaultAmpPolicy();
  config::Amp message;
  message.set_schema(1);
  message.set_compute_dtype(static_cast<config::AmpDType>(NumberOf(kDTypes, options.compute_dtype)));
  for (const auto& [key, rule] : defaults) {
    if (!options.policy.contains(key)) message.add_remove(key);
  }
  for (const auto& [key, rule] : options.policy) {
    if (rule.kind == AmpRule::Kind::kFunction) {
      return absl::InvalidArgumentError(absl::StrCat("the rule of \"", key, "\" is a function, which has no text"));
    }
    if (const auto it = defaults.find(key); it != defaults.end() && SameRule(it->second, rule)) continue;
    config::AmpRule* out = message.add_rules();
    out->set_key(key);
    if (rule.kind == AmpRule::Kind::kDType) {
      out->set_dtype(static_cast<config::AmpDType>(NumberOf(kDTypes, rule.dtype)));
    } else {
      out->set_precision(static_cast<config::AmpPrecision>(NumberOf(kPrecisions, rule.kind)));
    }
  }
  return config::PrintText(message);
}

}  // namespace aqt
