#include "tools/report/report.h"
#include "ir/base/ids_format.h"
#include "tools/report/report_memory.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/counted.h"
#include "partition/families/plan_schedule.h"
#include "planning/model/plan_description.h"
#include "runtime/validation/validate.h"
#include "tools/report/report_gantt.h"
#include "tools/report/report_html.h"
#include "tools/report/report_pictures.h"
#include "tools/report/report_sections.h"
#include "tools/report/report_sharding.h"
#include "tools/report/report_style.h"
#include "tools/report/report_training.h"
#include "tools/report/run_history.h"

namespace pipeshard {
namespace {

std::string modelName(const Plan& plan) { return std::filesystem::path(plan.model_path).filename().string(); }

std::string headline(const Plan& plan) {
  return fmt::format("{} in {}", modelName(plan), counted(std::ssize(plan.stages), "stage"));
}

std::string planDirectory(const Plan& plan) {
  return std::filesystem::path(plan.model_path).stem().string() + ".plan";
}

// Predicted, and below it what was measured.
std::vector<Timeline> timelinesOf(const ReportInput& input, const Schedule& schedule) {
  std::vector<Timeline> timelines;
  timelines.push_back(input.predicted
                          ? timelineOf(*input.predicted, input.plan, 0, input.sample)
                          : timelineOf(simulate({.schedule = schedule, .stages = passTimes(input.plan)}),
                                       schedule, input.plan));
  if (input.measured) timelines.push_back(timelineOf(*input.measured, input.plan, input.measured_step));
  for (Timeline& timeline : timelines) joinHalves(schedule, timeline);
  return timelines;
}

std::string renderTiles(const Plan& plan, std::span<const Timeline> timelines) {
  int64_t parameters = 0, flops = 0;
  for (const StagePlan& stage : plan.stages) {
    parameters += stage.parameter_bytes;
    flops += stage.forward_flops + stage.backward_flops;
  }
  std::string html = "<ul class=\"tiles\">\n";
  const auto tile = [&](const std::string& number, const std::string& what) {
    html += fmt::format("<li><b>{}</b>{}</li>\n", escapeHtml(number), escapeHtml(what));
  };
  tile(fmt::format("{} × {}", pipelineRanks(plan).size(),
                   plan.stages.size() / std::max<size_t>(1, pipelineRanks(plan).size())),
       "pipeline ranks × stages on each");
  tile(fmt::format("{}", plan.microbatches), plan.microbatches == 1 ? "microbatch" : "microbatches");
  tile(formatBytes(parameters), "of parameters");
  if (flops > 0) tile(formatFlops(flops * plan.microbatches), "a step");
  for (const Timeline& timeline : timelines) {
    if (timeline.nanoseconds)
      tile(formatNanoseconds(static_cast<double>(timeline.length)), "a step, " + timeline.source);
  }
  for (const Timeline& timeline : timelines) tile(percent(timeline.idleOfStep()), "idle, " + timeline.source);
  return html + "</ul>\n";
}

// "2 nodes × 4 devices", and what they are.
std::string clusterText(const Cluster& cluster) {
  if (cluster != uniformCluster(cluster.nodeCount(), cluster.devicesPerNode())) return printCluster(cluster);
  return fmt::format("{} × {}", counted(cluster.nodeCount(), "node"),
                     counted(cluster.devicesPerNode(), "device"));
}

std::string renderFacts(const Plan& plan) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"Cluster", clusterText(plan.cluster)},
      {"Schedule", scheduleSpecToString(plan.schedule)},
      {"Loss", plan.loss},
      {"Optimizer", optimizerToString(plan.given.optimizer)},
      {"Precision", std::string(dataTypeName(plan.given.precision))}};
  for (const auto& [name, size] : plan.dimensions) {
    const bool cut = name == plan.batch_dimension && plan.microbatches > 1;
    facts.emplace_back(
        fmt::format("Dimension {}", name),
        cut ? fmt::format("{}, cut into {}", size, plan.microbatches) : fmt::format("{}", size));
    if (name == plan.length_dimension)
      facts.back().second += fmt::format("; programs for {}, too", fmt::join(plan.shorter_lengths, ", "));
  }
  if (plan.last_batch > 0)
    facts.emplace_back("Last batch", fmt::format("{}, cut into {}", plan.last_batch, plan.last_microbatches));
  constexpr size_t kLong = 22;
  std::string html = "<dl class=\"facts\">\n";
  for (const auto& [name, value] : facts) {
    html += fmt::format("<div{}><dt>{}</dt><dd>{}</dd></div>\n",
                        value.size() > kLong ? " class=\"wide\"" : "", escapeHtml(name), breakable(value));
  }
  return html + "</dl>\n";
}

