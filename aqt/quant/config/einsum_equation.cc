#include "aqt/quant/config/einsum_equation.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"

namespace aqt {
namespace {

constexpr absl::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

struct Term {
  std::string letters;  // without the ellipsis
  size_t ellipsis_at = 0;
  bool has_ellipsis = false;
  size_t begin = 0;  // position in the text
};

class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<EinsumEquation> Parse(int64_t lhs_rank, int64_t rhs_rank) {
    AQT_ASSIGN_OR_RETURN(const Term lhs, ParseTerm());
    if (position_ == text_.size() || text_[position_] != ',') {
      return Error("expected two operands, \"lhs,rhs->out\"; found one");
    }
    ++position_;
    AQT_ASSIGN_OR_RETURN(const Term rhs, ParseTerm());
    std::optional<Term> out;
    if (position_ < text_.size() && text_[position_] == '-') {
      if (text_.substr(position_, 2) != "->") return Error("'-' without '>'");
      position_ += 2;
      AQT_ASSIGN_OR_RETURN(out, ParseTerm());
    }
    if (position_ < text_.size()) {
      return Error(text_[position_] == ',' ? (out.has_value() ? "',' in the result" : "a third operand; expected two")
                                           : absl::StrCat("'", text_.substr(position_, 1), "' is not expected here"));
    }

    AQT_ASSIGN_OR_RETURN(const int64_t lhs_spelt, EllipsisRank("lhs", lhs, lhs_rank));
    AQT_ASSIGN_OR_RETURN(const int64_t rhs_spelt, EllipsisRank("rhs", rhs, rhs_rank));
    const int64_t longest = std::max(lhs_spelt, rhs_spelt);
    std::string names;
    for (const char letter : kLetters) {
      if (static_cast<int64_t>(names.size()) == std::max(lhs_rank, rhs_rank)) break;
      if (text_.find(letter) == absl::string_view::npos) names.push_back(letter);
    }
    if (static_cast<int64_t>(names.size()) < longest) {
      return absl::InvalidArgumentError(absl::StrCat("einsum \"", text_, "\": more than 52 axes"));
    }
    const auto spell = [&](const Term& term, int64_t count) {
      return term.letters.substr(0, term.ellipsis_at) + names.substr(names.size() - count) +
             term.letters.substr(term.ellipsis_at);
    };
    EinsumEquation result{.lhs = spell(lhs, lhs_spelt), .rhs = spell(rhs, rhs_spelt), .out = ""};
    if (!out.has_value()) {
      result.out = names.substr(names.size() - longest);
      std::string all = lhs.letters + rhs.letters;
      std::sort(all.begin(), all.end());
      for (const char letter : all) {
        if (std::count(all.begin(), all.end(), letter) == 1) result.out.push_back(letter);
      }
      return result;
    }
    for (size_t i = 0; i < out->letters.size(); ++i) {
      const char letter = out->letters[i];
      position_ = text_.find(letter, out->begin);
      if (out->letters.find(letter) != i) {
        position_ = text_.find(letter, position_ + 1);
        return Error(absl::StrCat("'", std::string(1, letter), "' occurs twice in the result"));
      }
      if (lhs.letters.find(letter) == std::string::npos && rhs.letters.find(letter) == std::string::npos) {
        return Error(absl::StrCat("'", std::string(1, letter), "' of the result is not in any operand"));
      }
    }
    result.out = spell(*out, out->has_ellipsis ? longest : 0);
    return result;
  }

 private:
  absl::Status Error(absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat("einsum \"", text_, "\", position ", position_, ": ", message));
  }

  // Parses up to ',', '-', or the end.
  absl::StatusOr<Term> ParseTerm() {
    Term term;
    term.begin = position_;
    for (; position_ < text_.size(); ++position_) {
      const char c = text_[position_];
      if (c == ',' || c == '-') break;
      if (c == ' ') continue;
      if (c == '.') {
        if (text_.substr(position_, 3) != "...") return Error("an ellipsis has three dots, \"...\"");
        if (term.has_ellipsis) return Error("a second ellipsis in one term");
        term.has_ellipsis = true;
        term.ellipsis_at = term.letters.size();
        position_ += 2;
        continue;
      }
      if (kLetters.find(c) == absl::string_view::npos) {
        return Error(absl::StrCat("'", text_.substr(position_, 1), "' is not a letter (a-z, A-Z)"));
      }
      term.letters.push_back(c);
    }
    return term;
  }

  // The number of axes that the ellipsis of an operand stands for.
  absl::StatusOr<int64_t> EllipsisRank(const char* side, const Term& term, int64_t rank) const {
    const int64_t letters = static_cast<int64_t>(term.letters.size());
    if (term.has_ellipsis ? letters <= rank : letters == rank) return rank - letters;
    return absl::InvalidArgumentError(absl::StrCat("einsum \"", text_, "\": ", side, " \"", term.letters, "\" names ",
                                                   term.has_ellipsis ? "at least " : "", letters,
                                                   " axes, but the array has ", rank));
  }

  absl::string_view text_;
  size_t position_ = 0;
};

}  // namespace

absl::StatusOr<EinsumEquation> ParseEinsum(absl::string_view equation, int64_t lhs_rank, int64_t rhs_rank) {
  return Parser(equation).Parse(lhs_rank, rhs_rank);
}

}  // namespace aqt
