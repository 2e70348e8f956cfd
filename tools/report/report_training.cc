#include "tools/report/report_training.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "tools/report/report_html.h"

namespace pipeshard {
namespace {

constexpr double kPanelGap = 38;  // room for the next panel's title
constexpr double kTop = 22;
constexpr size_t kMostTableRows = 40;    // of a table; the last ones
constexpr double kLargestDrawn = 1e300;  // sums and differences of two are finite
constexpr double kLeastSpread = 1e-13;   // of values, in relation to their size; less are rounding errors

struct Point {
  double step = 0;
  double value = 0;
};

// The points of as many columns as the plot has pixels.
struct Column {
  double step = 0;  // mean
  double mean = 0;
  double low = 0;
  double high = 0;
};

struct StepAxis {
  double first = 1;
  double last = 1;
  double width = 920;
  // Within the plot, whatever a log says.
  double x(double step) const {
    return last > first ? (std::clamp(step, first, last) - first) / (last - first) * width : width / 2;
  }
};

struct Panel {
  std::string title;
  double height = 100;
  std::vector<Point> line;
  std::vector<Point> marks;  // joined, and a dot each
  bool from_zero = false;
};

std::vector<Column> columnsOf(const std::vector<Point>& points, const StepAxis& axis) {
  std::vector<Column> columns;
  double count = 0;
  int64_t at = -1;
  for (const Point& point : points) {
    const int64_t pixel = std::llround(axis.x(point.step));
    if (pixel != at || columns.empty()) {
      columns.push_back({point.step, point.value, point.value, point.value});
      count = 1;
      at = pixel;
      continue;
    }
    Column& column = columns.back();
    ++count;
    column.step += (point.step - column.step) / count;
    column.mean += (point.value - column.mean) / count;
    column.low = std::min(column.low, point.value);
    column.high = std::max(column.high, point.value);
  }
  return columns;
}

// Limits that are whole multiples of a step of 1, 2 or 5 times a power of ten, and that step.
struct ValueAxis {
  double low = 0;
  double high = 1;
  double step = 1;
};

ValueAxis valueAxis(const Panel& panel) {
  double low = panel.from_zero ? 0 : INFINITY, high = -INFINITY;
  for (const std::vector<Point>* points : {&panel.line, &panel.marks}) {
    for (const Point& point : *points) {
      low = std::min(low, point.value);
      high = std::max(high, point.value);
    }
  }
  if (!(high - low > std::max({std::abs(low), std::abs(high), 1 / kLargestDrawn}) * kLeastSpread)) {
    const double around = std::max(std::abs(low) / 2, 1e-12);
    low = panel.from_zero ? 0 : low - around;
    high = panel.from_zero ? std::max(high, 1e-12) : high + around;
  }
  ValueAxis axis;
  const double least = (high - low) / 4;
  const double power = std::pow(10, std::floor(std::log10(least)));
  axis.step = power * 10;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (power * factor >= least) axis.step = power * factor;
  }
  axis.low = std::floor(low / axis.step) * axis.step;
  axis.high = std::ceil(high / axis.step) * axis.step;
  return axis;
}

std::string numberText(double number, double step) {
  if (std::abs(number) < step * 1e-6) return "0";
  if (std::abs(number) >= 1e7) return fmt::format("{:g}M", number / 1e6);
  if (std::abs(number) >= 1e4) return fmt::format("{:g}k", number / 1e3);
  if (step < 1e-4) return fmt::format("{:.3g}", number);
  return fmt::format("{:.{}f}", number, std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9))));
}

class ChartBuilder {
 public:
  ChartBuilder(const StepAxis& axis, const RunHistory& history) : axis_(axis), history_(history) {
    chart_.plot_width = axis.width;
    chart_.height = kTop;
  }

  // Nothing where there is nothing to draw.
  void add(const Panel& panel) {
    if (panel.line.empty() && panel.marks.empty()) return;
    const double top = chart_.height, bottom = top + panel.height;
    const ValueAxis values = valueAxis(panel);
    const auto y = [&](double value) {
      return bottom - (value - values.low) / (values.high - values.low) * panel.height;
    };
    chart_.names += svgText(0, top - 8, "head", panel.title);
    const int ticks = static_cast<int>(std::lround((values.high - values.low) / values.step));
    for (int i = 0; i <= ticks; ++i) {
      const double value = values.low + i * values.step;
      chart_.plot +=
          fmt::format("<line class=\"grid\" x1=\"0\" y1=\"{0:.1f}\" x2=\"{1:.0f}\" y2=\"{0:.1f}\"/>",
                      y(value), axis_.width);
      chart_.names +=
          svgText(chart_.names_width - 6, y(value) + 4, "dim", numberText(value, values.step), "end");
    }
    drawLine(columnsOf(panel.line, axis_), y);
    drawMarks(panel.marks, y);
    for (const int64_t step : history_.resumed) drawMoment("limit", step, top, bottom);
    for (const RunHistory::Restart& restart : history_.restarts)
      drawMoment("lost", restart.step, top, bottom);
    if (top == kTop) numberRestarts(top);
    chart_.height = bottom + kPanelGap;
  }

