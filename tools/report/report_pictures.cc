#include "tools/report/report_pictures.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/ids_format.h"
#include "tools/report/report_html.h"
#include "tools/report/report_style.h"

namespace pipeshard {
namespace {

constexpr double kRow = 54;
constexpr double kPanelGap = 10;
constexpr double kTimeAxis = 26;
constexpr size_t kMostPictureRows = 64;
constexpr int kMostDevicesInSvg = 512;

// By pixel column, the most that is held in it.
std::vector<int64_t> columns(const Timeline& timeline, const TimelineRank& rank, const TimeAxis& axis,
                             double scale) {
  std::vector<int64_t> most(static_cast<size_t>(axis.width) + 1, 0);
  const auto column = [&](int64_t time) {
    return std::min(most.size() - 1,
                    static_cast<size_t>(std::max(0.0, axis.x(scale * static_cast<double>(time)))));
  };
  for (size_t i = 0; i < rank.memory.size(); ++i) {
    const int64_t end = i + 1 < rank.memory.size() ? rank.memory[i + 1].time : timeline.length;
    for (size_t c = column(rank.memory[i].time); c <= column(std::max(rank.memory[i].time, end)); ++c)
      most[c] = std::max(most[c], rank.memory[i].held);
  }
  return most;
}

struct Outline {
  std::string edge;  // open, along the top
  std::string area;  // closed down to the base line
};

Outline outline(const std::vector<int64_t>& most, double end, double base, double per_pixel) {
  const auto y = [&](int64_t held) { return base - static_cast<double>(held) * per_pixel; };
  std::string edge = fmt::format("M0 {:.1f}", y(most.empty() ? 0 : most[0]));
  for (size_t c = 1; c < most.size() && static_cast<double>(c) <= end; ++c) {
    if (most[c] != most[c - 1]) edge += fmt::format("H{}V{:.1f}", c, y(most[c]));
  }
  edge += fmt::format("H{:.1f}", end);
  return {edge, fmt::format("{}V{:.1f}H0z", edge, base)};
}

bool hasMemory(const Timeline& timeline) {
  return std::any_of(timeline.ranks.begin(), timeline.ranks.end(),
                     [](const TimelineRank& rank) { return rank.peakMemory() > 0; });
}

class MemoryChart {
 public:
  explicit MemoryChart(std::span<const Timeline> timelines) : timelines_(timelines) {
    const auto real =
        std::find_if(timelines.begin(), timelines.end(), [](const Timeline& t) { return t.nanoseconds; });
    axis_.nanoseconds = real != timelines.end();
    axis_.width = 920;
    for (const Timeline& timeline : timelines) {
      const bool stretched = axis_.nanoseconds && !timeline.nanoseconds && timeline.busy() > 0;
      scales_.push_back(stretched ? static_cast<double>(real->busy()) / static_cast<double>(timeline.busy())
                                  : 1);
      axis_.length = std::max(axis_.length, scales_.back() * static_cast<double>(timeline.length));
      for (const TimelineRank& rank : timeline.ranks)
        most_ = std::max({most_, rank.peakMemory(), rank.memory_limit});
    }
  }

  Chart draw() const {
    Chart chart;
    chart.title = "Memory of each rank over one step";
    chart.plot_width = axis_.width;
    std::string rows;
    double y = 8;
    const size_t shown = std::min(timelines_.front().ranks.size(), kMostPictureRows);
    for (size_t r = 0; r < shown; ++r) {
      if (timelines_.front().ranks[r].memory.empty()) continue;
      drawRow(r, y, chart.names, rows);
      y += kRow + kPanelGap;
    }
    if (shown < timelines_.front().ranks.size()) {
      rows += svgText(0, y + 12, "dim",
                      fmt::format("and {} more ranks", timelines_.front().ranks.size() - shown));
      y += 24;
    }
    chart.plot = axisSvg(axis_, 8, y) + rows;
    chart.height = y + kTimeAxis;
    chart.legend = {{{"area"}, fmt::format("{} memory in use", timelines_.front().source)}};
    return chart;
  }

 private:
  void drawRow(size_t r, double y, std::string& names, std::string& rows) const {
    const Timeline& first = timelines_.front();
    const TimelineRank& rank = first.ranks[r];
    const double base = y + kRow;
    const double per_pixel = most_ > 0 ? (kRow - 4) / static_cast<double>(most_) : 0;
    names += svgText(10, y + 16, "", rank.name) +
             svgText(10, y + 31, "dim", "peak " + memoryText(first, rank.peakMemory())) + "\n";
    rows += fmt::format("<rect class=\"track\" x=\"0\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{}\"/>", y,
                        axis_.width, kRow);
    const auto draw = [&](size_t t) {
      const double end = axis_.x(scales_[t] * static_cast<double>(timelines_[t].length));
      return outline(columns(timelines_[t], timelines_[t].ranks[r], axis_, scales_[t]), end, base, per_pixel);
    };
    const Outline area = draw(0);
    rows +=
        fmt::format("<path class=\"area\" d=\"{}\"/><path class=\"edge\" d=\"{}\"/>", area.area, area.edge);
    if (timelines_.size() > 1 && r < timelines_[1].ranks.size() && !timelines_[1].ranks[r].memory.empty())
      rows += fmt::format("<path class=\"measured\" d=\"{}\"/>", draw(1).edge);
    if (rank.memory_limit > 0) {
      const double at = base - static_cast<double>(rank.memory_limit) * per_pixel;
      rows += fmt::format("<line class=\"limit\" x1=\"0\" y1=\"{0:.1f}\" x2=\"{1:.1f}\" y2=\"{0:.1f}\"/>", at,
                          axis_.width);
      rows += svgText(axis_.width + 8, at + 4, "limit-text", memoryText(first, rank.memory_limit));
    }
    rows += "\n";
  }

