#include "aqt/graph/draw/draw.h"

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/testing/random_programs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Values = std::vector<Value>;

// Two layers, and a sum with the value before them.
Program TwoLayers() {
  const auto fn = [](absl::Span<const Value> in) {
    const NamedScope mlp("mlp");
    Value x = in[0];
    for (const char* name : {"fc1", "fc2"}) {
      const NamedScope scope(name);
      x = ops::Max(ops::MatMul(x, in[1]), 0.0);
    }
    const NamedScope scope("sum");
    return Values{x + in[0], ops::Sign(x)};
  };
  return *Trace(fn,
                {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}, {{SlotKind::kParam, "w"}, {DType::kF32, {3, 3}}}});
}

Paint PaintProducts(const Equation& eqn) {
  return OpName(eqn.op) == "dot_general" ? Paint{"#ff0000", "a <product>"} : Paint();
}

TEST(DrawTest, Graphviz) {
  std::string dot = DrawDot(TwoLayers(), {.paint = PaintProducts});
  // Titles have source lines.
  EXPECT_THAT(dot, AllOf(HasSubstr("  n2 [label=\"dot_general\\na <product>\\nf32[2,3]\", fillcolor=\"#ff0000\", "
                                   "tooltip=\"dims=(([1],[0]),([],[])), at "),
                         HasSubstr("draw_test.cc:")));
  for (size_t at; (at = dot.find(", tooltip")) != std::string::npos;) dot.erase(at, dot.find(']', at + 40) - at);
  EXPECT_THAT(dot, HasSubstr("subgraph cluster_0 {\n    label=\"mlp\";\n    subgraph cluster_1 {\n"
                             "      label=\"mlp/fc1\";\n"));
  EXPECT_THAT(dot, HasSubstr("  n0 [label=\"data \\\"x\\\"\\nf32[2,3]\", fillcolor=\"#eeeeee\", "
                             "style=\"filled,rounded\"];\n"));
  EXPECT_THAT(dot, HasSubstr("n3 [label=\"broadcast 0\\nf32[2,3]\""));
  EXPECT_THAT(dot, HasSubstr("  n0 -> n2;\n  n1 -> n2;\n  n2 -> n4;\n  n3 -> n4;\n"));
}

TEST(DrawTest, ScopesAreFolded) {
  EXPECT_EQ(DrawDot(TwoLayers(), {.depth = 2, .paint = PaintProducts}),
            R"(digraph program {
  node [shape=box, style=filled, fontname="monospace", fontsize=10];
  edge [fontname="monospace", fontsize=8];
  n0 [label="data \"x\"\nf32[2,3]", fillcolor="#eeeeee", style="filled,rounded"];
  n1 [label="param \"w\"\nf32[3,3]", fillcolor="#dbe9f9", style="filled,rounded"];
  n5 [label="out data \"0\"", fillcolor="#eeeeee", style="filled,rounded"];
  n6 [label="out data \"1\"", fillcolor="#eeeeee", style="filled,rounded"];
  subgraph cluster_0 {
    label="mlp";
    subgraph cluster_1 {
      label="mlp/fc1";
      n2 [label="3 equations\n1 a <product>", fillcolor="#ff0000", tooltip="scope \"mlp/fc1\""];
    }
    subgraph cluster_2 {
      label="mlp/fc2";
      n3 [label="3 equations\n1 a <product>", fillcolor="#ff0000", tooltip="scope \"mlp/fc2\""];
    }
    subgraph cluster_3 {
      label="mlp/sum";
      n4 [label="2 equations", fillcolor="#ffffff", tooltip="scope \"mlp/sum\""];
    }
  }
  n0 -> n2;
  n1 -> n2;
  n2 -> n3;
  n1 -> n3;
  n3 -> n4;
  n0 -> n4;
  n4 -> n5;
  n4 -> n6;
}
)");
  EXPECT_THAT(DrawDot(TwoLayers(), {.depth = 1}), HasSubstr("label=\"8 equations\""));
  EXPECT_THAT(DrawDot(TwoLayers(), {.depth = 0}), AllOf(HasSubstr("label=\"8 equations\""), Not(HasSubstr("cluster"))));
}

