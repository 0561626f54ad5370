#include "aqt/models/padded_length.h"

#include <algorithm>

#include "aqt/core/ceil_div.h"

namespace aqt::models {

int64_t PaddedLength(int64_t length, int64_t max_length) {
  int64_t power = 64;
  while (2 * power < length) power *= 2;
  return std::max(length, std::min(RoundUp(length, power / 4), max_length));
}

}  // namespace aqt::models
