#ifndef AQT_QUANT_CONTRACTION_RANDOM_EQUATION_H_
#define AQT_QUANT_CONTRACTION_RANDOM_EQUATION_H_

// Random einsum equations for tests.

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"

namespace aqt {

struct RandomEquation {
  std::string text, lhs, rhs, out;  // one letter per axis, in the generator's own names
  std::map<char, int64_t> extent;
  Shape lhs_shape, rhs_shape, out_shape;
};

// With `plain`, only equations that DotGeneral itself can compute: no broadcast, diagonal or sum.
inline RandomEquation MakeRandomEquation(std::mt19937_64& engine, bool plain) {
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine); };
  RandomEquation e;
  for (const char letter : absl::string_view("abcdeXYZ")) {
    e.extent[letter] = below(12) == 0 ? (plain ? 3 : below(2)) : 1 + below(4);
  }
  // X, Y and Z are axes that an ellipsis stands for: an operand has the last few of them.
  const int64_t lhs_dots = below(4) - 1, rhs_dots = below(4) - 1;  // -1: no ellipsis
  const bool implicit = !plain && below(5) == 0;
  const auto term = [&](int64_t dots, std::string letters, std::string* names, std::string* text) {
    std::shuffle(letters.begin(), letters.end(), engine);
    const int64_t at = below(static_cast<int64_t>(letters.size()) + 1);
    const std::string spelt = dots > 0 ? std::string("XYZ").substr(3 - dots) : "";
    *names = letters.substr(0, at) + spelt + letters.substr(at);
    *text = letters.substr(0, at) + (dots >= 0 ? "..." : "") + letters.substr(at);
  };
  std::string lhs_letters, rhs_letters, out_letters;
  for (const char letter : absl::string_view("abcde")) {
    const int64_t where = below(5);  // 0, 1: lhs; 2, 3: rhs; 4: both, and others with a chance
    const bool in_lhs = where <= 1 || where == 4, in_rhs = where >= 2;
    if (below(3) == 0) continue;
    if (in_lhs) lhs_letters.append(!plain && below(6) == 0 ? 2 : 1, letter);
    if (in_rhs) rhs_letters.append(!plain && below(6) == 0 ? 2 : 1, letter);
    if (plain && in_lhs != in_rhs ? true : below(2) == 0) out_letters.push_back(letter);
  }
  std::string lhs_text, rhs_text, out_text;
  term(lhs_dots, lhs_letters, &e.lhs, &lhs_text);
  term(rhs_dots, rhs_letters, &e.rhs, &rhs_text);
  const int64_t dots = std::max(lhs_dots, rhs_dots);
  if (implicit) {
    e.out = dots > 0 ? std::string("XYZ").substr(3 - dots) : "";
    for (const char letter : absl::string_view("abcde")) {
      const std::string all = lhs_letters + rhs_letters;
      if (std::count(all.begin(), all.end(), letter) == 1) e.out.push_back(letter);
    }
    e.text = absl::StrCat(lhs_text, ",", rhs_text);
  } else {
    term(plain || below(4) > 0 ? dots : -1, out_letters, &e.out, &out_text);
    e.text = absl::StrCat(lhs_text, ",", rhs_text, "->", out_text);
  }
  const auto shape = [&](const std::string& names, bool may_broadcast) {
    std::map<char, int64_t> extents = e.extent;
    for (auto& [letter, extent] : extents) extent = may_broadcast && below(8) == 0 ? 1 : extent;
    Shape result;
    for (const char letter : names) result.push_back(extents[letter]);
    return result;
  };
  e.lhs_shape = shape(e.lhs, !plain);
  e.rhs_shape = shape(e.rhs, !plain);
  // A letter has the extent of its longest axis (an extent other than 1 wins).
  for (auto& [letter, extent] : e.extent) {
    extent = 1;
    for (const auto& [names, s] : {std::pair(e.lhs, e.lhs_shape), std::pair(e.rhs, e.rhs_shape)}) {
      const size_t at = names.find(letter);
      if (at != std::string::npos && s[static_cast<int64_t>(at)] != 1) extent = s[static_cast<int64_t>(at)];
    }
  }
  for (const char letter : e.out) e.out_shape.push_back(e.extent[letter]);
  return e;
}

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_RANDOM_EQUATION_H_
