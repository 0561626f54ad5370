// A layered layout. Each box is in the row after the last of its operands. An arrow over several rows bends in each of
// them. Rows are ordered, and boxes moved, towards the mean of their neighbours.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/graph/draw/draw.h"
#include "aqt/graph/draw/drawing.h"

namespace aqt {
namespace {

using internal::Arrow;
using internal::Box;
using internal::Drawing;

constexpr double kCharWidth = 6.6, kLineHeight = 14, kPadding = 8, kGap = 16, kRowGap = 36, kMargin = 12;
constexpr int kSweeps = 6;

std::string Escaped(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out.push_back(c);
    }
  }
  return out;
}

// The lines of a box as drawn, including its scope.
std::vector<std::string> LinesOf(const Box& box) {
  std::vector<std::string> lines = box.lines;
  if (!box.scope.empty()) lines.push_back(absl::StrCat("@", box.scope));
  return lines;
}

// A box, or the bend of an arrow in a row that it crosses.
struct Place {
  int row = 0;
  double width = 0, height = 0;
  double x = 0, y = 0;                      // of the centre
  std::vector<int> above = {}, below = {};  // the places in neighbouring rows that arrows connect to this one
};

class Layout {
 public:
  explicit Layout(const Drawing& drawing) : drawing_(drawing), places_(drawing.boxes.size()) {
    for (size_t i = 0; i < drawing.boxes.size(); ++i) {
      size_t longest = 0;
      const std::vector<std::string> lines = LinesOf(drawing.boxes[i]);
      for (const std::string& line : lines) longest = std::max(longest, line.size());
      places_[i].width = static_cast<double>(longest) * kCharWidth + 2 * kPadding;
      places_[i].height = static_cast<double>(lines.size()) * kLineHeight + kPadding;
    }
    FindRows();
    for (const Arrow& arrow : drawing.arrows) AddPath(arrow);
    rows_.resize(places_.empty() ? 0 : 1 + MaxRow());
    for (size_t i = 0; i < places_.size(); ++i) rows_[places_[i].row].push_back(static_cast<int>(i));
    for (int sweep = 0; sweep < kSweeps; ++sweep) Order(sweep % 2 == 0);
    for (std::vector<int>& row : rows_) PutInOrder(row);
    for (int sweep = 0; sweep < kSweeps; ++sweep) Straighten(sweep % 2 == 0);
    SetHeights();
  }

  const std::vector<Place>& places() const { return places_; }
  const std::vector<std::vector<int>>& paths() const { return paths_; }  // by arrow: its places
  double width() const { return width_; }
  double height() const { return height_; }

 private:
  int MaxRow() const {
    int last = 0;
    for (const Place& place : places_) last = std::max(last, place.row);
    return last;
  }

  // Boxes without operands are directly above the first box that reads them.
  void FindRows() {
    std::vector<Arrow> arrows = drawing_.arrows;
    std::stable_sort(arrows.begin(), arrows.end(), [](const Arrow& a, const Arrow& b) { return a.from < b.from; });
    std::vector<bool> has_operands(places_.size(), false);
    for (const Arrow& arrow : arrows) {
      if (arrow.from >= arrow.to) continue;  // back to a folded scope
      places_[arrow.to].row = std::max(places_[arrow.to].row, places_[arrow.from].row + 1);
      has_operands[arrow.to] = true;
    }
    std::vector<int> first(places_.size(), -1);
    for (const Arrow& arrow : arrows) {
      const int row = places_[arrow.to].row;
      if (arrow.from < arrow.to && (first[arrow.from] < 0 || row < first[arrow.from])) first[arrow.from] = row;
    }
    for (size_t i = 0; i < places_.size(); ++i) {
      if (!has_operands[i] && first[i] > 0) places_[i].row = first[i] - 1;
    }
  }

  void AddPath(const Arrow& arrow) {
    std::vector<int>& path = paths_.emplace_back(std::vector<int>{arrow.from});
    const int from = places_[arrow.from].row, to = places_[arrow.to].row, step = from < to ? 1 : -1;
    for (int row = from + step; from != to && row != to; row += step) {
      path.push_back(static_cast<int>(places_.size()));
      places_.push_back({.row = row});
    }
    path.push_back(arrow.to);
    for (size_t i = 0; i + 1 < path.size(); ++i) {
      const bool down = places_[path[i]].row <= places_[path[i + 1]].row;
      const int upper = down ? path[i] : path[i + 1], lower = down ? path[i + 1] : path[i];
      places_[upper].below.push_back(lower);
      places_[lower].above.push_back(upper);
    }
  }

  // The mean of `x` over the neighbours on one side, or of the place itself.
  template <class X>
  double Mean(int place, bool from_above, const X& x) const {
    const std::vector<int>& neighbours = from_above ? places_[place].above : places_[place].below;
    if (neighbours.empty()) return x(place);
    double sum = 0;
    for (const int neighbour : neighbours) sum += x(neighbour);
    return sum / static_cast<double>(neighbours.size());
  }

  template <class Visit>
  void ForEachRow(bool from_above, const Visit& visit) {
    for (size_t i = 0; i < rows_.size(); ++i) visit(rows_[from_above ? i : rows_.size() - 1 - i]);
  }

