#include "tools/report/report_gantt.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

constexpr double kTallRow = 30;  // with the stages below the rank's name
constexpr double kLowRow = 18;
constexpr size_t kMostTallRows = 10;
constexpr double kLane = 5;  // of transfers, below the row; one for each stream that has some
constexpr double kGap = 7;
constexpr double kHead = 26;
constexpr double kAxis = 26;
constexpr double kNarrowest = 920;
constexpr double kWidest = 2400;
constexpr double kForwardBox = 15;  // wanted: holds the number of a microbatch
constexpr size_t kMostNumbered = 1600;
constexpr size_t kMostRows = 64;

constexpr std::array<const char*, kTraceWorks> kLetters = {"f", "b", "i", "w", "r", "u", "o"};

bool hasChunks(TraceWork work) { return work <= TraceWork::kBackwardWeight; }

size_t shadeOf(size_t chunk, size_t chunks) {
  if (chunks <= 1) return 0;
  if (chunks == 2) return chunk == 0 ? 0 : 2;
  if (chunks == 3) return chunk == 0 ? 0 : chunk + 1;
  return std::min<size_t>(3, chunk * 4 / chunks);
}

size_t chunkOf(const TimelineRank& rank, StageId stage) {
  const auto found = std::find(rank.stages.begin(), rank.stages.end(), stage);
  return found == rank.stages.end() ? 0 : static_cast<size_t>(found - rank.stages.begin());
}

struct BarStyle {
  std::string box;
  std::string number;
};

BarStyle styleOf(const TimelineRank& rank, const TimelineBar& bar) {
  const size_t chunk = chunkOf(rank, bar.stage);
  if (hasChunks(bar.work))
    return {barClass(bar.work, chunk, rank.stages.size()),
            fmt::format("n n{}", shadeOf(chunk, rank.stages.size()))};
  return {barClass(bar.work, 0, 1), fmt::format("n n{}", bar.work == TraceWork::kUpdate ? 'u' : 'r')};
}

std::string stageList(const TimelineRank& rank) {
  std::string text = rank.stages.size() == 1 ? "stage" : "stages";
  for (size_t i = 0; i < rank.stages.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? " " : ", ", rank.stages[i]);
  return text.size() <= 17 ? text : fmt::format("{} stages", rank.stages.size());
}

const char* transferClass(bool background) { return background ? "g" : "t"; }

bool haveTransfers(std::span<const Timeline> timelines, bool background) {
  return std::ranges::any_of(timelines, [&](const Timeline& timeline) {
    return std::ranges::any_of(timeline.ranks, [&](const TimelineRank& rank) {
      return std::ranges::any_of(rank.transfers, [&](const TimelineTransfer& transfer) {
        return transfer.travels() && transfer.background == background;
      });
    });
  });
}

// One chart of one or two timelines on one axis. Where one is measured in nanoseconds and the other has no
// unit, the latter is stretched until both are busy equally long, summed over ranks (scales_):
//
//   measured busy for 80 ms, predicted busy for 40 units: a unit is as wide as 2 ms
//
// The plot is so wide that the median forward pass has kForwardBox, within kNarrowest and kWidest. Up to
// kMostNumbered boxes each has its number and a text; beyond that boxes of one colour that touch become one
// area, and a row of more boxes than pixels is drawn by pixels. Rows are low where any
// timeline has more than kMostTallRows, and end after kMostRows.
class Gantt {
 public:
  explicit Gantt(std::span<const Timeline> timelines) : timelines_(timelines) {
    setScales();
    for (const Timeline& timeline : timelines_) {
      if (timeline.ranks.size() > kMostTallRows) row_ = kLowRow;
      for (const TimelineRank& rank : timeline.ranks) {
        boxes_ += static_cast<size_t>(std::count_if(
            rank.bars.begin(), rank.bars.end(), [](const auto& b) { return b.work != TraceWork::kOther; }));
      }
    }
    for (const bool background : {false, true}) {
      if (haveTransfers(timelines_, background)) lanes_.push_back(background);
    }
    axis_.width = plotWidth();
  }

