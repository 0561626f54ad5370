#ifndef AQT_MODELS_FAMILIES_ACTIVATION_H_
#define AQT_MODELS_FAMILIES_ACTIVATION_H_

#include <cstdint>
#include <string>

#include "aqt/graph/value.h"
#include "aqt/models/families/config_fields.h"

namespace aqt::models {

// A function of each element between two layers.
enum class Activation : uint8_t { kGelu, kGeluTanh, kQuickGelu, kRelu, kSigmoid, kSilu, kTanh };

// By its name in the field `name`; "gelu" if it is missing. Refuses other names.
Activation ReadActivation(ConfigFields& fields, const std::string& name);

Value Activate(const Value& x, Activation activation);

}  // namespace aqt::models

#endif  // AQT_MODELS_FAMILIES_ACTIVATION_H_
