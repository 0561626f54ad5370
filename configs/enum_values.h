#ifndef AQT_CONFIGS_ENUM_VALUES_H_
#define AQT_CONFIGS_ENUM_VALUES_H_

// Enums of structs as enums of protos: a table lists the values in the order of the proto's numbers, starting at 1.

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/status/status.h"
#include "configs/config_text.h"

namespace aqt::config {

// The value of a proto's number. InvalidArgument for the number 0, UNSPECIFIED.
template <class E, size_t n>
absl::Status ReadEnum(const E (&values)[n], int number, const Place& place, E* out) {
  if (number < 1 || number > static_cast<int>(n)) return place.Error("a value other than UNSPECIFIED is needed");
  *out = values[number - 1];
  return absl::OkStatus();
}

// The proto's number of a value in the table.
template <class E, size_t n>
int NumberOf(const E (&values)[n], E value) {
  return static_cast<int>(std::find(std::begin(values), std::end(values), value) - std::begin(values)) + 1;
}

}  // namespace aqt::config

#endif  // AQT_CONFIGS_ENUM_VALUES_H_
