#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

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

class Simulation {
 public:
  Simulation(const ScheduleOrders& orders, std::span<const StageTimes> times) : orders_(orders), times_(times) {
    timeline_.ranks.resize(orders.size());
  }

  Timeline run() {
    size_t left = 0;
    for (const auto& order : orders_) left += order.size();
    while (left > 0) {
      const size_t before = left;
      for (size_t rank = 0; rank < orders_.size(); ++rank) {
        while (advance(rank)) --left;
      }
      if (left == before) reportCircle();
    }
    for (const auto& rank : timeline_.ranks) {
      for (const TimedAction& timed : rank) timeline_.busy += timed.end - timed.start;
      if (!rank.empty()) timeline_.makespan = std::max(timeline_.makespan, rank.back().end);
    }
    return std::move(timeline_);
  }

 private:
  // Runs the rank's next action if all that it waits for is known.
  bool advance(size_t rank) {
    std::vector<TimedAction>& done = timeline_.ranks[rank];
    if (done.size() == orders_[rank].size()) return false;
    const Action& action = orders_[rank][done.size()];
    const std::optional<double> ready = readyTime(action);
    if (!ready) return false;
    const double start = std::max(*ready, done.empty() ? 0 : done.back().end);
    const double end = start + duration(action);
    done.push_back({action, start, end});
    finished_[{action.stage, action.kind, action.microbatch}] = end;
    return true;
  }

  double duration(const Action& action) const {
    PIPESHARD_CHECK(action.stage >= 0 && static_cast<size_t>(action.stage) < times_.size(), "{}: {} stages have times",
                    actionToString(action), times_.size());
    const StageTimes& time = times_[static_cast<size_t>(action.stage)];
    if (action.kind == ActionKind::kForward) return time.forward;
    return action.kind == ActionKind::kBackward ? time.backward : time.backward / 2;
  }

  std::optional<double> endOf(int stage, ActionKind kind, int microbatch) const {
    const auto found = finished_.find({stage, kind, microbatch});
    return found == finished_.end() ? std::nullopt : std::optional(found->second);
  }

  std::optional<double> endOfGradient(int stage, int microbatch) const {
    const std::optional<double> whole = endOf(stage, ActionKind::kBackward, microbatch);
    return whole ? whole : endOf(stage, ActionKind::kBackwardInput, microbatch);
  }

  std::optional<double> readyTime(const Action& action) const {
    const int stage = action.stage, microbatch = action.microbatch;
    const ActionKind kind = action.kind;
    if (kind == ActionKind::kBackwardWeight) return endOf(stage, ActionKind::kBackwardInput, microbatch);
    if (kind == ActionKind::kForward) return stage == 0 ? 0.0 : endOf(stage - 1, ActionKind::kForward, microbatch);
    const std::optional<double> forward = endOf(stage, ActionKind::kForward, microbatch);
    if (static_cast<size_t>(stage) + 1 == times_.size()) return forward;
    const std::optional<double> after = endOfGradient(stage + 1, microbatch);
    return forward && after ? std::optional(std::max(*forward, *after)) : std::nullopt;
  }

  [[noreturn]] void reportCircle() const {
    std::string waiting;
    for (size_t rank = 0; rank < orders_.size(); ++rank) {
      const size_t done = timeline_.ranks[rank].size();
      if (done < orders_[rank].size()) waiting += fmt::format(" rank {} at {};", rank, actionToString(orders_[rank][done]));
    }
    fail(ErrorCode::kInternal, "the schedule cannot go on:{} each waits for a pass that is missing or comes later", waiting);
  }

