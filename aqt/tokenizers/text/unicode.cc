#include "aqt/tokenizers/text/unicode.h"

#include <algorithm>
#include <cstddef>

namespace aqt::tokenizers {
namespace {

namespace t = unicode_tables;

constexpr char32_t kSyllables = 0xAC00;
constexpr char32_t kLeading = 0x1100;
constexpr char32_t kVowels = 0x1161;
constexpr char32_t kTrailing = 0x11A7;  // one before the first
constexpr char32_t kLeadingCount = 19;
constexpr char32_t kVowelCount = 21;
constexpr char32_t kTrailingCount = 28;
constexpr char32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

bool IsSyllable(char32_t code) { return code - kSyllables < kSyllableCount; }

int CombiningClassOf(char32_t code) {
  if ((CodeFlags(code) & kNonstarter) == 0) return 0;
  const auto* const end = t::kCombiningClasses + t::kCombiningClassesSize;
  const auto* const found = std::upper_bound(t::kCombiningClasses, end, code,
                                             [](char32_t c, const t::CombiningClass& k) { return c < k.first; });
  return found[-1].value;
}

const t::Decomposition* FindDecomposition(const t::Decomposition* table, int size, char32_t code) {
  const auto* const found =
      std::lower_bound(table, table + size, code, [](const t::Decomposition& d, char32_t c) { return d.code < c; });
  return found != table + size && found->code == code ? found : nullptr;
}

// The composition of two code points, or 0.
char32_t Compose(char32_t a, char32_t b) {
  if (a - kLeading < kLeadingCount && b - kVowels < kVowelCount) {
    return kSyllables + ((a - kLeading) * kVowelCount + (b - kVowels)) * kTrailingCount;
  }
  if (IsSyllable(a) && (a - kSyllables) % kTrailingCount == 0 && b > kTrailing && b < kTrailing + kTrailingCount) {
    return a + (b - kTrailing);
  }
  const auto* const end = t::kCompositions + t::kCompositionsSize;
  const auto* const found = std::lower_bound(
      t::kCompositions, end, std::make_pair(a, b),
      [](const t::Composition& c, const auto& pair) { return std::make_pair(c.first, c.second) < pair; });
  return found != end && found->first == a && found->second == b ? found->composed : 0;
}

// Decomposes a text, and sorts its marks.
class Decomposer {
 public:
  Decomposer(bool compatible, std::vector<Change>& out) : compatible_(compatible), out_(out) {}

  void Add(char32_t code) {
    const uint32_t flags = CodeFlags(code);
    if ((flags & (compatible_ ? kDecomposesCompatibly : kDecomposes)) == 0) return Put(code, 0);
    if (IsSyllable(code)) return AddSyllable(code - kSyllables);
    const t::Decomposition* found = nullptr;
    if (compatible_) found = FindDecomposition(t::kCompatible, t::kCompatibleSize, code);
    if (found == nullptr) found = FindDecomposition(t::kCanonical, t::kCanonicalSize, code);
    if (found == nullptr) return Put(code, 0);
    for (int i = 0; i < found->size; ++i) Put(t::kPool[found->begin + i], i == 0 ? 0 : 1);
  }
  void Finish() { Sort(); }

 private:
  void AddSyllable(char32_t s) {
    Put(kLeading + s / (kVowelCount * kTrailingCount), 0);
    Put(kVowels + s % (kVowelCount * kTrailingCount) / kTrailingCount, 1);
    if (s % kTrailingCount != 0) Put(kTrailing + s % kTrailingCount, 1);
  }
  void Put(char32_t code, int change) {
    if (CombiningClassOf(code) == 0) {
      Sort();
      out_.push_back({code, change});
      sorted_ = out_.size();
    } else {
      out_.push_back({code, change});
    }
  }
  // The marks since the last starter.
  void Sort() {
    if (out_.size() - sorted_ > 1) {
      std::stable_sort(out_.begin() + sorted_, out_.end(), [](const Change& a, const Change& b) {
        return CombiningClassOf(a.code) < CombiningClassOf(b.code);
      });
    }
    sorted_ = out_.size();
  }

