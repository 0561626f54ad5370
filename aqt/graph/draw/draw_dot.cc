#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aqt/graph/draw/draw.h"
#include "aqt/graph/draw/drawing.h"

namespace aqt {
namespace {

using internal::Arrow;
using internal::Box;
using internal::Drawing;

// A string of the DOT language; a line break is written \n.
std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    if (c == '\n') out += "\\n";
    else out.push_back(c);
  }
  return out + "\"";
}

// A scope with the boxes directly in it and the scopes below.
struct Cluster {
  std::vector<int> boxes = {};
  std::map<std::string, Cluster> inner = {};
};

void Write(const Drawing& drawing, const Cluster& cluster, const std::string& indent, int& number, std::string& out) {
  for (const int i : cluster.boxes) {
    const Box& box = drawing.boxes[i];
    absl::StrAppend(&out, indent, "n", i, " [label=", Quoted(absl::StrJoin(box.lines, "\n")),
                    ", fillcolor=", Quoted(box.color), box.is_rounded ? ", style=\"filled,rounded\"" : "");
    if (!box.title.empty()) absl::StrAppend(&out, ", tooltip=", Quoted(box.title));
    out += "];\n";
  }
  for (const auto& [scope, inner] : cluster.inner) {
    absl::StrAppend(&out, indent, "subgraph cluster_", number++, " {\n", indent, "  label=", Quoted(scope), ";\n");
    Write(drawing, inner, absl::StrCat(indent, "  "), number, out);
    absl::StrAppend(&out, indent, "}\n");
  }
}

}  // namespace

std::string DrawDot(const Program& program, const DrawOptions& options) {
  const Drawing drawing = internal::MakeDrawing(program, options);
  Cluster all;
  for (size_t i = 0; i < drawing.boxes.size(); ++i) {
    Cluster* at = &all;
    const std::string& scope = drawing.boxes[i].scope;
    for (int level = 1; level <= internal::NumLevels(scope); ++level) {
      at = &at->inner[internal::OuterScope(scope, level)];
    }
    at->boxes.push_back(static_cast<int>(i));
  }
  std::string out =
      "digraph program {\n"
      "  node [shape=box, style=filled, fontname=\"monospace\", fontsize=10];\n"
      "  edge [fontname=\"monospace\", fontsize=8];\n";
  int number = 0;
  Write(drawing, all, "  ", number, out);
  for (const Arrow& arrow : drawing.arrows) {
    absl::StrAppend(&out, "  n", arrow.from, " -> n", arrow.to);
    if (!arrow.label.empty()) absl::StrAppend(&out, " [label=", Quoted(arrow.label), "]");
    out += ";\n";
  }
  return out + "}\n";
}

}  // namespace aqt
