#include "tools/report/report_chart.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "tools/report/report_html.h"
#include "tools/report/report_style.h"

namespace pipeshard {
namespace {

constexpr double kSwatch = 14;
constexpr double kLegendLine = 22;
constexpr double kPerLetter = 6.5;  // of 12 px system-ui, about

// The smallest of 1, 2, 5 times a power of ten that leaves at most `most` steps.
double niceStep(double length, double most) {
  const double least = length / most;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= least) return power * factor;
  }
  return power * 10;
}

struct PlacedLegend {
  std::string svg;
  double height = 0;
};

PlacedLegend placeLegend(std::span<const LegendEntry> entries, double width) {
  PlacedLegend placed;
  double x = 10, y = 10;
  for (const LegendEntry& entry : entries) {
    const double swatches = kSwatch * static_cast<double>(entry.classes.size());
    const double needed = swatches + 6 + kPerLetter * static_cast<double>(entry.text.size());
    if (x > 10 && x + needed > width - 10) {
      x = 10;
      y += kLegendLine;
    }
    for (size_t i = 0; i < entry.classes.size(); ++i) {
      placed.svg += fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{}\" height=\"{}\"/>",
                                entry.classes[i], x + kSwatch * static_cast<double>(i), y, kSwatch, kSwatch);
    }
    placed.svg += svgText(x + swatches + 6, y + 11.5, "", entry.text);
    x += needed + 20;
  }
  placed.height = entries.empty() ? 8 : y + kLegendLine + 4;
  return placed;
}

constexpr const char* kPatterns =
    "<defs><pattern id=\"idle\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" "
    "y2=\"7\"/></pattern></defs>";

}  // namespace

std::string formatNanoseconds(double ns) {
  const auto shown = [](double value, const char* unit) {
    const int decimals = value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3;
    return fmt::format("{:.{}f} {}", value, decimals, unit);
  };
  if (ns >= 1e9) return shown(ns / 1e9, "s");
  if (ns >= 1e6) return shown(ns / 1e6, "ms");
  return ns >= 1e3 ? shown(ns / 1e3, "µs") : fmt::format("{:.0f} ns", ns);
}

std::string legendHtml(std::span<const LegendEntry> entries) {
  std::string html = "<ul class=\"key\">\n";
  for (const LegendEntry& entry : entries) {
    html += fmt::format(
        "<li><svg width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" class=\"pic\" aria-hidden=\"true\">",
        kSwatch * static_cast<double>(entry.classes.size()), kSwatch);
    for (size_t i = 0; i < entry.classes.size(); ++i) {
      html += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"0\" width=\"{}\" height=\"{}\"/>",
                          entry.classes[i], kSwatch * static_cast<double>(i), kSwatch, kSwatch);
    }
    html += fmt::format("</svg>{}</li>\n", escapeHtml(entry.text));
  }
  return html + "</ul>\n";
}

std::string axisSvg(const TimeAxis& axis, double top, double bottom) {
  std::string svg;
  const auto tick = [&](double time, const std::string& text) {
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.0f}\" x2=\"{0:.1f}\" y2=\"{2:.0f}\"/>",
                       axis.x(time), top, bottom + 4);
    svg += svgText(axis.x(time), bottom + 18, "dim", text, time == 0 ? "start" : "middle") + "\n";
  };
  if (!axis.nanoseconds) {
    for (int percent = 0; percent <= 100; percent += 10)
      tick(axis.length * percent / 100, fmt::format("{}%{}", percent, percent == 0 ? " of the step" : ""));
    return svg;
  }
  if (axis.length <= 0) return svg;
  const double step = niceStep(axis.length, axis.width / 90);
  const double unit = axis.length >= 1e9 ? 1e9 : axis.length >= 1e6 ? 1e6 : axis.length >= 1e3 ? 1e3 : 1;
  const char* name = unit == 1e9 ? "s" : unit == 1e6 ? "ms" : unit == 1e3 ? "µs" : "ns";
  for (int i = 0; i * step <= axis.length * 1.0001; ++i)
    tick(i * step, i == 0 ? fmt::format("0 {}", name) : fmt::format("{:g}", i * step / unit));
  return svg;
}

std::string svgText(double x, double y, std::string_view css_class, std::string_view text,
                    std::string_view anchor) {
  return fmt::format("<text{}{} x=\"{:.1f}\" y=\"{:.1f}\">{}</text>",
                     css_class.empty() ? "" : fmt::format(" class=\"{}\"", css_class),
                     anchor == "start" ? "" : fmt::format(" text-anchor=\"{}\"", anchor), x, y,
                     escapeHtml(text));
}

std::string renderChart(const Chart& chart, SvgUse use) {
  const double plot_width = kPlotLeft + chart.plot_width + kPlotRight;
  const char* patterns = chart.hatched ? kPatterns : "";
  if (use == SvgUse::kInPage) {
    return fmt::format(
        "<div class=\"chart\"><svg class=\"pic names\" width=\"{0:.0f}\" height=\"{2:.0f}\" viewBox=\"0 0 "
        "{0:.0f} {2:.0f}\" aria-hidden=\"true\">{3}</svg><svg class=\"pic\" width=\"{1:.0f}\" "
        "height=\"{2:.0f}\" viewBox=\"-{4} 0 {1:.0f} {2:.0f}\" role=\"img\" aria-label=\"{5}\">\n"
        "{6}\n{7}</svg></div>\n",
        chart.names_width, plot_width, chart.height, chart.names, kPlotLeft, escapeHtml(chart.title),
        patterns, chart.plot);
  }
  const double width = chart.names_width + plot_width;
  const PlacedLegend legend = placeLegend(chart.legend, width);
  const double height = legend.height + chart.height;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pic\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\">\n<title>{2}</title>\n<style>{3}</style>\n{4}\n<rect "
      "class=\"paper\" width=\"{0:.0f}\" height=\"{1:.0f}\"/>\n{5}\n"
      "<g transform=\"translate(0 {6:.0f})\">{7}</g>\n<g transform=\"translate({8:.0f} "
      "{6:.0f})\">\n{9}</g>\n</svg>\n",
      width, height, escapeHtml(chart.title), kPictureStyle, patterns, legend.svg, legend.height, chart.names,
      chart.names_width + kPlotLeft, chart.plot);
}

}  // namespace pipeshard
