#ifndef AQT_GRAPH_DRAW_DRAW_H_
#define AQT_GRAPH_DRAW_DRAW_H_

// A program as a picture: boxes for inputs (by kind), equations and outputs, arrows from results to their uses.
//
//   std::string svg = DrawSvg(program, {.depth = 2, .paint = ops::PaintNumerics});
//
// Constants of one element are written into the boxes that read them.

#include <functional>
#include <optional>
#include <string>

#include "aqt/graph/program.h"

namespace aqt {

// How a box differs from a plain one.
struct Paint {
  std::string color = "";  // "#rrggbb"; "" for a plain box
  std::string note = "";   // a line in the box
};

struct DrawOptions {
  // Equations whose scope has at least this many levels are drawn as one box per scope of that many levels: 1 folds
  // "mlp/fc1" and "mlp/fc2" into "mlp", 0 folds everything. Null: a box for each equation.
  std::optional<int> depth = std::nullopt;
  std::function<Paint(const Equation&)> paint = nullptr;
};

// Graphviz: scopes are clusters. `dot -Tsvg` lays it out.
std::string DrawDot(const Program& program, const DrawOptions& options = {});

// SVG, without Graphviz: rows from inputs to outputs. Scopes are written into the boxes.
std::string DrawSvg(const Program& program, const DrawOptions& options = {});

}  // namespace aqt

#endif  // AQT_GRAPH_DRAW_DRAW_H_
