#include "aqt/io/printable.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

TEST(PrintableTest, WhatIsPrintableStays) {
  for (const char* text :
       {"", "model.layers.0.mlp.up_proj.weight", "a b\\n\"'", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(PrintableTest, EscapesWhatMovesTheCursor) {
  EXPECT_EQ(Printable("a\n\r\tb"), "a\\n\\r\\tb");
  EXPECT_EQ(Printable("\x1b[31mred\x07\x7f"), "\\x1b[31mred\\x07\\x7f");
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "\\u009b2J");  // the same as ESC [
  EXPECT_EQ(Printable("\xe2\x80\xae"
                      "x"),
            "\\u202ex");  // right to left
  EXPECT_EQ(Printable("\xe2\x80\xa8\xef\xbb\xbf"), "\\u2028\\ufeff");
}

TEST(PrintableTest, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(Printable("\xff"
                      "a"),
            "\\xffa");
  EXPECT_EQ(Printable("\xc3"), "\\xc3");
  EXPECT_EQ(Printable("\xc3("), "\\xc3(");
  EXPECT_EQ(Printable("\xc0\x80"), "\\xc0\\x80");                    // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
}

TEST(PrintableTest, CutsBetweenCharacters) {
  const std::string name(kMaxShownBytes, 'x');
  EXPECT_EQ(Printable(name), name);
  EXPECT_EQ(Printable(name + "y"), name + "...");
  EXPECT_EQ(Printable("ab\xc3\xa9"
                      "c",
                      3),
            "ab...");
  EXPECT_EQ(Printable("ab\xc3\xa9"
                      "c",
                      4),
            "ab\xc3\xa9...");
  EXPECT_EQ(PrintableLine(name + name), name + name);
}

TEST(PrintableTest, TwiceIsAsGoodAsOnce) {
  const std::string once = Printable("a\n\x1b\xff\xe2\x80\xae");
  EXPECT_EQ(Printable(once), once);
}

}  // namespace
}  // namespace aqt::io
