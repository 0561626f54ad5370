#ifndef AQT_MODELS_TEXT_PADDED_LENGTH_H_
#define AQT_MODELS_TEXT_PADDED_LENGTH_H_

#include <cstdint>
#include <utility>

namespace aqt::models {

// The length to which a row of `length` >= 1 positions is padded, so that a model needs few programs: a multiple of 16
// up to 128, above that a multiple of a quarter of the largest power of two below `length` (160, 192, 224, 256, 320,
// ...), and at most `max_length`. It depends on nothing else, so a row always has the same program, and the same bits.
int64_t PaddedLength(int64_t length, int64_t max_length);

// Two lengths of a model that show whether padding counts (WhyPaddingCounts in transforms/row_dependence.h): up to 16
// positions, and another length. Equal if max_length is 1.
std::pair<int64_t, int64_t> LengthsToCompare(int64_t max_length);

}  // namespace aqt::models

#endif  // AQT_MODELS_TEXT_PADDED_LENGTH_H_