  void Order(bool from_above) {
    std::vector<double> position(places_.size());
    for (const std::vector<int>& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i)
        position[row[i]] = static_cast<double>(i) / static_cast<double>(row.size());
    }
    ForEachRow(from_above, [&](std::vector<int>& row) {
      std::vector<double> wanted(places_.size());
      for (const int place : row) wanted[place] = Mean(place, from_above, [&](int other) { return position[other]; });
      std::stable_sort(row.begin(), row.end(), [&](int a, int b) { return wanted[a] < wanted[b]; });
      for (size_t i = 0; i < row.size(); ++i)
        position[row[i]] = static_cast<double>(i) / static_cast<double>(row.size());
    });
  }

  double Distance(int left, int right) const { return (places_[left].width + places_[right].width) / 2 + kGap; }

  void PutInOrder(const std::vector<int>& row) {
    for (size_t i = 1; i < row.size(); ++i) places_[row[i]].x = places_[row[i - 1]].x + Distance(row[i - 1], row[i]);
  }

  // Moves each place as close to its wanted position as its neighbours in the row allow, without a shift of the row as
  // a whole.
  void Straighten(bool from_above) {
    ForEachRow(from_above, [&](std::vector<int>& row) {
      std::vector<double> wanted;
      for (const int place : row)
        wanted.push_back(Mean(place, from_above, [&](int other) { return places_[other].x; }));
      double moved = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        Place& place = places_[row[i]];
        place.x = wanted[i];
        if (i > 0) place.x = std::max(place.x, places_[row[i - 1]].x + Distance(row[i - 1], row[i]));
        moved += place.x - wanted[i];
      }
      for (const int place : row) places_[place].x -= moved / static_cast<double>(row.size());
    });
  }

  void SetHeights() {
    double left = 0, y = kMargin;
    for (const Place& place : places_) left = std::min(left, place.x - place.width / 2);
    for (const std::vector<int>& row : rows_) {
      double height = 0;
      for (const int place : row) height = std::max(height, places_[place].height);
      for (const int place : row) {
        places_[place].x += kMargin - left;
        places_[place].y = y + height / 2;
        width_ = std::max(width_, places_[place].x + places_[place].width / 2 + kMargin);
      }
      y += height + kRowGap;
    }
    height_ = y - kRowGap + kMargin;
  }

  const Drawing& drawing_;
  std::vector<Place> places_;  // those of boxes come first
  std::vector<std::vector<int>> paths_;
  std::vector<std::vector<int>> rows_;
  double width_ = 2 * kMargin, height_ = 2 * kMargin;
};

long Rounded(double x) { return std::lround(x); }

void WriteArrow(const Layout& layout, const Arrow& arrow, const std::vector<int>& path, std::string& out) {
  const auto at = [&](size_t i) -> const Place& { return layout.places()[path[i]]; };
  double x = at(0).x, y = at(0).y + at(0).height / 2;
  absl::StrAppend(&out, "<path d=\"M", Rounded(x), " ", Rounded(y));
  for (size_t i = 1; i < path.size(); ++i) {
    const Place& next = at(i);
    const double end = next.y - next.height / 2, middle = (y + end) / 2;
    absl::StrAppend(&out, " C", Rounded(x), " ", Rounded(middle), " ", Rounded(next.x), " ", Rounded(middle), " ",
                    Rounded(next.x), " ", Rounded(end));
    x = next.x;
    y = end;
  }
  absl::StrAppend(&out, "\"/>\n");
  if (arrow.label.empty()) return;
  absl::StrAppend(&out, "<text x=\"", Rounded(at(0).x) + 4, "\" y=\"", Rounded(at(0).y + at(0).height / 2) + 11,
                  "\" class=\"label\">", Escaped(arrow.label), "</text>\n");
}

void WriteBox(const Place& place, const Box& box, std::string& out) {
  const std::vector<std::string> lines = LinesOf(box);
  const double top = place.y - place.height / 2;
  out += "<g>";
  if (!box.title.empty()) absl::StrAppend(&out, "<title>", Escaped(box.title), "</title>");
  absl::StrAppend(&out, "<rect x=\"", Rounded(place.x - place.width / 2), "\" y=\"", Rounded(top), "\" width=\"",
                  Rounded(place.width), "\" height=\"", Rounded(place.height), "\" rx=\"", box.is_rounded ? 8 : 1,
                  "\" fill=\"", Escaped(box.color), "\"/>");
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&out, "<text x=\"", Rounded(place.x), "\" y=\"",
                    Rounded(top + kPadding / 2 + kLineHeight * (static_cast<double>(i) + 0.75)), "\">",
                    Escaped(lines[i]), "</text>");
  }
  out += "</g>\n";
}

}  // namespace

std::string DrawSvg(const Program& program, const DrawOptions& options) {
  const Drawing drawing = internal::MakeDrawing(program, options);
  const Layout layout(drawing);
  const long width = Rounded(layout.width()), height = Rounded(layout.height());
  std::string out = absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height, "\" viewBox=\"0 0 ", width,
      " ", height, "\">\n<style>text{font:11px monospace;text-anchor:middle}.label{font-size:9px;text-anchor:start}",
      "rect{stroke:#555}path{fill:none;stroke:#888;marker-end:url(#a)}</style>\n",
      "<marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" "
      "orient=\"auto\">",
      "<polygon points=\"0 0 8 4 0 8\" fill=\"#888\"/></marker>\n");
  for (size_t i = 0; i < drawing.arrows.size(); ++i) {
    WriteArrow(layout, drawing.arrows[i], layout.paths()[i], out);
  }
  for (size_t i = 0; i < drawing.boxes.size(); ++i) WriteBox(layout.places()[i], drawing.boxes[i], out);
  return out + "</svg>\n";
}

}  // namespace aqt