// The scopes of a gradient.
TEST(DrawTest, LevelsInParentheses) {
  const auto fn = [](absl::Span<const Value> in) {
    const NamedScope scope("grad(mlp/fc1)");
    return Values{ops::Abs(in[0])};
  };
  const Program program = *Trace(fn, {{{SlotKind::kData, "x"}, {DType::kF32, {2}}}});
  EXPECT_THAT(DrawDot(program), AllOf(HasSubstr("label=\"grad(mlp)\";"), HasSubstr("label=\"grad(mlp/fc1)\";")));
  EXPECT_THAT(DrawDot(program, {.depth = 1}), HasSubstr("tooltip=\"scope \\\"grad(mlp)\\\"\""));
}

TEST(DrawTest, Svg) {
  EXPECT_EQ(DrawSvg(TwoLayers(), {.depth = 2, .paint = PaintProducts}),
            R"(<svg xmlns="http://www.w3.org/2000/svg" width="230" height="362" viewBox="0 0 230 362">
<style>text{font:11px monospace;text-anchor:middle}.label{font-size:9px;text-anchor:start}rect{stroke:#555}path{fill:none;stroke:#888;marker-end:url(#a)}</style>
<marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto"><polygon points="0 0 8 4 0 8" fill="#888"/></marker>
<path d="M82 48 C82 66 126 66 126 84"/>
<path d="M170 48 C170 66 126 66 126 84"/>
<path d="M126 134 C126 152 149 152 149 170"/>
<path d="M170 48 C170 79 193 79 193 109 C193 140 149 140 149 170"/>
<path d="M149 220 C149 238 115 238 115 256"/>
<path d="M82 48 C82 79 59 79 59 109 C59 152 82 152 82 195 C82 226 115 226 115 256"/>
<path d="M115 292 C115 310 60 310 60 328"/>
<path d="M115 292 C115 310 171 310 171 328"/>
<g><rect x="48" y="12" width="69" height="36" rx="8" fill="#eeeeee"/><text x="82" y="27">data &quot;x&quot;</text><text x="82" y="41">f32[2,3]</text></g>
<g><rect x="133" y="12" width="75" height="36" rx="8" fill="#dbe9f9"/><text x="170" y="27">param &quot;w&quot;</text><text x="170" y="41">f32[3,3]</text></g>
<g><title>scope &quot;mlp/fc1&quot;</title><rect x="75" y="84" width="102" height="50" rx="1" fill="#ff0000"/><text x="126" y="99">3 equations</text><text x="126" y="113">1 a &lt;product&gt;</text><text x="126" y="127">@mlp/fc1</text></g>
<g><title>scope &quot;mlp/fc2&quot;</title><rect x="98" y="170" width="102" height="50" rx="1" fill="#ff0000"/><text x="149" y="185">3 equations</text><text x="149" y="199">1 a &lt;product&gt;</text><text x="149" y="213">@mlp/fc2</text></g>
<g><title>scope &quot;mlp/sum&quot;</title><rect x="71" y="256" width="89" height="36" rx="1" fill="#ffffff"/><text x="115" y="271">2 equations</text><text x="115" y="285">@mlp/sum</text></g>
<g><rect x="12" y="328" width="95" height="22" rx="8" fill="#eeeeee"/><text x="60" y="343">out data &quot;0&quot;</text></g>
<g><rect x="123" y="328" width="95" height="22" rx="8" fill="#eeeeee"/><text x="171" y="343">out data &quot;1&quot;</text></g>
</svg>
)");
}

// For any program, there is a box for everything drawn, and an arrow for each arrow that Graphviz gets.
TEST(DrawTest, RandomProgramsAreDrawn) {
  const auto count = [](const std::string& text, const std::string& word) {
    int n = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
    return n;
  };
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const Program program = *testing::RandomProgram(seed, 40);
    const std::string svg = DrawSvg(program), dot = DrawDot(program);
    ASSERT_EQ(count(svg, "<rect "), count(dot, "fillcolor=")) << seed;
    ASSERT_GE(count(svg, "<rect "), static_cast<int>(program.eqns.size() + program.inputs.size()));
    ASSERT_EQ(count(svg, "<path "), count(dot, " -> ")) << seed;
    ASSERT_EQ(count(svg, "nan"), 0) << seed;
  }
}

TEST(DrawTest, AnEmptyProgram) {
  EXPECT_THAT(DrawSvg(Program()), HasSubstr("</svg>"));
  EXPECT_THAT(DrawDot(Program()), HasSubstr("digraph program {"));
}

}  // namespace
}  // namespace aqt
