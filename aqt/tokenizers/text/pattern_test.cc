// Exact: matches of small patterns. Property: the pattern of GPT-2 by hand equals the general one.

#include "aqt/tokenizers/text/pattern.h"

#include <string>
#include <vector>

#include "aqt/io/json_value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::tokenizers {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Parts(const Pattern& pattern, absl::string_view bytes) {
  Text text;
  DecodeUtf8(bytes, text);
  Matches matches;
  pattern.Find(text, matches);
  std::vector<std::string> parts;
  for (const auto& [begin, end] : matches) {
    parts.emplace_back();
    for (uint32_t i = begin; i < end; ++i) AppendUtf8(text[i].code, parts.back());
  }
  return parts;
}

std::vector<std::string> Parts(absl::string_view regex, absl::string_view bytes) {
  const auto pattern = ParseRegex(regex);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  return Parts(**pattern, bytes);
}

TEST(Regex, ClassesAndQuantifiers) {
  EXPECT_THAT(Parts(R"(\s+)", "a \t\xC2\xA0 b\n"), ElementsAre(" \t\xC2\xA0 ", "\n"));
  EXPECT_THAT(Parts(" {2,}", "a b  c   "), ElementsAre("  ", "   "));
  EXPECT_THAT(Parts(R"(\p{N}{1,3})", "1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(Parts("[a-c-]+", "ab-cd-"), ElementsAre("ab-c", "-"));
  EXPECT_THAT(Parts(R"([^\s\]]+)", "ab] c"), ElementsAre("ab", "c"));
  EXPECT_THAT(Parts(R"(\P{L}|\S)", "a1"), ElementsAre("a", "1"));
  // As in Oniguruma, a superscript is a word character, but not in brackets.
  EXPECT_THAT(Parts(R"(\w)", "x\xC2\xB2"), ElementsAre("x", "\xC2\xB2"));
  EXPECT_THAT(Parts(R"([\w])", "x\xC2\xB2"), ElementsAre("x"));
  EXPECT_THAT(Parts(R"([^\w\s])", "x\xC2\xB2 !"), ElementsAre("\xC2\xB2", "!"));
  EXPECT_THAT(Parts("a.b", "a\nb a-b"), ElementsAre("a-b"));
  EXPECT_THAT(Parts("a+?b?", "aab"), ElementsAre("a", "ab"));
  EXPECT_THAT(Parts("(?:ab)*c", "ababc abab c"), ElementsAre("ababc", "c"));
}

TEST(Regex, TheFirstAlternativeThatMatches) {
  EXPECT_THAT(Parts("a|ab|abc", "abc"), ElementsAre("a"));
  EXPECT_THAT(Parts("(a|ab)(c|bcd)", "abcd"), ElementsAre("abcd"));
  EXPECT_THAT(Parts("(?i:'S|'ll)", "'s 'S 'LL '\xC5\xBF"), ElementsAre("'s", "'S", "'LL", "'\xC5\xBF"));
  EXPECT_THAT(Parts(R"(\s+(?!\S)|\s+)", "a   b  "), ElementsAre("  ", " ", "  "));
  EXPECT_THAT(Parts("x(?=[0-9])", "x1 xa x"), ElementsAre("x"));
}

TEST(Regex, GoesBackInLinearTime) {
  // Without the memory of what has failed, this would take 2^5000 steps.
  EXPECT_THAT(Parts("(?:a|a)+b|c", std::string(5000, 'a') + "c"), ElementsAre("c"));
}

TEST(Regex, NamesWhatIsNotRead) {
  for (const char* regex :
       {"^a", "a$", "a++",   "(?<x>a)", R"(\bx)", R"(\p{Greek})", "[a&&b]",        "[[a]]",    "a{,3}", "a{300}", "(a",
        "a)", "[a", R"(a\)", "(?=ab)",  "*a",     "[b-a]",        "(?i:\xC3\xA9)", "(?:a*)*b", R"(\1)", R"(\x41)"}) {
    EXPECT_THAT(ParseRegex(regex).status().message(), HasSubstr("is not read")) << regex;
  }
  EXPECT_THAT(ParseRegex("a*").status().message(), HasSubstr("empty text"));
  EXPECT_THAT(ParseRegex(std::string(100, '(')).status().message(), HasSubstr("nesting deeper"));
  EXPECT_THAT(ParseRegex("(?:(?:a{1,200}b){1,200}c){1,200}").status().message(),
              HasSubstr("an expression of more than"));
}

TEST(Literal, Overlaps) {
  const auto pattern = ParsePattern(*io::ParseJsonValue(R"({"String": "aba"})"), "p");
  ASSERT_TRUE(pattern.ok());
  EXPECT_THAT(Parts(**pattern, "ababaaba abaaba"), ElementsAre("aba", "aba", "aba", "aba"));
}

TEST(Gpt2, EqualsTheGeneralExpression) {
  const auto general = ParseRegex(kGpt2Regex);
  ASSERT_TRUE(general.ok()) << general.status();
  // All texts of up to five of these characters.
  const std::vector<std::string> alphabet = {"'", "s", "l", "e", "r", " ", "\n", "1", "!", "\xC3\xA9"};
  size_t count = 1;
  for (int length = 1; length <= 5; ++length) {
    count *= alphabet.size();
    for (size_t number = 0; number < count; ++number) {
      std::string text;
      for (size_t i = 0, rest = number; i < static_cast<size_t>(length); ++i, rest /= alphabet.size()) {
        text += alphabet[rest % alphabet.size()];
      }
      ASSERT_EQ(Parts(Gpt2Pattern(), text), Parts(**general, text)) << text;
    }
  }
}

}  // namespace
}  // namespace aqt::tokenizers
