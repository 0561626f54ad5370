#include "aqt/tokenizers/splitting/split_behavior.h"

#include <algorithm>
#include <vector>

namespace aqt::tokenizers {
namespace {

struct Part {
  uint32_t begin;
  uint32_t end;
  bool match;
};

// Matches and the text between them, in order.
std::vector<Part> PartsOf(uint32_t size, const Matches& matches, bool invert) {
  std::vector<Part> parts;
  uint32_t done = 0;
  for (const auto& [begin, end] : matches) {
    if (done < begin) parts.push_back({done, begin, invert});
    parts.push_back({begin, end, !invert});
    done = end;
  }
  if (done < size) parts.push_back({done, size, invert});
  return parts;
}

void JoinEqual(std::vector<Part>& parts) {
  size_t size = 0;
  for (const Part& part : parts) {
    if (size > 0 && parts[size - 1].match == part.match) {
      parts[size - 1].end = part.end;
    } else {
      parts[size++] = part;
    }
  }
  parts.resize(size);
}

// Joins each match with the part before it, unless that is a match, too.
void JoinWithPrevious(std::vector<Part>& parts) {
  size_t size = 0;
  bool after_match = false;
  for (const Part part : parts) {
    if (part.match && !after_match && size > 0) {
      parts[size - 1].end = part.end;
    } else {
      parts[size++] = part;
    }
    after_match = part.match;
  }
  parts.resize(size);
}

void JoinWithNext(std::vector<Part>& parts) {
  size_t size = 0;  // of the result, from the end
  bool before_match = false;
  std::vector<Part> result(parts.size());
  for (size_t i = parts.size(); i-- > 0;) {
    if (parts[i].match && !before_match && size > 0) {
      result[size - 1].begin = parts[i].begin;
    } else {
      result[size++] = parts[i];
    }
    before_match = parts[i].match;
  }
  result.resize(size);
  std::reverse(result.begin(), result.end());
  parts = std::move(result);
}

}  // namespace

void SplitPiece(const Text& text, const Piece& piece, const Matches& matches, SplitBehavior behavior, bool invert,
                std::vector<Piece>& out) {
  std::vector<Part> parts = PartsOf(piece.end - piece.begin, matches, invert);
  switch (behavior) {
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated: break;
    case SplitBehavior::kContiguous: JoinEqual(parts); break;
    case SplitBehavior::kMergedWithPrevious: JoinWithPrevious(parts); break;
    case SplitBehavior::kMergedWithNext: JoinWithNext(parts); break;
  }
  for (const Part& part : parts) {
    if ((part.match && behavior == SplitBehavior::kRemoved) || part.begin == part.end) continue;
    Piece result;
    result.begin = piece.begin + part.begin;
    result.end = piece.begin + part.end;
    result.first = IsFirst(text, result.begin);
    out.push_back(result);
  }
}

}  // namespace aqt::tokenizers