  const ScheduleOrders& orders_;
  std::span<const StageTimes> times_;
  Timeline timeline_;
  std::map<std::tuple<int, ActionKind, int>, double> finished_;
};

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
  ScheduleSvg(const Timeline& timeline, std::span<const std::string> row_names) : timeline_(timeline), row_names_(row_names) {
    double shortest = timeline.makespan;
    for (const auto& rank : timeline.ranks) {
      boxes_ += rank.size();
      for (const TimedAction& timed : rank) shortest = std::min(shortest, timed.end - timed.start);
    }
    const double wanted = shortest > 0 ? timeline.makespan / shortest * kSmallestBox : kNarrowest;
    plot_width_ = std::clamp(wanted, kNarrowest, kWidest);
    scale_ = timeline.makespan > 0 ? plot_width_ / timeline.makespan : 0;
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
  double x(double time) const { return kLabelWidth + time * scale_; }

  std::string legend() const {
    std::string svg;
    double at = kLabelWidth;
    for (const PassStyle& pass : kPasses) {
      const bool used = std::any_of(timeline_.ranks.begin(), timeline_.ranks.end(), [&](const auto& rank) {
        return std::any_of(rank.begin(), rank.end(), [&](const TimedAction& timed) { return timed.action.kind == pass.kind; });
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
    double busy = 0;
    for (const TimedAction& timed : timeline_.ranks[rank]) busy += timed.end - timed.start;
    const double idle = timeline_.makespan > 0 ? 1 - busy / timeline_.makespan : 0;
    std::string svg =
        fmt::format("<text x=\"10\" y=\"{:.0f}\">{}</text><text class=\"dim\" x=\"10\" y=\"{:.0f}\">idle {:.1f}%</text>\n", top(rank) + 14,
                    escapeHtml(rank < row_names_.size() ? row_names_[rank] : fmt::format("rank {}", rank)), top(rank) + 29, 100 * idle);
    svg += fmt::format("<rect class=\"track\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>\n", kLabelWidth, top(rank),
                       plot_width_, kRowHeight);
    return svg + (boxes_ <= kMostNumberedBoxes ? numberedBoxes(rank) : plainBoxes(rank));
  }

  std::string numberedBoxes(size_t rank) const {
    std::string svg;
    for (const TimedAction& timed : timeline_.ranks[rank]) {
      const PassStyle& pass = passStyle(timed.action.kind);
      const std::string number = fmt::format("{}", timed.action.microbatch);
      const double left = x(timed.start);
      const double width = std::max(0.3, x(timed.end) - left - 1);
      svg += fmt::format("<g><title>stage {}, {} of microbatch {}: {:.1f}% to {:.1f}% of the step</title>", timed.action.stage, pass.name,
                         number, 100 * timed.start / timeline_.makespan, 100 * timed.end / timeline_.makespan);
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
      for (const TimedAction& timed : timeline_.ranks[rank]) {
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

  const Timeline& timeline_;
  std::span<const std::string> row_names_;
  size_t boxes_ = 0;
  double plot_width_ = 0;
  double scale_ = 0;
  double width_ = 0;
  double height_ = 0;
};

}  // namespace

double Timeline::idleOfMakespan() const {
  const double all = makespan * static_cast<double>(ranks.size());
  return all > 0 ? (all - busy) / all : 0;
}

double Timeline::idleOfUseful() const { return busy > 0 ? (makespan * static_cast<double>(ranks.size()) - busy) / busy : 0; }

Timeline simulateSchedule(const ScheduleOrders& orders, std::span<const StageTimes> times) { return Simulation(orders, times).run(); }

std::vector<StageTimes> stageTimes(const Plan& plan) {
  const bool known = std::all_of(plan.stages.begin(), plan.stages.end(),
                                 [](const StagePlan& stage) { return stage.forward_flops > 0 && stage.backward_flops > 0; });
  std::vector<StageTimes> times;
  for (const StagePlan& stage : plan.stages) {
    times.push_back(known ? StageTimes{static_cast<double>(stage.forward_flops), static_cast<double>(stage.backward_flops)} : StageTimes{});
  }
  return times;
}

std::string renderScheduleSvg(const Timeline& timeline, std::span<const std::string> row_names, SvgUse use) {
  return ScheduleSvg(timeline, row_names).render(use);
}

}  // namespace pipeshard
