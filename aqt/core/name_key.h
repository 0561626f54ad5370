#ifndef AQT_CORE_NAME_KEY_H_
#define AQT_CORE_NAME_KEY_H_

// Random keys derived from names.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "aqt/core/rng.h"

namespace aqt {

// 32-bit FNV-1a of the bytes of `name`: the same on every machine and in every version.
constexpr uint32_t HashOfName(absl::string_view name) {
  uint32_t hash = 0x811c9dc5u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193u;
  return hash;
}

// The key for a name: FoldIn(key, HashOfName(name)).
inline Key FoldInName(Key key, absl::string_view name) { return FoldIn(key, HashOfName(name)); }

}  // namespace aqt

#endif  // AQT_CORE_NAME_KEY_H_