std::string renderNotes(const Plan& plan) {
  std::string html = "<ul>\n";
  for (const std::string& note : plan.notes) html += fmt::format("<li>{}</li>\n", escapeHtml(note));
  return section("notes", "Notes", html + "</ul>\n");
}

// A word as a POSIX shell needs it.
std::string shellWord(const std::string& word) {
  const std::string safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(safe) == std::string::npos) return word;
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// "0:always,2:except-last"; empty where nothing is recomputed.
std::string recomputedStages(const Plan& plan) {
  std::vector<std::string> stages;
  for (const StageId s : plan.stages.ids()) {
    if (plan.stages[s].recomputation != Recomputation::kNever)
      stages.push_back(fmt::format("{}:{}", s, recomputationName(plan.stages[s].recomputation)));
  }
  return fmt::format("{}", fmt::join(stages, ","));
}

std::string planCommand(const Plan& plan) {
  std::string command = "pipeshard plan " + shellWord(plan.model_path);
  const auto add = [&](const char* option, const std::string& value) {
    command += fmt::format(" \\\n  {} {}", option, shellWord(value));
  };
  const GivenOptions unsaid = keptOptions(defaultOptions(), plan.cluster);
  const auto add_given = [&](OptionPlace place) {
    for (const GivenOption& option : givenOptions()) {
      const std::vector<std::string> texts = textsOf(option, plan.given);
      const bool said = isWritten(option, plan.given) || texts != textsOf(option, unsaid);
      if (option.place != place || !said) continue;
      for (const std::string& text : texts) add(option.flag, text);
    }
  };
  for (const auto& [name, size] : plan.dimensions) {
    const std::string shorter =
        name == plan.length_dimension ? fmt::format(",{}", fmt::join(plan.shorter_lengths, ",")) : "";
    add("--dim", fmt::format("{}={}{}", name, size, shorter));
  }
  if (!plan.batch_dimension.empty()) add("--batch-dim", plan.batch_dimension);
  add("--loss", plan.loss);
  add_given(OptionPlace::kTraining);
  add("--cluster", plan.cluster.name);
  const RankOfStage groups = deviceGroups(plan);
  IdVector<PipelineRankId, size_t> widths;
  for (const StageId s : groups.ids()) {
    if (!widths.has(groups[s])) widths.resize(groups[s].index() + 1);
    widths[groups[s]] = plan.stages[s].devices.size();
  }
  if (std::ssize(widths) != plan.cluster.deviceCount()) {
    if (plan.boundaries.empty()) add("--stages", fmt::format("uniform:{}", plan.stages.size()));
    add("--stage-devices", fmt::format("{}", fmt::join(widths, ",")));
  }
  for (const std::string& value : plan.boundaries) add("--boundary", value);
  const auto sharded = std::find_if(plan.stages.begin(), plan.stages.end(),
                                    [](const StagePlan& stage) { return stage.sharding.has_value(); });
  if (sharded != plan.stages.end()) {
    add("--method", shardingMethodToString(sharded->sharding->method));
    for (const ShardConstraint& constraint : sharded->sharding->constraints)
      add("--shard", shardConstraintToString(constraint));
  }
  if (plan.memory > 0) add("--memory", fmt::format("{}", plan.memory));
  add_given(OptionPlace::kFreeze);
  add_given(OptionPlace::kTrain);
  if (!plan.schedule.isOfFile()) add("--schedule", scheduleSpecToString(plan.schedule));
  if (plan.updates_per_step > 1) add("--window", fmt::format("{}", plan.updates_per_step));
  if (const std::string recomputed = recomputedStages(plan); !recomputed.empty())
    add("--recompute", recomputed);
  add_given(OptionPlace::kExecution);
  add("--microbatches", fmt::format("{}", plan.microbatches));
  if (plan.last_batch > 0) add("--last-batch", fmt::format("{}", plan.last_batch));
  add("-o", planDirectory(plan));
  return command;
}

