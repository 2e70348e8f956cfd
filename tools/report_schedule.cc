#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "ir/error.h"
#include "tools/report.h"
#include "tools/report_html.h"

namespace pipeshard {
namespace {

constexpr double kLabelWidth = 148;
constexpr double kRowHeight = 34;
constexpr double kRowGap = 8;
constexpr double kTop = 34;     // the legend
constexpr double kBottom = 26;  // the axis
constexpr double kRight = 22;
constexpr double kSmallestBox = 20;  // holds a microbatch number
constexpr double kNarrowest = 860;
constexpr double kWidest = 6000;
constexpr size_t kMostNumberedBoxes = 6000;  // beyond: shapes only, so that the page stays light

struct PassStyle {
  ActionKind kind;
  const char* css_class;
  const char* name;
};
constexpr std::array<PassStyle, 4> kPasses = {{{ActionKind::kForward, "f", "forward"},
                                               {ActionKind::kBackward, "b", "backward"},
                                               {ActionKind::kBackwardInput, "i", "backward, input part"},
                                               {ActionKind::kBackwardWeight, "w", "backward, weight part"}}};

const PassStyle& passStyle(ActionKind kind) {
  return *std::find_if(kPasses.begin(), kPasses.end(), [kind](const PassStyle& pass) { return pass.kind == kind; });
}

class ScheduleSvg {
 public:
  ScheduleSvg(const Simulation& timeline, std::span<const std::string> row_names) : timeline_(timeline), row_names_(row_names) {
    const double makespan = static_cast<double>(timeline.makespan);
    double shortest = makespan;
    for (const auto& rank : timeline.ranks) {
      boxes_ += rank.size();
      for (const SimulatedAction& timed : rank) shortest = std::min(shortest, static_cast<double>(timed.end - timed.start));
    }
    const double wanted = shortest > 0 ? makespan / shortest * kSmallestBox : kNarrowest;
    plot_width_ = std::clamp(wanted, kNarrowest, kWidest);
    scale_ = makespan > 0 ? plot_width_ / makespan : 0;
    width_ = kLabelWidth + plot_width_ + kRight;
    height_ = kTop + static_cast<double>(timeline.ranks.size()) * (kRowHeight + kRowGap) + kBottom;
  }

  std::string render(SvgUse use) const {
    const bool file = use == SvgUse::kFile;
    std::string svg = fmt::format("<svg class=\"sched\"{} width=\"{:.0f}\" height=\"{:.0f}\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\">\n",
                                  file ? " xmlns=\"http://www.w3.org/2000/svg\"" : "", width_, height_, width_, height_);
    svg += "<title>Schedule: what each rank computes when, over one step</title>\n";
    if (file) {
      svg +=
          fmt::format("<style>{}</style>\n<rect class=\"paper\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", kScheduleStyle, width_, height_);
    }
    svg += legend();
    for (size_t rank = 0; rank < timeline_.ranks.size(); ++rank) svg += row(rank);
    return svg + axis() + "</svg>\n";
  }

 private:
  double top(size_t rank) const { return kTop + static_cast<double>(rank) * (kRowHeight + kRowGap); }
  double x(Ticks time) const { return kLabelWidth + static_cast<double>(time) * scale_; }
  double percent(Ticks time) const { return 100 * static_cast<double>(time) / static_cast<double>(std::max<Ticks>(timeline_.makespan, 1)); }

  std::string legend() const {
    std::string svg;
    double at = kLabelWidth;
    for (const PassStyle& pass : kPasses) {
      const bool used = std::any_of(timeline_.ranks.begin(), timeline_.ranks.end(), [&](const auto& rank) {
        return std::any_of(rank.begin(), rank.end(), [&](const SimulatedAction& timed) { return timed.action.kind == pass.kind; });
      });
      if (!used) continue;
      svg += fmt::format("<rect class=\"{}\" x=\"{:.0f}\" y=\"8\" width=\"14\" height=\"14\"/><text x=\"{:.0f}\" y=\"19\">{}</text>\n",
                         pass.css_class, at, at + 20, pass.name);
      at += 44 + 6.6 * static_cast<double>(std::string_view(pass.name).size());
    }
    if (boxes_ <= kMostNumberedBoxes) svg += fmt::format("<text class=\"dim\" x=\"{:.0f}\" y=\"19\">numbers are microbatches</text>\n", at);
    return svg;
  }