  Chart finish() && {
    const double bottom = chart_.height - kPanelGap;
    chart_.height = bottom + 30;
    const double span = axis_.last - axis_.first;
    const double least = std::max(span / (axis_.width / 90), 1.0);
    const double power = std::pow(10, std::floor(std::log10(least)));
    double step = power * 10;
    for (const double factor : {5.0, 2.0, 1.0}) {
      if (power * factor >= least) step = power * factor;
    }
    chart_.names += svgText(chart_.names_width - 6, bottom + 18, "dim", "step", "end");
    // Counted: behind 2^53 a sum of one more is the same number again.
    const double first = std::ceil(axis_.first / step) * step;
    // None in a log whose steps end before they begin.
    const auto labels = static_cast<int>(std::max(0.0, std::floor((axis_.last - first) / step) + 1));
    for (int i = 0; i < labels; ++i) {
      const double at = first + i * step;
      chart_.plot += svgText(axis_.x(at), bottom + 18, "dim", fmt::format("{:.0f}", at), "middle") + "\n";
    }
    return std::move(chart_);
  }

 private:
  void drawMoment(const char* css_class, int64_t step, double top, double bottom) {
    chart_.plot +=
        fmt::format("<line class=\"{3}\" x1=\"{0:.1f}\" y1=\"{1:.0f}\" x2=\"{0:.1f}\" y2=\"{2:.0f}\"/>\n",
                    axis_.x(static_cast<double>(step)), top, bottom, css_class);
  }

  // As the table has them; one that would lie on another is left out.
  void numberRestarts(double top) {
    double free_from = -1;
    for (size_t i = 0; i < history_.restarts.size(); ++i) {
      const double x = axis_.x(static_cast<double>(history_.restarts[i].step)) + 3;
      if (x < free_from) continue;
      const std::string text = fmt::format("{}", i + 1);
      chart_.plot += svgText(x, top + 10, "limit-text", text) + "\n";
      free_from = x + 8 * static_cast<double>(text.size() + 1);
    }
  }

  void drawLine(const std::vector<Column>& columns, const std::function<double(double)>& y) {
    const bool spread = std::any_of(columns.begin(), columns.end(),
                                    [](const Column& column) { return column.high > column.low; });
    if (spread) {
      std::string outline;
      for (const Column& column : columns)
        outline += fmt::format("{:.1f},{:.1f} ", axis_.x(column.step), y(column.high));
      for (auto column = columns.rbegin(); column != columns.rend(); ++column)
        outline += fmt::format("{:.1f},{:.1f} ", axis_.x(column->step), y(column->low));
      chart_.plot += fmt::format("<polygon class=\"area\" points=\"{}\"/>\n", outline);
    }
    std::string points;
    for (const Column& column : columns)
      points += fmt::format("{:.1f},{:.1f} ", axis_.x(column.step), y(column.mean));
    if (!points.empty()) chart_.plot += fmt::format("<polyline class=\"edge\" points=\"{}\"/>\n", points);
  }

  void drawMarks(const std::vector<Point>& marks, const std::function<double(double)>& y) {
    std::string points;
    for (const Point& mark : marks)
      points += fmt::format("{:.1f},{:.1f} ", axis_.x(mark.step), y(mark.value));
    if (marks.size() > 1)
      chart_.plot += fmt::format("<polyline class=\"measured\" points=\"{}\"/>\n", points);
    if (marks.size() > 200) return;
    for (const Point& mark : marks) {
      chart_.plot += fmt::format("<circle class=\"point\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n",
                                 axis_.x(mark.step), y(mark.value));
    }
  }

  StepAxis axis_;
  const RunHistory& history_;
  Chart chart_;
};

template <typename Items, typename Get>
std::vector<Point> pointsOf(const Items& items, const Get& get) {
  std::vector<Point> points;
  for (const auto& item : items) {
    const std::optional<double> value = get(item);
    if (value && std::abs(*value) <= kLargestDrawn)
      points.push_back({static_cast<double>(item.step), *value});
  }
  return points;
}

Panel speedPanel(const RunHistory& history) {
  using Step = RunHistory::Step;
  Panel panel{
      "tokens/s", 80, pointsOf(history.steps, [](const Step& s) { return s.tokens_per_second; }), {}, true};
  if (!panel.line.empty()) return panel;
  panel.title = "examples/s";
  panel.line = pointsOf(history.steps, [](const Step& s) { return s.examples_per_second; });
  if (!panel.line.empty()) return panel;
  panel.title = "steps/s";
  panel.line = pointsOf(history.steps, [](const Step& s) {
    return s.seconds > 0 ? std::optional(1 / s.seconds) : std::nullopt;
  });
  return panel;
}

bool changes(const std::vector<Point>& points) {
  return std::any_of(points.begin(), points.end(),
                     [&](const Point& point) { return point.value != points.front().value; });
}