std::string renderReproduction(const Plan& plan) {
  std::string html = paragraph(
      "plan.json beside this page holds the exact cut; validating the directory solves nothing again:");
  html += scrollBox(
      "Command that validates",
      fmt::format("<pre>{}</pre>", escapeHtml("pipeshard validate " + shellWord(planDirectory(plan)))));
  html += paragraph(
      "Planned anew (cuts chosen by --balance or a stage file, and a schedule from a file, have to be given "
      "again):");
  html += scrollBox("Command that plans", fmt::format("<pre>{}</pre>", escapeHtml(planCommand(plan))));
  return section("reproduce", "How to reproduce", html);
}

struct Section {
  const char* id;
  const char* link;
  std::string html;
};

std::vector<Section> sectionsOf(const ReportInput& input, const Schedule& schedule,
                                std::span<const Timeline> timelines) {
  const Plan& plan = input.plan;
  std::vector<Section> sections = {{"cluster", "Cluster", renderCluster(plan)},
                                   {"stages", "Stages", renderStages(plan)}};
  if (hasShardedStage(plan))
    sections.push_back({"sharding", "Sharding", renderShardings(plan, input.parameters)});
  sections.push_back({"schedule", "Schedule", renderSchedule(plan, schedule, timelines)});
  std::vector<Timeline> parts(timelines.begin(), timelines.end());
  if (const auto evaluated = input.measured ? evaluationTimeline(*input.measured, plan) : std::nullopt)
    parts.push_back(*evaluated);
  sections.push_back({"parts", "Step", renderStepParts(parts)});
  sections.push_back({"memory", "Memory", renderMemory(input, timelines)});
  if (input.training != nullptr)
    sections.push_back({"training", "Training", renderTraining(*input.training)});
  if (input.validation != nullptr) {
    sections.push_back({"comparison", "Against one device", renderComparison(*input.validation)});
    sections.push_back({"losses", "Loss", renderLosses(*input.validation)});
    if (!input.validation->planned.steps.empty())
      sections.push_back({"times", "Time", renderTimes(*input.validation)});
  }
  if (!plan.notes.empty()) sections.push_back({"notes", "Notes", renderNotes(plan)});
  sections.push_back({"reproduce", "Reproduce", renderReproduction(plan)});
  std::erase_if(sections, [](const Section& section) { return section.html.empty(); });
  return sections;
}

Schedule scheduleOf(const ReportInput& input) {
  return input.schedule != nullptr ? *input.schedule : scheduleOf(input.plan);
}

}  // namespace

std::string renderReport(const ReportInput& input) {
  const Plan& plan = input.plan;
  const Schedule schedule = scheduleOf(input);
  const std::vector<Timeline> timelines = timelinesOf(input, schedule);
  const std::vector<Section> sections = sectionsOf(input, schedule, timelines);
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  html += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  html +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n";
  html += fmt::format("<title>{}: pipeshard</title>\n<style>\n{}{}{}</style>\n</head>\n<body>\n",
                      escapeHtml(headline(plan)), kPictureStyle, kPageStyle,
                      hasShardedStage(plan) ? kShardingStyle : "");
  html += fmt::format("<header><p class=\"brand\">pipeshard report</p>\n<h1>{}</h1>\n{}{}{}</header>\n",
                      escapeHtml(headline(plan)), renderVerdict(input), renderTiles(plan, timelines),
                      renderFacts(plan));
  html += "<nav aria-label=\"Sections\"><ul>\n";
  for (const Section& section : sections)
    html += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", section.id, section.link);
  html += "</ul></nav>\n<main>\n";
  for (const Section& section : sections) html += section.html;
  html += fmt::format("</main>\n<footer>Written by pipeshard. Model: {}</footer>\n</body>\n</html>\n",
                      breakable(plan.model_path));
  return html;
}

std::vector<std::pair<std::string, std::string>> renderPictures(const ReportInput& input) {
  const Schedule schedule = scheduleOf(input);
  const std::vector<Timeline> timelines = timelinesOf(input, schedule);
  std::vector<std::pair<std::string, std::string>> pictures = {
      {"cluster.svg", clusterSvg(input.plan)},
      {"schedule.svg", renderChart(ganttChart(timelines), SvgUse::kFile)}};
  const std::vector<Timeline> memory = withMemory(timelines);
  if (!memory.empty()) pictures.emplace_back("memory.svg", renderChart(memoryChart(memory), SvgUse::kFile));
  if (input.training != nullptr && !input.training->steps.empty())
    pictures.emplace_back("training.svg", renderChart(trainingChart(*input.training), SvgUse::kFile));
  return pictures;
}

}  // namespace pipeshard
