#ifndef AQT_GRAPH_DRAW_DRAWING_H_
#define AQT_GRAPH_DRAW_DRAWING_H_

// The boxes and arrows of draw.h, before layout. Internal.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "aqt/graph/draw/draw.h"
#include "aqt/graph/program.h"

namespace aqt::internal {

struct Box {
  std::vector<std::string> lines = {};
  std::string color = "#ffffff";
  std::string scope = "";   // scope of its equations
  std::string title = "";   // shown when the mouse is over it
  bool is_rounded = false;  // an input, a constant or an output
};

struct Arrow {
  int from, to;
  std::string label;  // "" unless the source has several results
};

// Boxes in an order in which all arrows point forward, except between folded scopes.
struct Drawing {
  std::vector<Box> boxes = {};
  std::vector<Arrow> arrows = {};
};

Drawing MakeDrawing(const Program& program, const DrawOptions& options);

// The first `levels` levels of a scope: "mlp" of "mlp/fc1", "grad(mlp)" of "grad(mlp/fc1)".
std::string OuterScope(absl::string_view scope, int levels);
int NumLevels(absl::string_view scope);

}  // namespace aqt::internal

#endif  // AQT_GRAPH_DRAW_DRAWING_H_
