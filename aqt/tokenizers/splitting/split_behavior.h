#ifndef AQT_TOKENIZERS_SPLITTING_SPLIT_BEHAVIOR_H_
#define AQT_TOKENIZERS_SPLITTING_SPLIT_BEHAVIOR_H_

// How a piece is split at the matches of a pattern.

#include <cstddef>
#include <cstdint>

#include "aqt/tokenizers/splitting/pre_tokenizer.h"
#include "aqt/tokenizers/text/pattern.h"

namespace aqt::tokenizers {

// In the order of kSplitBehaviors.
enum class SplitBehavior : uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Appends to `out` the parts of a piece of `text`; `matches` are places in the piece. With `invert`, the text between
// two matches counts as one match.
void SplitPiece(const Text& text, const Piece& piece, const Matches& matches, SplitBehavior behavior, bool invert,
                std::vector<Piece>& out);

// Whether a piece of this text that begins at `begin` begins where the given text begins.
inline bool IsFirst(const Text& text, size_t begin) { return text[begin].begin == 0; }

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_SPLITTING_SPLIT_BEHAVIOR_H_
