#ifndef AQT_SERVING_TOOLS_VERSION_H_
#define AQT_SERVING_TOOLS_VERSION_H_

namespace aqt::serving {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_VERSION_H_