  const bool compatible_;
  std::vector<Change>& out_;
  size_t sorted_ = 0;
};

// Joins a starter with the marks after it that are not blocked.
void Recompose(std::vector<Change>& text) {
  size_t size = 0;               // of the result, which is written over the beginning of `text`
  size_t starter = text.size();  // its place in the result
  int last_class = -1;           // of the mark before in the result, since the starter
  for (const Change change : std::vector<Change>(text)) {
    const int k = CombiningClassOf(change.code);
    if (starter < size && k > last_class) {
      const bool adjacent = last_class < 0;
      if (adjacent || k != 0) {
        if (const char32_t composed = Compose(text[starter].code, change.code); composed != 0) {
          text[starter] = {composed, text[starter].change + change.change - 1};
          continue;
        }
      }
    }
    if (k == 0) {
      starter = size;
      last_class = -1;
    } else {
      last_class = k;
    }
    text[size++] = change;
  }
  text.resize(size);
}

enum Grapheme : uint8_t {
  kAny,
  kCr,
  kLf,
  kControl,
  kExtend,
  kZwj,
  kPrepend,
  kSpacingMark,
  kPictographic,
  kRegionalIndicator,
  kL,
  kV,
  kT,
  kLv,
  kLvt
};
Grapheme GraphemeOf(char32_t code) {
  if (IsSyllable(code)) return (code - kSyllables) % kTrailingCount == 0 ? kLv : kLvt;
  return static_cast<Grapheme>(CodeFlags(code) >> 28);
}

// Whether two neighbours stay together, by the rules that need no more context.
bool JoinsPair(Grapheme a, Grapheme b) {
  if (a == kCr) return b == kLf;
  if (a == kLf || a == kControl || b == kCr || b == kLf || b == kControl) return false;
  if (a == kL && (b == kL || b == kV || b == kLv || b == kLvt)) return true;
  if ((a == kLv || a == kV) && (b == kV || b == kT)) return true;
  if ((a == kLvt || a == kT) && b == kT) return true;
  return b == kExtend || b == kZwj || b == kSpacingMark || a == kPrepend;
}

// What the rules for longer contexts need to know of the cluster so far.
class ClusterState {
 public:
  bool Joins(char32_t code) const {
    const Grapheme next = GraphemeOf(code);
    return JoinsPair(last_, next) || (after_zwj_ && next == kPictographic) ||
           (indicators_ == 1 && last_ == kRegionalIndicator && next == kRegionalIndicator) ||
           (linked_ && (CodeFlags(code) & kIndicConsonant) != 0);
  }

  void Add(char32_t code) {
    last_ = GraphemeOf(code);
    if (last_ == kRegionalIndicator) ++indicators_;
    after_zwj_ = pictographic_ && last_ == kZwj;
    pictographic_ = last_ == kPictographic || (pictographic_ && (last_ == kExtend || last_ == kZwj));
    const uint32_t flags = CodeFlags(code);
    if ((flags & kIndicConsonant) != 0) {
      consonant_ = true;
      linked_ = false;
    } else if ((flags & kIndicLinker) != 0) {
      linked_ = consonant_;
    } else if ((flags & kIndicExtend) == 0) {
      consonant_ = linked_ = false;
    }
  }

 private:
  Grapheme last_ = kAny;
  int indicators_ = 0;
  bool pictographic_ = false;  // it is a pictograph with Extends so far
  bool after_zwj_ = false;     // and a ZWJ
  bool consonant_ = false;     // it ends with a consonant, Extends and linkers
  bool linked_ = false;        // with at least one linker
};

}  // namespace

char32_t LowercaseOf(char32_t code) {
  if ((CodeFlags(code) & kLowercases) == 0) return code;
  const auto* const end = t::kLowercase + t::kLowercaseSize;
  return std::lower_bound(t::kLowercase, end, code, [](const t::Lowercase& l, char32_t c) { return l.code < c; })
      ->lower;
}

void LowercaseText(Text& text) {
  constexpr char32_t kCapitalIWithDot = 0x130;
  constexpr char32_t kDotAbove = 0x307;
  bool longer = false;
  for (Char& c : text) {
    longer = longer || c.code == kCapitalIWithDot;
    if (!longer) c.code = LowercaseOf(c.code);
  }
  if (!longer) return;
  std::vector<Change> changes;
  for (const Char& c : text) {
    changes.push_back({LowercaseOf(c.code), 0});
    if (c.code == kCapitalIWithDot) changes.push_back({kDotAbove, 1});
  }
  ApplyChanges(changes, text);
}

void ApplyChanges(const std::vector<Change>& changes, Text& text) {
  Text result;
  result.reserve(changes.size());
  size_t next = 0;
  for (const Change& change : changes) {
    Char place = {0, 0, 0};
    if (!text.empty())
      place = text[std::min(change.change > 0 ? std::max<size_t>(next, 1) - 1 : next, text.size() - 1)];
    if (change.change <= 0) next += static_cast<size_t>(1 - change.change);
    result.push_back({change.code, place.begin, place.end});
  }
  text = std::move(result);
}

void Normalize(NormalForm form, Text& text) {
  const bool compatible = form == NormalForm::kNfkd || form == NormalForm::kNfkc;
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const uint32_t flags = kNonstarter | (compatible ? kDecomposesCompatibly : kDecomposes) |
                         (composes ? static_cast<uint32_t>(kComposesWithPrevious) : 0u);
  if (std::none_of(text.begin(), text.end(), [&](const Char& c) { return (CodeFlags(c.code) & flags) != 0; })) return;
  std::vector<Change> changes;
  changes.reserve(text.size() * 5 / 4);
  Decomposer decomposer(compatible, changes);
  for (const Char& c : text) decomposer.Add(c.code);
  decomposer.Finish();
  if (composes) Recompose(changes);
  ApplyChanges(changes, text);
}

size_t GraphemeEnd(const Text& text, size_t begin) {
  ClusterState state;
  state.Add(text[begin].code);
  size_t end = begin + 1;
  while (end < text.size() && state.Joins(text[end].code)) state.Add(text[end++].code);
  return end;
}

}  // namespace aqt::tokenizers
