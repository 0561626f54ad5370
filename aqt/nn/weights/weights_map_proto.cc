#include "aqt/nn/weights/weights_map_proto.h"

#include <utility>

#include "absl/status/status.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/program.h"
#include "configs/config_text.h"
#include "configs/weights_map.pb.h"
#include "google/protobuf/text_format.h"

namespace aqt::nn {
namespace {

using config::Place;

// Names that users may expect, and their names here.
constexpr config::Rename kRenames[] = {
    {"WeightsMap", "rule", "rules { ... }"},
    {"WeightRule", "slot", "param"},
    {"WeightRule", "path", "param"},
    {"WeightRule", "name", "tensor"},
    {"WeightRule", "permutation", "transpose"},
    {"WeightRule", "dtype", "cast: true, to the dtype of the parameter"},
    {"WeightSlice", "start", "begin"},
    {"WeightSlice", "limit", "end"},
};

absl::StatusOr<WeightRule> ReadRule(const config::WeightRule& message, const Place& place) {
  WeightRule rule;
  if (message.tensor().empty()) return place.Error("a rule needs a tensor: a regular expression for its name");
  if (message.has_param() + message.has_stat() + message.ignore() != 1) {
    return place.Error("a rule needs one of param, stat and ignore: true");
  }
  if (message.ignore() &&
      (message.has_slice() || message.transpose_size() > 0 || message.has_reshape() || message.has_cast())) {
    return place.Error("a tensor that is ignored is neither sliced, transposed, reshaped nor cast");
  }
  rule.tensor = message.tensor();
  if (message.has_param()) rule.slot = Slot{SlotKind::kParam, message.param()};
  if (message.has_stat()) rule.slot = Slot{SlotKind::kStat, message.stat()};
  if (message.has_slice()) {
    const config::WeightSlice& slice = message.slice();
    if (!slice.has_axis() || !slice.has_begin() || !slice.has_end()) {
      return place.In(message, "slice").Error("a slice needs an axis, begin and end");
    }
    if (slice.has_parts() && slice.parts() < 1) {
      return place.In(message, "slice").Error("parts is a positive number");
    }
    rule.slice = WeightSlice{slice.axis(), slice.begin(), slice.end(), slice.parts()};
  }
  rule.transpose.assign(message.transpose().begin(), message.transpose().end());
  rule.reshape = message.reshape();
  rule.cast = message.cast();
  return rule;
}

}  // namespace

absl::StatusOr<WeightsMap> WeightsMapFromText(absl::string_view textproto, absl::string_view source) {
  config::WeightsMap message;
  google::protobuf::TextFormat::ParseInfoTree tree;
  AQT_RETURN_IF_ERROR(config::ParseText(textproto, source, kRenames, &message, &tree));
  const Place place(source, &tree);
  AQT_RETURN_IF_ERROR(config::CheckSchema(message, place));
  WeightsMap map;
  for (int i = 0; i < message.rules_size(); ++i) {
    AQT_ASSIGN_OR_RETURN(WeightRule rule, ReadRule(message.rules(i), place.In(message, "rules", i)));
    map.rules.push_back(std::move(rule));
  }
  map.missing.assign(message.missing().begin(), message.missing().end());
  return map;
}

std::string ToText(const WeightsMap& map) {
  config::WeightsMap message;
  message.set_schema(1);
  for (const WeightRule& rule : map.rules) {
    config::WeightRule& out = *message.add_rules();
    out.set_tensor(rule.tensor);
    if (!rule.slot.has_value()) {
      out.set_ignore(true);
      continue;
    }
    (rule.slot->kind == SlotKind::kStat ? *out.mutable_stat() : *out.mutable_param()) = rule.slot->path;
    if (rule.slice.has_value()) {
      config::WeightSlice& slice = *out.mutable_slice();
      slice.set_axis(rule.slice->axis);
      slice.set_begin(rule.slice->begin);
      slice.set_end(rule.slice->end);
      if (rule.slice->parts > 0) slice.set_parts(rule.slice->parts);
    }
    for (const int64_t axis : rule.transpose) out.add_transpose(axis);
    if (rule.reshape) out.set_reshape(true);
    if (rule.cast) out.set_cast(true);
  }
  for (const std::string& missing : map.missing) message.add_missing(missing);
  return config::PrintText(message);
}

}  // namespace aqt::nn
