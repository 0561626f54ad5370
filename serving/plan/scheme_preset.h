#ifndef AQT_SERVING_PLAN_SCHEME_PRESET_H_
#define AQT_SERVING_PLAN_SCHEME_PRESET_H_

#include <string>

#include "absl/strings/string_view.h"

namespace aqt::serving {

// The configuration, a textproto of aqt.config.Convert, that quantizes every linear weight by the scheme of that name
// (SchemeNamed). Empty if there is none.
std::string SchemePresetText(absl::string_view name);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_SCHEME_PRESET_H_
