#include "aqt/models/text/padded_length.h"

#include <algorithm>

#include "aqt/core/ceil_div.h"

namespace aqt::models {

int64_t PaddedLength(int64_t length, int64_t max_length) {
  int64_t power = 64;
  while (2 * power < length) power *= 2;
  return std::max(length, std::min(RoundUp(length, power / 4), max_length));
}

std::pair<int64_t, int64_t> LengthsToCompare(int64_t max_length) {
  const int64_t length = std::min<int64_t>(16, max_length);
  if (length < max_length) return {length, std::min(2 * length, max_length)};
  return {length, std::max<int64_t>(1, length - 1)};
}

}  // namespace aqt::models
