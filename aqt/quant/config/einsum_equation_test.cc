#include "aqt/quant/config/einsum_equation.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace aqt {
namespace {

EinsumEquation Parsed(absl::string_view equation, int64_t lhs_rank, int64_t rhs_rank) {
  const absl::StatusOr<EinsumEquation> parsed = ParseEinsum(equation, lhs_rank, rhs_rank);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : EinsumEquation{};
}

TEST(ParseEinsum, Terms) {
  EXPECT_EQ(Parsed("ab,bc->ac", 2, 2), (EinsumEquation{"ab", "bc", "ac"}));
  EXPECT_EQ(Parsed(" a b, bc ->a c ", 2, 2), (EinsumEquation{"ab", "bc", "ac"}));
  EXPECT_EQ(Parsed("a,->a", 1, 0), (EinsumEquation{"a", "", "a"}));
  EXPECT_EQ(Parsed(",->", 0, 0), (EinsumEquation{"", "", ""}));
}

TEST(ParseEinsum, ImplicitResultIsSortedCapitalsFirst) {
  EXPECT_EQ(Parsed("ba,aC", 2, 2), (EinsumEquation{"ba", "aC", "Cb"}));
  EXPECT_EQ(Parsed("aa,b", 2, 1), (EinsumEquation{"aa", "b", "b"}));
  EXPECT_EQ(Parsed("z...,...z", 3, 2), (EinsumEquation{"zbc", "cz", "bc"}));
}

// Named as in jax: from the first free letters, as many as the largest rank, the last ones are taken.
TEST(ParseEinsum, EllipsisIsAlignedFromTheRight) {
  EXPECT_EQ(Parsed("...ij,...jk->...ik", 4, 3), (EinsumEquation{"cdij", "djk", "cdik"}));
  EXPECT_EQ(Parsed("...a,a...->...", 3, 1), (EinsumEquation{"cda", "a", "cd"}));
  EXPECT_EQ(Parsed("a...b,b->ba...", 2, 1), (EinsumEquation{"ab", "b", "ba"}));
  EXPECT_EQ(Parsed("a...,a->", 3, 1), (EinsumEquation{"acd", "a", ""}));
}

TEST(ParseEinsum, ErrorsNameEquationPositionAndLetter) {
  const auto error = [](absl::string_view equation, int64_t lhs_rank = 2, int64_t rhs_rank = 2) {
    const absl::Status status = ParseEinsum(equation, lhs_rank, rhs_rank).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << equation;
    return std::string(status.message());
  };
  EXPECT_EQ(error("ab->a"), "einsum \"ab->a\", position 2: expected two operands, \"lhs,rhs->out\"; found one");
  EXPECT_EQ(error("ab"), "einsum \"ab\", position 2: expected two operands, \"lhs,rhs->out\"; found one");
  EXPECT_EQ(error("ab,bc,cd->ad"), "einsum \"ab,bc,cd->ad\", position 5: a third operand; expected two");
  EXPECT_EQ(error("ab,bc->a,c"), "einsum \"ab,bc->a,c\", position 8: ',' in the result");
  EXPECT_EQ(error("ab,bc->a->c"), "einsum \"ab,bc->a->c\", position 8: '-' is not expected here");
  EXPECT_EQ(error("ab,bc-ac"), "einsum \"ab,bc-ac\", position 5: '-' without '>'");
  EXPECT_EQ(error("ab,b1->a"), "einsum \"ab,b1->a\", position 4: '1' is not a letter (a-z, A-Z)");
  EXPECT_EQ(error("a..,bc->a"), "einsum \"a..,bc->a\", position 1: an ellipsis has three dots, \"...\"");
  EXPECT_EQ(error("...a...,bc->a"), "einsum \"...a...,bc->a\", position 4: a second ellipsis in one term");
  EXPECT_EQ(error("ab,bc->aca"), "einsum \"ab,bc->aca\", position 9: 'a' occurs twice in the result");
  EXPECT_EQ(error("ab,bc->ad"), "einsum \"ab,bc->ad\", position 8: 'd' of the result is not in any operand");
  EXPECT_EQ(error("abc,bc->a"), "einsum \"abc,bc->a\": lhs \"abc\" names 3 axes, but the array has 2");
  EXPECT_EQ(error("ab,...bcd->a"), "einsum \"ab,...bcd->a\": rhs \"bcd\" names at least 3 axes, but the array has 2");
  std::string all;
  for (char c = 'a'; c <= 'z'; ++c) all.push_back(c);
  for (char c = 'A'; c <= 'Z'; ++c) all.push_back(c);
  EXPECT_EQ(error(absl::StrCat(all, "...,a->"), 53, 1), absl::StrCat("einsum \"", all, "...,a->\": more than 52 axes"));
}

}  // namespace
}  // namespace aqt