double medianSeconds(const RunHistory& history) {
  std::vector<double> seconds;
  for (const RunHistory::Step& step : history.steps) seconds.push_back(step.seconds);
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

std::string summary(const RunHistory& history) {
  std::string text = counted(std::ssize(history.steps), "step") + " in the log";
  const std::vector<Point> losses = pointsOf(history.steps, [](const auto& step) { return step.loss; });
  if (!losses.empty())
    text += fmt::format("; the loss went from {:.6g} to {:.6g}", losses.front().value, losses.back().value);
  const std::vector<Point> held_out = pointsOf(history.evaluations, [](const auto& at) { return at.loss; });
  if (!held_out.empty()) {
    const Point best = *std::min_element(held_out.begin(), held_out.end(),
                                         [](const Point& a, const Point& b) { return a.value < b.value; });
    text += fmt::format("; that of the held-out data is {:.6g}, at its best {:.6g} after step {:.0f}",
                        held_out.back().value, best.value, best.step);
  }
  text +=
      fmt::format("; half of the steps took less than {}", formatNanoseconds(medianSeconds(history) * 1e9));
  if (!history.resumed.empty())
    text +=
        fmt::format("; the run has gone on from a checkpoint {}",
                    history.resumed.size() == 1 ? "once" : fmt::format("{} times", history.resumed.size()));
  if (!history.restarts.empty()) {
    double seconds = 0;
    for (const RunHistory::Restart& restart : history.restarts) seconds += restart.seconds;
    text += fmt::format("; {} after a loss took {:.1f} s in all",
                        counted(std::ssize(history.restarts), "restart"), seconds);
  }
  return text + ".";
}

// Rows from `first` on, and that there are others before them.
std::string lastRows(const HtmlTable& table, size_t first, std::string_view what) {
  return (first > 0 ? paragraph(fmt::format("The last {} {}:", kMostTableRows, what)) : "") +
         renderTable(table);
}

std::string evaluationTable(const RunHistory& history) {
  if (history.evaluations.empty()) return "";
  HtmlTable table{
      "Evaluations", {numberCell("After step"), numberCell("Held-out loss"), numberCell("Took")}, {}};
  const size_t count = history.evaluations.size(), first = count - std::min(count, kMostTableRows);
  for (size_t i = first; i < count; ++i) {
    const RunHistory::Evaluation& evaluation = history.evaluations[i];
    table.rows.push_back(
        {numberCell(fmt::format("{}", evaluation.step)),
         numberCell(evaluation.loss ? fmt::format("{:.6g}", *evaluation.loss) : "not finite"),
         numberCell(formatNanoseconds(evaluation.seconds * 1e9))});
  }
  return lastRows(table, first, "evaluations");
}

std::string restartTable(const RunHistory& history) {
  if (history.restarts.empty()) return "";
  HtmlTable table{"Restarts",
                  {numberCell("Restart"), numberCell("After step"), numberCell("Went on behind"),
                   numberCell("Until a step was done"), textCell("What was lost")},
                  {},
                  true};
  const size_t count = history.restarts.size(), first = count - std::min(count, kMostTableRows);
  for (size_t i = first; i < count; ++i) {
    const RunHistory::Restart& restart = history.restarts[i];
    table.rows.push_back({numberCell(fmt::format("{}", i + 1)), numberCell(fmt::format("{}", restart.step)),
                          numberCell(fmt::format("{}", restart.from)),
                          numberCell(fmt::format("{:.1f} s", restart.seconds)), textCell(restart.lost)});
  }
  return lastRows(table, first, "restarts");
}

}  // namespace

Chart trainingChart(const RunHistory& history) {
  StepAxis axis;
  axis.first = static_cast<double>(history.steps.front().step);
  axis.last = static_cast<double>(history.steps.back().step);
  ChartBuilder builder(axis, history);
  const Panel loss{"loss", 190, pointsOf(history.steps, [](const auto& step) { return step.loss; }),
                   pointsOf(history.evaluations, [](const auto& at) { return at.loss; })};
  builder.add(loss);
  builder.add(speedPanel(history));
  const Panel rate{"learning rate",
                   70,
                   pointsOf(history.steps, [](const auto& step) { return step.learning_rate; }),
                   {},
                   true};
  if (changes(rate.line)) builder.add(rate);
  const Panel norm{"gradient norm",
                   70,
                   pointsOf(history.steps, [](const auto& step) { return step.gradient_norm; }),
                   {},
                   true};
  builder.add(norm);
  Chart chart = std::move(builder).finish();
  chart.title = "Loss, speed and learning rate over the steps of a run";
  chart.legend = {{{"f2"}, "a step"}, {{"i2"}, "held-out data"}};
  return chart;
}

std::string renderTraining(const RunHistory& history) {
  if (history.steps.empty()) return "";
  const Chart chart = trainingChart(history);
  std::string html = paragraph(summary(history));
  if (!history.evaluations.empty()) html += legendHtml(chart.legend);
  html += scrollBox("Training chart", renderChart(chart, SvgUse::kInPage));
  if (!history.resumed.empty()) html += paragraph("Dashed: the run went on from a checkpoint of this step.");
  if (!history.restarts.empty())
    html += paragraph(
        "Solid, with a number: behind this step something was lost, as the table of restarts says.");
  return section("training", "Training", html + restartTable(history) + evaluationTable(history));
}

}  // namespace pipeshard
