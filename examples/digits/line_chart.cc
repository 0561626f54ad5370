#include "examples/digits/line_chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace digits {
namespace {

constexpr double kWidth = 720, kHeight = 440;
constexpr double kLeft = 72, kRight = 700, kTop = 48, kBottom = 388;  // of the plot
constexpr int kMaxTicks = 7;
// Distinguishable with colour blindness (Okabe and Ito, 2002).
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
// Overlapping curves stay visible through each other's gaps.
constexpr const char* kDashes[] = {"none", "10 6", "3 5", "14 4 3 4"};

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// Maps numbers of one axis to the picture.
struct Scale {
  bool log = false;
  double low = 0, high = 1;        // log10 of the numbers when log
  double from = 0, to = 1;         // in the picture
  std::vector<double> ticks = {};  // numbers

  bool Has(double x) const { return std::isfinite(x) && (!log || x > 0); }
  double At(double x) const { return from + ((log ? std::log10(x) : x) - low) / (high - low) * (to - from); }
};

// The smallest of 1, 2, 5 times a power of ten that is at least x > 0.
double RoundUp(double x) {
  const double power = std::pow(10, std::floor(std::log10(x)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= x * (1 - 1e-9)) return digit * power;
  }
  return 10 * power;
}

Scale MakeScale(const std::vector<double>& numbers, bool log, double from, double to) {
  Scale scale{.log = log, .from = from, .to = to};
  double low = INFINITY, high = -INFINITY;
  for (const double x : numbers) {
    if (!scale.Has(x)) continue;
    low = std::min(low, log ? std::log10(x) : x);
    high = std::max(high, log ? std::log10(x) : x);
  }
  if (low > high) low = 0, high = 1;
  if (low == high) low -= 0.5, high += 0.5;
  // At least one decade on a log axis.
  const double step = std::max(RoundUp((high - low) / kMaxTicks), log ? 1.0 : 0.0);
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last; ++i) scale.ticks.push_back(log ? std::pow(10, i * step) : i * step);
  scale.low = first * step;
  scale.high = last * step;
  return scale;
}

std::string Line(double x1, double y1, double x2, double y2, absl::string_view style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style);
}

std::string Text(double x, double y, absl::string_view text, absl::string_view attributes) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, attributes, Escaped(text));
}

std::string Curve(const LineChart::Series& series, const Scale& x, const Scale& y, absl::string_view style) {
  std::string path;
  bool pen_down = false;
  for (const auto& [px, py] : series.points) {
    if (!x.Has(px) || !y.Has(py)) {
      pen_down = false;
      continue;
    }
    absl::StrAppendFormat(&path, "%s%.1f %.1f", pen_down ? " L" : " M", x.At(px), y.At(py));
    // A single point is drawn as a dot: a line of length zero with round ends.
    if (!pen_down) absl::StrAppendFormat(&path, " L%.1f %.1f", x.At(px), y.At(py));
    pen_down = true;
  }
  if (path.empty()) return "";
  return absl::StrCat("<path d=\"", path.substr(1), "\" fill=\"none\" stroke-linejoin=\"round\" ", style, "/>\n");
}

}  // namespace

std::string ToSvg(const LineChart& chart) {
  std::vector<double> xs, ys;
  for (const LineChart::Series& series : chart.series) {
    for (const auto& [px, py] : series.points) {
      xs.push_back(px);
      ys.push_back(py);
    }
  }
  const Scale x = MakeScale(xs, /*log=*/false, kLeft, kRight), y = MakeScale(ys, chart.log_y, kBottom, kTop);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight, kWidth, kHeight);
  svg += Text((kLeft + kRight) / 2, 28, chart.title, "text-anchor=\"middle\" font-size=\"16\"");
  for (const double tick : x.ticks) {
    svg += Line(x.At(tick), kTop, x.At(tick), kBottom, "stroke=\"#e0e0e0\"");
    svg += Text(x.At(tick), kBottom + 18, absl::StrFormat("%g", tick), "text-anchor=\"middle\"");
  }
  for (const double tick : y.ticks) {
    svg += Line(kLeft, y.At(tick), kRight, y.At(tick), "stroke=\"#e0e0e0\"");
    svg += Text(kLeft - 8, y.At(tick) + 4, absl::StrFormat("%g", tick), "text-anchor=\"end\"");
  }
  svg += Line(kLeft, kBottom, kRight, kBottom, "stroke=\"black\"");
  svg += Line(kLeft, kTop, kLeft, kBottom, "stroke=\"black\"");
  svg += Text((kLeft + kRight) / 2, kHeight - 14, chart.x_label, "text-anchor=\"middle\"");
  svg += Text(
      0, 0, chart.y_label,
      absl::StrFormat("text-anchor=\"middle\" transform=\"translate(20 %.1f) rotate(-90)\"", (kTop + kBottom) / 2));
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const std::string style =
        absl::StrFormat("stroke=\"%s\" stroke-dasharray=\"%s\" stroke-width=\"2\" stroke-linecap=\"round\"",
                        kColors[i % std::size(kColors)], kDashes[i % std::size(kDashes)]);
    svg += Curve(chart.series[i], x, y, style);
    const double row = kTop + 16 + 20 * static_cast<double>(i);
    svg += Line(kRight - 150, row, kRight - 122, row, style);
    svg += Text(kRight - 114, row + 4, chart.series[i].name, "");
  }
  return svg + "</svg>\n";
}

}  // namespace digits