  Chart draw() {
    Chart chart;
    chart.title = "Schedule: what each rank computes when, over one step";
    chart.plot_width = axis_.width;
    std::string boxes;
    double y = timelines_.size() > 1 ? 4 : 6;
    const double top = y;
    for (size_t t = 0; t < timelines_.size(); ++t) {
      if (timelines_.size() > 1) {
        const Timeline& timeline = timelines_[t];
        chart.names += svgText(10, y + 16, "head", timeline.source);
        boxes += svgText(
            0, y + 16, "dim",
            fmt::format(
                "{}{:.1f}% idle",
                timeline.nanoseconds ? formatNanoseconds(static_cast<double>(timeline.length)) + ", " : "",
                100 * timeline.idleOfStep()));
        y += kHead;
      }
      y = drawRows(t, y, chart.names, boxes);
    }
    chart.plot = axisSvg(axis_, top, y) + boxes;
    chart.height = y + kAxis;
    chart.legend = ganttLegend(timelines_);
    chart.hatched = true;
    return chart;
  }

 private:
  // To the axis's unit: that of a timeline with nanoseconds.
  void setScales() {
    const auto real =
        std::find_if(timelines_.begin(), timelines_.end(), [](const Timeline& t) { return t.nanoseconds; });
    axis_.nanoseconds = real != timelines_.end();
    for (const Timeline& timeline : timelines_) {
      const bool stretched = axis_.nanoseconds && !timeline.nanoseconds && timeline.busy() > 0;
      scales_.push_back(stretched ? static_cast<double>(real->busy()) / static_cast<double>(timeline.busy())
                                  : 1);
      axis_.length = std::max(axis_.length, scales_.back() * static_cast<double>(timeline.length));
    }
  }

  // The base line of text that stands in the middle of a row.
  double middle() const { return row_ / 2 + 4; }

  double plotWidth() const {
    if (boxes_ > kMostNumbered) return kNarrowest;
    std::vector<double> forward;
    for (size_t t = 0; t < timelines_.size(); ++t) {
      for (const TimelineRank& rank : timelines_[t].ranks) {
        for (const TimelineBar& bar : rank.bars) {
          if (bar.work == TraceWork::kForward)
            forward.push_back(scales_[t] * static_cast<double>(bar.end - bar.start));
        }
      }
    }
    if (forward.empty()) return kNarrowest;
    const auto middle = forward.begin() + static_cast<std::ptrdiff_t>(forward.size() / 2);
    std::nth_element(forward.begin(), middle, forward.end());
    return *middle > 0 ? std::clamp(axis_.length / *middle * kForwardBox, kNarrowest, kWidest) : kNarrowest;
  }

  double drawRows(size_t t, double y, std::string& names, std::string& boxes) const {
    const Timeline& timeline = timelines_[t];
    const size_t shown = std::min(timeline.ranks.size(), kMostRows);
    for (size_t r = 0; r < shown; ++r) {
      const TimelineRank& rank = timeline.ranks[r];
      const StepParts parts = stepParts(rank, timeline.length);
      const double idle =
          timeline.length > 0 ? static_cast<double>(parts.idle) / static_cast<double>(timeline.length) : 0;
      names += row_ == kLowRow
                   ? svgText(10, y + middle(), "dim", rank.name)
                   : svgText(10, y + 13, "", rank.name) + svgText(10, y + 27, "dim", stageList(rank)) + "\n";
      const double width = axis_.x(scales_[t] * static_cast<double>(timeline.length));
      for (const char* layer : {"track", "idle"})
        boxes += fmt::format("<rect class=\"{}\" x=\"0\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{}\"/>",
                             layer, y, width, row_);
      const bool numbers = boxes_ <= kMostNumbered;
      boxes += plain(t, rank, y, numbers);
      if (numbers) boxes += numbered(t, rank, y);
      for (size_t lane = 0; lane < lanes_.size(); ++lane)
        boxes += transfers(t, rank, lanes_[lane], y + row_ + 1 + static_cast<double>(lane) * kLane);
      boxes += svgText(axis_.width + 8, y + middle(), "dim", fmt::format("{:.1f}% idle", 100 * idle)) + "\n";
      y += row_ + (row_ == kLowRow ? kGap / 2 : kGap) + static_cast<double>(lanes_.size()) * kLane;
    }
    if (shown < timeline.ranks.size()) {
      boxes += svgText(0, y + 14, "dim", fmt::format("and {} more ranks", timeline.ranks.size() - shown));
      y += kHead;
    }
    return y;
  }

  double x(size_t t, int64_t time) const { return axis_.x(scales_[t] * static_cast<double>(time)); }

