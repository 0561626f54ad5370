#include "examples/transformer/text.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "aqt/core/rng.h"

namespace transformer {
namespace {

struct Person {
  const char *name, *pronoun;
};
struct Goods {
  const char *trade, *one, *many;
};

constexpr Person kPeople[] = {{"Anna", "she"},  {"Otto", "he"},  {"Mira", "she"},  {"Jonas", "he"},
                              {"Clara", "she"}, {"Felix", "he"}, {"Ida", "she"},   {"Hugo", "he"},
                              {"Nora", "she"},  {"Emil", "he"},  {"Greta", "she"}, {"Paul", "he"}};
constexpr Goods kGoods[] = {{"baker", "loaf", "loaves"},    {"potter", "jug", "jugs"},
                            {"weaver", "scarf", "scarves"}, {"farmer", "melon", "melons"},
                            {"smith", "knife", "knives"},   {"fisher", "trout", "trout"},
                            {"printer", "book", "books"},   {"cooper", "barrel", "barrels"}};
constexpr const char* kTowns[] = {"Lund", "Bergen", "Ghent", "Porto", "Graz", "Leeds", "Turku", "Basel"};
constexpr const char* kDays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
constexpr const char* kNumbers[] = {"zero",        "one",        "two",      "three",      "four",       "five",
                                    "six",         "seven",      "eight",    "nine",       "ten",        "eleven",
                                    "twelve",      "thirteen",   "fourteen", "fifteen",    "sixteen",    "seventeen",
                                    "eighteen",    "nineteen",   "twenty",   "twenty-one", "twenty-two", "twenty-three",
                                    "twenty-four", "twenty-five"};

// Random choices of one story.
class Choices {
 public:
  explicit Choices(aqt::Key key) : bits_(key, 64) {}
  int64_t Below(int64_t n) { return bits_.Bits32(next_++) % n; }
  template <class T, size_t kSize>
  const T& Of(const T (&list)[kSize]) {
    return list[Below(kSize)];
  }

 private:
  aqt::RandomBits bits_;
  int64_t next_ = 0;
};

std::string Story(aqt::Key key) {
  Choices choose(key);
  const int64_t first = choose.Below(std::size(kPeople));
  const Person& seller = kPeople[first];
  const Person& buyer = kPeople[(first + 1 + choose.Below(std::size(kPeople) - 1)) % std::size(kPeople)];
  const Goods& goods = choose.Of(kGoods);
  const char *town = choose.Of(kTowns), *day = choose.Of(kDays);
  const int64_t count = 2 + choose.Below(4), price = 1 + choose.Below(5), sum = count * price;
  std::string text = absl::StrCat(seller.name, " was a ", goods.trade, " in ", town, ". On ", day, " ", seller.pronoun,
                                  " sold ", kNumbers[count], " ", goods.many, " to ", buyer.name, ", each for ",
                                  kNumbers[price], price == 1 ? " coin" : " coins", ". ");
  if (choose.Below(2) == 0) {
    absl::StrAppend(&text, "So ", buyer.name, " paid ", seller.name, " ", kNumbers[sum], " coins. ");
  } else {
    const int64_t kept = 1 + choose.Below(count - 1);
    absl::StrAppend(&text, "Of the ", kNumbers[count], " ", goods.many, " ", buyer.name, " kept ", kNumbers[kept],
                    " and gave away ", kNumbers[count - kept], ". ");
  }
  switch (choose.Below(3)) {
    case 0:
      absl::StrAppend(&text, "\"A good ", goods.one, ",\" said ", buyer.name, " to the ", goods.trade, ".");
      break;
    case 1:
      absl::StrAppend(&text, "Then ", seller.name, " went home, for ", seller.pronoun, " had sold every ", goods.one,
                      " in ", town, ".");
      break;
    default:
      absl::StrAppend(&text, "The ", goods.trade, " from ", town, " thanked ", buyer.name, " and looked forward to ",
                      day, ".");
      break;
  }
  absl::StrAppend(&text, "\n");
  return text;
}

}  // namespace

std::string Stories(uint64_t seed, int64_t bytes) {
  std::string text;
  for (uint32_t i = 0;; ++i) {
    const std::string story = Story(aqt::FoldIn(aqt::MakeKey(seed), i));
    if (static_cast<int64_t>(text.size() + story.size()) > bytes) return text;
    text += story;
  }
}

}  // namespace transformer