  std::string row(size_t rank) const {
    std::string svg = fmt::format("<text x=\"10\" y=\"{:.0f}\">{}</text><text class=\"dim\" x=\"10\" y=\"{:.0f}\">idle {:.1f}%</text>\n",
                                  top(rank) + 14, escapeHtml(rank < row_names_.size() ? row_names_[rank] : fmt::format("rank {}", rank)),
                                  top(rank) + 29, percent(timeline_.makespan - timeline_.busy[rank]));
    svg += fmt::format("<rect class=\"track\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>\n", kLabelWidth, top(rank),
                       plot_width_, kRowHeight);
    return svg + (boxes_ <= kMostNumberedBoxes ? numberedBoxes(rank) : plainBoxes(rank));
  }

  std::string numberedBoxes(size_t rank) const {
    std::string svg;
    for (const SimulatedAction& timed : timeline_.ranks[rank]) {
      const PassStyle& pass = passStyle(timed.action.kind);
      const std::string number = fmt::format("{}", timed.action.microbatch);
      const double left = x(timed.start);
      const double width = std::max(0.3, x(timed.end) - left - 1);
      svg += fmt::format("<g><title>stage {}, {} of microbatch {}: {:.1f}% to {:.1f}% of the step</title>", timed.action.stage, pass.name,
                         number, percent(timed.start), percent(timed.end));
      svg += fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>", pass.css_class, left,
                         top(rank), width, kRowHeight);
      if (width >= 7 * static_cast<double>(number.size()) + 2) {
        svg += fmt::format("<text class=\"n {}\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>", pass.css_class, left + width / 2, top(rank) + 21,
                           number);
      }
      svg += "</g>\n";
    }
    return svg;
  }

  std::string plainBoxes(size_t rank) const {
    std::string svg;
    for (const PassStyle& pass : kPasses) {
      std::string path;
      for (const SimulatedAction& timed : timeline_.ranks[rank]) {
        if (timed.action.kind != pass.kind) continue;
        const double width = x(timed.end) - x(timed.start);
        path += fmt::format("M{:.2f} {:.0f}h{:.2f}v{:.0f}h-{:.2f}z", x(timed.start), top(rank), width, kRowHeight, width);
      }
      if (!path.empty()) svg += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", pass.css_class, path);
    }
    return svg;
  }

  std::string axis() const {
    const double bottom = height_ - kBottom;
    std::string svg;
    for (int quarter = 0; quarter <= 4; ++quarter) {
      const double at = kLabelWidth + plot_width_ * quarter / 4;
      svg += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.0f}\" x2=\"{:.1f}\" y2=\"{:.0f}\"/>", at, bottom - 4, at, bottom + 4);
      svg += fmt::format("<text class=\"dim\" text-anchor=\"{}\" x=\"{:.1f}\" y=\"{:.0f}\">{}%{}</text>\n",
                         quarter == 0 ? "start" : (quarter == 4 ? "end" : "middle"), at, bottom + 18, 25 * quarter,
                         quarter == 0 ? " of the step" : "");
    }
    return svg;
  }

  const Simulation& timeline_;
  std::span<const std::string> row_names_;
  size_t boxes_ = 0;
  double plot_width_ = 0;
  double scale_ = 0;
  double width_ = 0;
  double height_ = 0;
};

}  // namespace

std::vector<PassTimes> stageTimes(const Plan& plan) {
  const bool known = std::all_of(plan.stages.begin(), plan.stages.end(),
                                 [](const StagePlan& stage) { return stage.forward_flops > 0 && stage.backward_flops > 0; });
  std::vector<PassTimes> times;
  for (const StagePlan& stage : plan.stages) {
    const int64_t half = stage.backward_flops / 2;
    times.push_back(known
                        ? PassTimes{.forward = stage.forward_flops, .backward_input = half, .backward_weight = stage.backward_flops - half}
                        : PassTimes{});
  }
  return times;
}

std::string renderScheduleSvg(const Simulation& simulation, std::span<const std::string> row_names, SvgUse use) {
  return ScheduleSvg(simulation, row_names).render(use);
}

}  // namespace pipeshard
