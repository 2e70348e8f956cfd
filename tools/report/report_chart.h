// What the report's pictures against time share: a column of row names that stays in view while the plot
// scrolls, an axis, a legend.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/base/amounts.h"
#include "tools/report/report_timeline.h"

namespace pipeshard {

enum class SvgUse {
  kInPage,  // styled by the page; two SVG elements side by side
  kFile,    // stands alone: namespace, style, legend and background included
};

// "1.234 ms", four significant digits.
std::string formatNanoseconds(double nanoseconds);

struct LegendEntry {
  std::vector<std::string> classes;  // of the swatches, side by side
  std::string text;
};
std::string legendHtml(std::span<const LegendEntry> entries);

// From 0 to `length` on `width` pixels.
struct TimeAxis {
  double length = 0;
  double width = 920;
  bool nanoseconds = false;  // else the axis tells percents of the step
  double x(double time) const { return length > 0 ? time / length * width : 0; }
};
// Lines from top to bottom, and the numbers below.
std::string axisSvg(const TimeAxis& axis, double top, double bottom);

struct Chart {
  std::string title;  // for screen readers
  std::string names;  // SVG, in a column of names_width
  std::string plot;   // SVG, from x = 0 on
  double names_width = 108;
  double plot_width = 920;
  double height = 0;
  // it has the class "idle", whose pattern comes with it: one such chart a page
  bool hatched = false;
  std::vector<LegendEntry> legend = {};  // drawn in files only; the page has it as text
};
// Room that a plot has to the left and to the right of its x axis.
inline constexpr double kPlotLeft = 4;
inline constexpr double kPlotRight = 84;

std::string renderChart(const Chart& chart, SvgUse use);

// <text>, escaped.
std::string svgText(double x, double y, std::string_view css_class, std::string_view text,
                    std::string_view anchor = "start");

}  // namespace pipeshard
