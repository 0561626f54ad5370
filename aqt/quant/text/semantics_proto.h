#ifndef AQT_QUANT_TEXT_SEMANTICS_PROTO_H_
#define AQT_QUANT_TEXT_SEMANTICS_PROTO_H_

// Semantics and modes to and from the enums of configs/inject.proto, for messages that contain them.

#include <string>

#include "absl/status/status.h"
#include "aqt/core/check.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "configs/config_text.h"
#include "configs/enum_values.h"
#include "configs/inject.pb.h"
#include "google/protobuf/descriptor.h"

namespace aqt::internal {

// The values of the enums, in the order of the proto's numbers, starting at 1.
inline constexpr QuantMode kModes[] = {QuantMode::kTrain, QuantMode::kCalibrate, QuantMode::kConvert,
                                       QuantMode::kServe};
inline constexpr PrngLayout kLayouts[] = {PrngLayout::kPartitionable, PrngLayout::kOriginal};
inline constexpr Arithmetic kArithmetics[] = {Arithmetic::kXlaCompatible, Arithmetic::kIeee};
inline constexpr WeightOnly kWeightOnly[] = {WeightOnly::kDigits, WeightOnly::kFloat};

inline config::QuantMode ToProto(QuantMode mode) {
  return static_cast<config::QuantMode>(config::NumberOf(kModes, mode));
}
inline config::PrngLayout ToProto(PrngLayout layout) {
  return static_cast<config::PrngLayout>(config::NumberOf(kLayouts, layout));
}

// The field of the same name in the proto.
inline const google::protobuf::FieldDescriptor* InProto(const CompatField& field) {
  const auto* found = config::Compat::descriptor()->FindFieldByName(std::string(field.name));
  AQT_CHECK(found != nullptr);
  return found;
}

// Sets the fields prng_layout, arithmetic, weight_only and compat of a message where they are not the default.
template <class Message>
void WriteSemantics(const Semantics& semantics, Message* out) {
  const Semantics defaults;
  if (semantics.prng_layout != defaults.prng_layout) out->set_prng_layout(ToProto(semantics.prng_layout));
  if (semantics.arithmetic != defaults.arithmetic) {
    out->set_arithmetic(static_cast<config::Arithmetic>(config::NumberOf(kArithmetics, semantics.arithmetic)));
  }
  if (semantics.weight_only != defaults.weight_only) {
    out->set_weight_only(static_cast<config::WeightOnly>(config::NumberOf(kWeightOnly, semantics.weight_only)));
  }
  for (const CompatField& field : CompatFields()) {
    if (!(semantics.compat.*field.member)) continue;
    config::Compat* compat = out->mutable_compat();
    compat->GetReflection()->SetBool(compat, InProto(field), true);
  }
}

// Reads these fields. InvalidArgument for an UNSPECIFIED value.
template <class Message>
absl::Status ReadSemantics(const Message& in, const config::Place& place, Semantics* out) {
  if (in.has_prng_layout()) {
    AQT_RETURN_IF_ERROR(config::ReadEnum(kLayouts, in.prng_layout(), place.In(in, "prng_layout"), &out->prng_layout));
  }
  if (in.has_arithmetic()) {
    AQT_RETURN_IF_ERROR(config::ReadEnum(kArithmetics, in.arithmetic(), place.In(in, "arithmetic"), &out->arithmetic));
  }
  if (in.has_weight_only()) {
    AQT_RETURN_IF_ERROR(
        config::ReadEnum(kWeightOnly, in.weight_only(), place.In(in, "weight_only"), &out->weight_only));
  }
  for (const CompatField& field : CompatFields()) {
    out->compat.*field.member = in.compat().GetReflection()->GetBool(in.compat(), InProto(field));
  }
  return absl::OkStatus();
}

}  // namespace aqt::internal

#endif  // AQT_QUANT_TEXT_SEMANTICS_PROTO_H_
