#ifndef EXAMPLES_TRANSFORMER_TEXT_H_
#define EXAMPLES_TRANSFORMER_TEXT_H_

#include <cstdint>
#include <string>

namespace transformer {

// About `bytes` bytes of small stories in English, cut at the end of a story: people with a trade, a town and goods,
// who trade them for coins. The seller is named once and then called "he" or "she", goods keep their names, and sums of
// coins are right, so a model gains from looking back further than a few letters. The same seed gives the same text on
// every machine.
std::string Stories(uint64_t seed, int64_t bytes);

}  // namespace transformer

#endif  // EXAMPLES_TRANSFORMER_TEXT_H_
