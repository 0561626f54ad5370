#ifndef EXAMPLES_DIGITS_LINE_CHART_H_
#define EXAMPLES_DIGITS_LINE_CHART_H_

// Curves as an SVG picture, for reports of trainings.

#include <string>
#include <utility>
#include <vector>

namespace digits {

struct LineChart {
  struct Series {
    std::string name = "";
    std::vector<std::pair<double, double>> points = {};  // (x, y)
  };
  std::string title = "", x_label = "", y_label = "";
  bool log_y = false;
  std::vector<Series> series = {};
};

// A picture of 720 x 440 with axes, ticks at round numbers, a grid, labels and a legend. Points that are not finite,
// and with log_y those that are not positive, break the curve. Deterministic.
std::string ToSvg(const LineChart& chart);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_LINE_CHART_H_
