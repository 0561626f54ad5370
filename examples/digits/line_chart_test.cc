#include "examples/digits/line_chart.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(LineChart, PointsTicksLabelsAndLegend) {
  const std::string svg = ToSvg({.title = "t < u",
                                 .x_label = "epoch",
                                 .y_label = "loss",
                                 .series = {{"a & b", {{0, 0}, {10, 1}}}, {"c", {{5, 0.5}}}}});
  // The plot reaches from (72, 388) to (700, 48).
  EXPECT_THAT(svg, HasSubstr("<path d=\"M72.0 388.0 L72.0 388.0 L700.0 48.0\""));
  EXPECT_THAT(svg, HasSubstr("<path d=\"M386.0 218.0 L386.0 218.0\""));
  for (const char* text : {">t &lt; u<", ">epoch<", ">loss<", ">a &amp; b<", ">c<", ">0<", ">10<", ">0.2<", ">1<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_EQ(Count(svg, "<path"), 2);
}

TEST(LineChart, LogarithmicTicksAreDecades) {
  const std::string svg =
      ToSvg({.log_y = true, .series = {{"a", {{0, 2.3}, {1, 0.004}, {2, 0}, {3, NAN}, {4, 0.01}}}}});
  for (const char* text : {">10<", ">1<", ">0.1<", ">0.01<", ">0.001<"}) EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, Not(HasSubstr(">100<")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_EQ(Count(svg, " M"), 1);  // a number without a logarithm breaks the curve
}

TEST(LineChart, NothingAndOneNumber) {
  EXPECT_THAT(ToSvg({}), HasSubstr("</svg>"));
  EXPECT_THAT(ToSvg({.series = {{"empty", {}}}}), HasSubstr(">empty<"));
  EXPECT_THAT(ToSvg({.series = {{"a", {{3, 7}}}}}), HasSubstr("M386.0 218.0 L386.0 218.0"));  // in the middle
  EXPECT_THAT(ToSvg({.log_y = true, .series = {{"a", {{3, -7}}}}}), Not(HasSubstr("<path")));
}

}  // namespace
}  // namespace digits
