#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/counted.h"
#include "ir/base/ids_format.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"
#include "tools/report/report_gantt.h"
#include "tools/report/report_html.h"
#include "tools/report/report_pictures.h"
#include "tools/report/report_sections.h"

namespace pipeshard {
namespace {

constexpr size_t kMostRanksShown = 64;
constexpr std::array<const char*, kTraceWorks> kPartClasses = {"f", "b", "i", "w", "r", "u", "o"};
constexpr std::array<const char*, kTraceWorks> kSwatches = {"f0", "b0", "i0", "w0", "r", "u", "o"};

std::string ordersAsText(const ScheduleOrders& orders) {
  std::string text;
  for (const PipelineRankId rank : orders.ids()) {
    text += fmt::format("{}:", rank);
    for (const Action& action : orders[rank]) text += " " + actionToString(action);
    text += "\n";
  }
  return text;
}

// Every pass of a rank's whole share takes one unit: F = I = W.
Timeline equalTimeline(const Plan& plan, const Schedule& schedule) {
  const int chunks = std::max(1, schedule.stages / std::max(1, schedule.ranks()));
  const bool even = schedule.stages == chunks * schedule.ranks();
  const IdVector<StageId, PassTimes> times = even ? equalStages(schedule, {.forward = chunks,
                                                                           .backward_input = chunks,
                                                                           .backward_weight = chunks,
                                                                           .activation = chunks})
                                                  : IdVector<StageId, PassTimes>(schedule.stages);
  return timelineOf(simulate({.schedule = schedule, .stages = times}), schedule, plan);
}

std::vector<HtmlCell> bubbleRow(std::string_view name, double step, double useful, const std::string& span) {
  return {textCell(name), numberCell(percent(step)), numberCell(percent(useful)), numberCell(span)};
}

std::vector<HtmlCell> bubbleRow(std::string_view name, const Timeline& timeline) {
  return bubbleRow(name, timeline.idleOfStep(), timeline.idleOfUseful(), percent(timeline.idleOfSpan()));
}

std::string bubbleTable(const Plan& plan, const Schedule& schedule, std::span<const Timeline> timelines) {
  HtmlTable table{"Idle share",
                  {textCell("Idle time (bubble)"), numberCell("of the step"),
                   numberCell("of the useful work"), numberCell("of the longest span")},
                  {}};
  for (const Timeline& timeline : timelines)
    table.rows.push_back(bubbleRow("this plan, " + timeline.source, timeline));
  // Equal stages of replicas that take turns are not simulated without programs.
  if (schedule.replicas.empty())
    table.rows.push_back(bubbleRow("equal stages, simulated", equalTimeline(plan, schedule)));
  const BubbleFormula formula = bubbleFormula(schedule);
  if (!formula.of_step.empty())
    table.rows.push_back(bubbleRow("equal stages, by formula", formula.step, formula.useful, ""));
  return renderTable(table);
}

// How far the prediction is from what was measured, where both are times.
std::string comparison(const Schedule& schedule, std::span<const Timeline> timelines) {
  if (timelines.size() < 2 || !timelines[0].nanoseconds || !timelines[1].nanoseconds ||
      timelines[0].length <= 0)
    return "";
  const Timeline& predicted = timelines[0];
  const Timeline& measured = timelines[1];
  const BubbleFormula formula = bubbleFormula(schedule);
  return paragraph(fmt::format(
      "A step takes {} as predicted and {} as measured ({:+.1f}%); ranks are idle for {} of it as predicted, "
      "{} as measured{}.",
      formatNanoseconds(static_cast<double>(predicted.length)),
      formatNanoseconds(static_cast<double>(measured.length)),
      100.0 * static_cast<double>(measured.length - predicted.length) / static_cast<double>(predicted.length),
      percent(predicted.idleOfStep()), percent(measured.idleOfStep()),
      formula.of_step.empty() ? ""
                              : fmt::format(", {} by the formula for equal stages", percent(formula.step))));
}

std::string lesson(std::string_view term, const std::string& text) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>\n", escapeHtml(term), escapeHtml(text));
}

std::string lessons(const Schedule& schedule) {
  std::string html = "<dl class=\"teach\">\n";
  html += lesson("What is a bubble?",
                 "Time in which a rank has nothing to run, because what it needs is still being computed "
                 "elsewhere. A pipeline fills when a step begins and drains when it ends, so somebody is "
                 "idle; the hatched areas show who, and when.");
  html += lesson("Two ways to count, and a third",
                 "Of the step: idle time of all ranks over ranks times the length of the step; the part of "
                 "the machine that is lost. Of the useful work: idle time over busy time; how much longer a "
                 "step takes than without any bubble. Papers on zero-bubble schedules count inside the "
                 "longest span of a rank, from its first pass to its last.");
  const BubbleFormula formula = bubbleFormula(schedule);
  if (!formula.of_step.empty()) {
    const int chunks = schedule.stages / schedule.ranks();
    Schedule longer = schedule;
    longer.microbatches *= 2;
    const bool falls = bubbleFormula(longer).step < formula.step;
    html += lesson(
        fmt::format("{} in theory", schedule.name()),
        fmt::format(
            "With p = {} equal ranks and m = {} microbatches{}, and F = I = W: {} = {} of the step, {} = {} "
            "of the useful work.{}",
            schedule.ranks(), schedule.microbatches,
            chunks > 1 ? fmt::format(", v = {} stages on each rank", chunks) : "", formula.of_step,
            percent(formula.step), formula.of_useful, percent(formula.useful),
            falls ? " More microbatches make it smaller." : ""));
  }
  html += lesson("Shades and numbers",
                 "A number is a microbatch. B is a whole backward pass; some schedules part it into I, "
                 "gradients of the inputs, for which another rank waits, and W, gradients of the weights, "
                 "which fill what would be idle. Of a rank with several stages, the first is the lightest.");
  return html + "</dl>\n";
}

std::string boxWidths(const Plan& plan, std::span<const Timeline> timelines) {
  const bool stretched = timelines.size() > 1 && !timelines[0].nanoseconds;
  if (timelines[0].nanoseconds) return "Box widths are times.";
  const std::string widths = hasFlops(plan) ? "the stages' FLOPs on equal devices" : "forward 1, backward 2";
  return fmt::format("Predicted box widths: {}; transfers count as free{}.", widths,
                     stretched ? "; stretched to be busy as long as what was measured" : "");
}

int64_t chunksOfRank(const Timeline& timeline) {
  size_t most = 1;
  for (const TimelineRank& rank : timeline.ranks) most = std::max(most, rank.stages.size());
  return most;
}

std::string partsRow(const TimelineRank& rank, int64_t length) {
  const StepParts parts = stepParts(rank, length);
  const auto share = [&](int64_t part) {
    return length > 0 ? static_cast<double>(part) / static_cast<double>(length) : 0;
  };
  std::string bar;
  int64_t busy = 0;
  for (size_t w = 0; w < kTraceWorks; ++w) {
    busy += parts.work[w];
    if (parts.work[w] > 0)
      bar += fmt::format("<i class=\"{}\" style=\"width:{}\"></i>", kPartClasses[w],
                         percent(share(parts.work[w])));
  }
  if (parts.transfer > 0)
    bar += fmt::format("<i class=\"t\" style=\"width:{}\"></i>", percent(share(parts.transfer)));
  return fmt::format(
      "<span>{}</span><span class=\"bar\" aria-hidden=\"true\">{}</span><span class=\"numbers\">{} busy{}, "
      "{} idle</span>\n",
      escapeHtml(rank.name), bar, percent(share(busy)),
      parts.transfer > 0 ? fmt::format(", {} transfer", percent(share(parts.transfer))) : "",
      percent(share(parts.idle)));
}

std::vector<LegendEntry> partsLegend(std::span<const Timeline> timelines) {
  StepParts all;
  for (const Timeline& timeline : timelines) {
    for (const TimelineRank& rank : timeline.ranks) {
      const StepParts parts = stepParts(rank, timeline.length);
      for (size_t w = 0; w < kTraceWorks; ++w) all.work[w] += parts.work[w];
      all.transfer += parts.transfer;
    }
  }
  std::vector<LegendEntry> legend;
  for (size_t w = 0; w < kTraceWorks; ++w) {
    if (all.work[w] > 0) legend.push_back({{kSwatches[w]}, std::string(workName(static_cast<TraceWork>(w)))});
  }
  if (all.transfer > 0) legend.push_back({{"t"}, "transfer that nothing hides"});
  legend.push_back({{"track"}, "idle"});
  return legend;
}

}  // namespace