  std::string describe(size_t t, const TimelineBar& bar) const {
    const Timeline& timeline = timelines_[t];
    std::string text(workName(bar.work));
    if (bar.stage.valid()) text = fmt::format("stage {}, {}", bar.stage, text);
    if (bar.microbatch >= 0) text += fmt::format(" of microbatch {}", bar.microbatch);
    if (timeline.nanoseconds)
      return fmt::format("{}: {}, from {} on", text,
                         formatNanoseconds(static_cast<double>(bar.end - bar.start)),
                         formatNanoseconds(static_cast<double>(bar.start)));
    const auto share = [&](int64_t time) {
      return 100 * static_cast<double>(time) / static_cast<double>(std::max<int64_t>(1, timeline.length));
    };
    return fmt::format("{}: {:.1f}% to {:.1f}% of the step", text, share(bar.start), share(bar.end));
  }

  std::string numbered(size_t t, const TimelineRank& rank, double y) const {
    std::string svg;
    for (const TimelineBar& bar : rank.bars) {
      if (bar.work == TraceWork::kOther) continue;
      const BarStyle style = styleOf(rank, bar);
      const double left = x(t, bar.start);
      const double width = std::max(0.4, x(t, bar.end) - left - 1);
      const std::string number = bar.microbatch < 0 ? std::string() : fmt::format("{}", bar.microbatch);
      svg += fmt::format(
          "<g><title>{}</title><rect class=\"{}\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{}\" "
          "rx=\"{}\"/>",
          describe(t, bar), style.box, left, y, width, row_, width > 6 ? 2.5 : 0);
      if (!number.empty() && width >= 6.2 * static_cast<double>(number.size()) + 2)
        svg += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.0f}\">{}</text>", style.number,
                           left + width / 2, y + middle(), number);
      svg += "</g>\n";
    }
    return svg;
  }

  // [start, end) of a row, as a part of a path.
  static std::string area(double start, double end, double y, double height) {
    return fmt::format("M{:.1f} {:.0f}h{:.1f}v{}h-{:.1f}z", start, y, end - start, height, end - start);
  }

  bool isCrowded(size_t boxes) const { return static_cast<double>(boxes) > axis_.width; }

  // A row by pixels: each gets the colour of one kind of spans, or none, so that of every stretch of the row
  // each kind has its share (the error is handed on to the next pixel, as in dithering).
  class Pixels {
   public:
    Pixels(size_t kinds, double width)
        : shares_(kinds, std::vector<double>(static_cast<size_t>(width) + 1)) {}

    void add(size_t kind, double start, double end) {
      std::vector<double>& shares = shares_[kind];
      for (double at = std::max(0.0, start); at < end;) {
        const size_t pixel = std::min(static_cast<size_t>(at), shares.size() - 1);
        const double next = pixel + 1 < shares.size() ? std::min(end, static_cast<double>(pixel) + 1) : end;
        shares[pixel] += next - at;
        at = next;
      }
    }

    // By kind.
    std::vector<std::string> paths(double y, double height) const {
      std::vector<std::string> paths(shares_.size());
      std::vector<double> owed(shares_.size() + 1, 0);  // the last: to none
      size_t begin = 0, kind = shares_.size();
      const size_t pixels = shares_.front().size();
      const auto close = [&](size_t end) {
        if (kind < shares_.size() && end > begin)
          paths[kind] += fmt::format("M{} {:.0f}h{}v{}h-{}z", begin, y, end - begin, height, end - begin);
      };
      for (size_t pixel = 0; pixel < pixels; ++pixel) {
        double none = 1;
        for (size_t k = 0; k < shares_.size(); ++k) {
          owed[k] += shares_[k][pixel];
          none -= shares_[k][pixel];
        }
        owed.back() += none;
        const size_t most = std::max_element(owed.begin(), owed.end()) - owed.begin();
        owed[most] -= 1;
        if (most == kind) continue;
        close(pixel);
        begin = pixel;
        kind = most;
      }
      close(pixels);
      return paths;
    }

   private:
    std::vector<std::vector<double>> shares_;
  };

  std::string crowded(size_t t, const TimelineRank& rank, double y) const {
    std::map<std::pair<TraceWork, size_t>, size_t> kinds;
    std::vector<std::string> classes;
    std::vector<size_t> kind_of;
    for (const TimelineBar& bar : rank.bars) {
      const size_t chunk = hasChunks(bar.work) ? chunkOf(rank, bar.stage) : 0;
      const auto [found, is_new] = kinds.try_emplace({bar.work, chunk}, kinds.size());
      if (is_new) classes.push_back(styleOf(rank, bar).box);
      kind_of.push_back(found->second);
    }
    Pixels pixels(classes.size(), axis_.width);
    for (size_t b = 0; b < rank.bars.size(); ++b)
      pixels.add(kind_of[b], x(t, rank.bars[b].start), x(t, rank.bars[b].end));
    std::string svg;
    const std::vector<std::string> paths = pixels.paths(y, row_);
    for (size_t kind = 0; kind < classes.size(); ++kind)
      svg += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", classes[kind], paths[kind]);
    return svg;
  }

  // Boxes of one class that touch become one area.
  std::string plain(size_t t, const TimelineRank& rank, double y, bool only_others) const {
    struct Path {
      std::string text;
      int64_t start = 0, end = 0;
    };
    if (!only_others && isCrowded(rank.bars.size())) return crowded(t, rank, y);
    std::map<std::string, Path> paths;
    const auto close = [&](Path& path) {
      if (path.end > path.start) path.text += area(x(t, path.start), x(t, path.end), y, row_);
    };
    for (const TimelineBar& bar : rank.bars) {
      if (only_others && bar.work != TraceWork::kOther) continue;
      Path& path = paths[styleOf(rank, bar).box];
      if (path.end == bar.start && path.end > path.start) {
        path.end = bar.end;
        continue;
      }
      close(path);
      path.start = bar.start;
      path.end = bar.end;
    }
    std::string svg;
    for (auto& [css_class, path] : paths) {
      close(path);
      svg += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", css_class, path.text);
    }
    return svg;
  }

  std::string transfers(size_t t, const TimelineRank& rank, bool background, double y) const {
    std::string path;
    Pixels pixels(1, axis_.width);
    const bool is_crowded = isCrowded(rank.transfers.size());
    for (const TimelineTransfer& transfer : rank.transfers) {
      if (!transfer.travels() || transfer.background != background) continue;
      const double start = x(t, transfer.arrived), end = std::max(start + 0.6, x(t, transfer.end));
      if (is_crowded) {
        pixels.add(0, start, end);
      } else {
        path += area(start, end, y, kLane - 1);
      }
    }
    if (is_crowded) path = pixels.paths(y, kLane - 1)[0];
    return path.empty() ? path
                        : fmt::format("<path class=\"{}\" d=\"{}\"/>\n", transferClass(background), path);
  }

  std::span<const Timeline> timelines_;
  std::vector<double> scales_;
  TimeAxis axis_;
  size_t boxes_ = 0;
  std::vector<bool> lanes_;  // of transfers, top to bottom: in the background?
  double row_ = kTallRow;
};

}  // namespace

