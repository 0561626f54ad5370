#ifndef AQT_SERVING_FAMILIES_MODULE_NAME_H_
#define AQT_SERVING_FAMILIES_MODULE_NAME_H_

// The parts of a module's name.

#include <string>

#include "absl/strings/string_view.h"

namespace aqt::serving {

// "layers.0.mlp" for "layers.0.mlp.up"; empty for a name without a dot.
absl::string_view ParentOf(absl::string_view module);
// "up" for "layers.0.mlp.up".
absl::string_view LastPartOf(absl::string_view module);
// The name without trailing numbers: "lm_heads" for "lm_heads.2". A name of only numbers is unchanged.
absl::string_view WithoutTrailingNumbers(absl::string_view module);
// The parts before the first number, without the dot: "model.layers" for "model.layers.0.mlp.up". The full name if it
// has no number.
absl::string_view BeforeFirstNumber(absl::string_view module);
// Replaces each part that is a number by '#': "layers.#.mlp.up".
std::string WithoutNumbers(absl::string_view module);
// The path of the enclosing experts: "layers.0.mlp.experts" for "layers.0.mlp.experts.7.up"; else empty.
absl::string_view ExpertsOf(absl::string_view name);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FAMILIES_MODULE_NAME_H_