  std::span<const Timeline> timelines_;
  std::vector<double> scales_;
  TimeAxis axis_;
  int64_t most_ = 0;
};

}  // namespace

std::vector<Timeline> withMemory(std::span<const Timeline> timelines) {
  const bool bytes = std::any_of(timelines.begin(), timelines.end(),
                                 [](const Timeline& t) { return t.memory_in_bytes && hasMemory(t); });
  std::vector<Timeline> drawn;
  for (const Timeline& timeline : timelines) {
    if (hasMemory(timeline) && timeline.memory_in_bytes == bytes) drawn.push_back(timeline);
  }
  return drawn;
}

std::string memoryText(const Timeline& timeline, int64_t held) {
  return timeline.memory_in_bytes ? formatBytes(held) : fmt::format("{}", held);
}

Chart memoryChart(std::span<const Timeline> timelines) { return MemoryChart(timelines).draw(); }

std::vector<std::string> seats(const Plan& plan) {
  std::vector<std::vector<StageId>> stages(plan.cluster.deviceCount());
  for (const StageId s : plan.stages.ids()) {
    for (RankId device : plan.stages[s].devices) stages.at(device.index()).push_back(s);
  }
  std::vector<std::string> texts;
  for (const std::vector<StageId>& of_device : stages)
    texts.push_back(of_device.empty() ? ""
                                      : fmt::format("{} {}", of_device.size() == 1 ? "stage" : "stages",
                                                    fmt::join(of_device, ", ")));
  return texts;
}

std::string clusterSvg(const Plan& plan) {
  constexpr double kSeat = 104, kSeatHeight = 44, kPad = 12, kTitle = 26;
  const std::vector<std::string> texts = seats(plan);
  const int per_node = plan.cluster.devicesPerNode();
  const int per_row = std::min(per_node, 8);
  const int rows_per_node = (per_node + per_row - 1) / per_row;
  const int shown = std::min(plan.cluster.nodeCount(), std::max(1, kMostDevicesInSvg / per_node));
  const int nodes_per_row = std::min(shown, std::max(1, 8 / per_row));
  const double node_width = kPad + per_row * (kSeat + kPad);
  const double node_height = kTitle + rows_per_node * (kSeatHeight + kPad);
  std::string body;
  for (int node = 0; node < shown; ++node) {
    const double x = kPad + (node % nodes_per_row) * (node_width + kPad);
    const double y = kPad + (node / nodes_per_row) * (node_height + kPad);
    body += fmt::format(
        "<rect class=\"box\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"8\"/>", x, y,
        node_width, node_height);
    body += svgText(x + kPad, y + 17, "dim", fmt::format("node {}", node)) + "\n";
    const int first = plan.cluster.firstDeviceOf(node);
    for (int d = 0; d < plan.cluster.nodes[node].devices; ++d) {
      const int rank = first + d;
      const std::string& seat = texts[rank];
      const double left = x + kPad + (d % per_row) * (kSeat + kPad);
      const double top = y + kTitle + (d / per_row) * (kSeatHeight + kPad);
      body +=
          fmt::format("<rect class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"{}\" height=\"{}\" rx=\"6\"/>",
                      seat.empty() ? "free" : "seat", left, top, kSeat, kSeatHeight);
      body += svgText(left + 10, top + 17, "dim", fmt::format("rank {}", rank));
      body +=
          svgText(left + 10, top + 34, seat.empty() ? "dim" : "head", seat.empty() ? "unused" : seat) + "\n";
    }
  }
  const int node_rows = (shown + nodes_per_row - 1) / nodes_per_row;
  const double width = kPad + nodes_per_row * (node_width + kPad);
  double height = kPad + node_rows * (node_height + kPad);
  if (shown < plan.cluster.nodeCount()) {
    body +=
        svgText(kPad, height + 8, "dim", fmt::format("and {} more nodes", plan.cluster.nodeCount() - shown));
    height += 20;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pic\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\">\n<title>Cluster: {2} × {3} "
      "devices</title>\n<style>{4}</style>\n<rect class=\"paper\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\"/>\n{5}</svg>\n",
      width, height, plan.cluster.nodeCount(), per_node, kPictureStyle, body);
}

}  // namespace pipeshard