std::string barClass(TraceWork work, size_t chunk, size_t chunks) {
  const char* letter = kLetters[static_cast<size_t>(work)];
  return hasChunks(work) ? fmt::format("{}{}", letter, shadeOf(chunk, chunks)) : letter;
}

Chart ganttChart(std::span<const Timeline> timelines) { return Gantt(timelines).draw(); }

std::vector<LegendEntry> ganttLegend(std::span<const Timeline> timelines) {
  std::array<bool, kTraceWorks> used = {};
  size_t chunks = 1;
  for (const Timeline& timeline : timelines) {
    for (const TimelineRank& rank : timeline.ranks) {
      chunks = std::max(chunks, rank.stages.size());
      for (const TimelineBar& bar : rank.bars) used[static_cast<size_t>(bar.work)] = true;
    }
  }
  std::vector<LegendEntry> entries;
  for (size_t w = 0; w < kTraceWorks; ++w) {
    if (!used[w]) continue;
    const auto work = static_cast<TraceWork>(w);
    LegendEntry entry{{}, std::string(workName(work))};
    for (size_t c = 0; c < (hasChunks(work) ? std::min<size_t>(chunks, 4) : 1); ++c)
      entry.classes.push_back(barClass(work, c, std::min<size_t>(chunks, 4)));
    entries.push_back(std::move(entry));
  }
  if (haveTransfers(timelines, false)) entries.push_back({{transferClass(false)}, "transfer to the rank"});
  if (haveTransfers(timelines, true))
    entries.push_back({{transferClass(true)}, "transfer beside compute, in the background"});
  entries.push_back({{"idle"}, "idle: the bubble"});
  return entries;
}

}  // namespace pipeshard