std::string renderSchedule(const Plan& plan, const Schedule& schedule, std::span<const Timeline> timelines) {
  const int64_t chunks = chunksOfRank(timelines[0]);
  std::string html = paragraph(fmt::format(
      "{}: {} on {}{}. {}", schedule.name(),
      schedule.microbatches == 1 ? "one microbatch" : fmt::format("{} microbatches", schedule.microbatches),
      counted(schedule.ranks(), "pipeline rank"),
      chunks > 1 ? fmt::format(", up to {} stages each", chunks) : "", boxWidths(plan, timelines)));
  html += legendHtml(ganttLegend(timelines));
  html += scrollBox("Schedule chart", renderChart(ganttChart(timelines), SvgUse::kInPage));
  html += comparison(schedule, timelines) + bubbleTable(plan, schedule, timelines) + lessons(schedule);
  html += "<details><summary>The order of each rank as text</summary>\n" +
          scrollBox("Order of each rank", "<pre>" + escapeHtml(ordersAsText(schedule.orders)) + "</pre>") +
          "</details>\n";
  return section("schedule", "Schedule", html);
}

std::string renderStepParts(std::span<const Timeline> timelines) {
  std::string html = paragraph("Each rank's step by what it is spent on.");
  html += legendHtml(partsLegend(timelines));
  for (const Timeline& timeline : timelines) {
    html += fmt::format(
        "<h3>{}{}</h3>\n<div class=\"parts\">\n", timeline.source,
        timeline.nanoseconds ? ", " + formatNanoseconds(static_cast<double>(timeline.length)) : "");
    const size_t shown = std::min(timeline.ranks.size(), kMostRanksShown);
    for (size_t r = 0; r < shown; ++r) html += partsRow(timeline.ranks[r], timeline.length);
    html += "</div>\n";
    if (shown < timeline.ranks.size())
      html += paragraph(fmt::format("And {} more ranks.", timeline.ranks.size() - shown));
  }
  return section("parts", "Where the step goes", html);
}

}  // namespace pipeshard
