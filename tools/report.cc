#include "tools/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "partition/partition.h"
#include "runtime/validate.h"
#include "tools/console.h"
#include "tools/report_html.h"
#include "tools/report_sharding.h"

namespace pipeshard {
namespace {

constexpr int kMostNodesShown = 64;
constexpr int kMostDevicesShown = 512;
constexpr size_t kMostTensorsShown = 15;
constexpr size_t kMostStepsShown = 50;

std::string plural(int64_t count, std::string_view noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

std::string percent(double part) { return fmt::format("{:.1f}%", 100 * part); }

std::string modelName(const Plan& plan) { return std::filesystem::path(plan.model_path).filename().string(); }

std::string headline(const Plan& plan) { return fmt::format("{} in {}", modelName(plan), plural(std::ssize(plan.stages), "stage")); }

std::string planDirectory(const Plan& plan) { return std::filesystem::path(plan.model_path).stem().string() + ".plan"; }

std::string errorText(double error) { return std::isfinite(error) ? fmt::format("{:.2e}", error) : "not finite"; }

std::string boundText(double bound) { return std::isfinite(bound) ? fmt::format("{:.0e}", bound) : "shown only"; }

std::string tensorName(const TensorComparison& tensor) { return tensor.state.empty() ? tensor.name : tensor.name + " " + tensor.state; }

HtmlCell verdictCell(const TensorComparison& tensor) {
  if (!std::isfinite(tensor.bound)) return textCell("shown only");
  return {tensor.passed() ? "<span class=\"ok\">pass</span>" : "<span class=\"bad\">FAIL</span>", false};
}

std::string renderVerdict(const ReportInput& input) {
  if (input.validation == nullptr) {
    return "<div class=\"verdict\"><p><b>Planned, not validated yet</b></p>"
           "<p><code>pipeshard validate</code> runs the plan and compares it with one device.</p></div>\n";
  }
  const ValidationReport& validation = *input.validation;
  const bool passed = validation.passed();
  const auto failed =
      std::count_if(validation.tensors.begin(), validation.tensors.end(), [](const auto& tensor) { return !tensor.passed(); });
  std::string html = passed ? "<div class=\"verdict pass\"><p><b>PASS: equals one device</b></p>"
                            : "<div class=\"verdict fail\"><p><b>FAIL: differs from one device</b></p>";
  html += fmt::format("<p>{} on {}; {} compared, {} over {} bound.</p>", plural(std::ssize(validation.steps), "step"),
                      plural(validation.ranks, "rank"), plural(std::ssize(validation.tensors), "tensor"),
                      failed == 0 ? "none" : fmt::format("{}", failed), failed > 1 ? "their" : "its");
  if (!validation.tensors.empty()) {
    const TensorComparison& worst = validation.tensors.front();
    html += fmt::format("<p>Worst: {}{} in step {}, error {} (bound {}).</p>", escapeHtml(comparedKindName(worst.kind)),
                        worst.kind == ComparedKind::kLoss ? "" : " <code>" + breakable(tensorName(worst)) + "</code>", worst.step,
                        errorText(worst.error), boundText(worst.bound));
  }
  return html + "</div>\n";
}

std::string renderFacts(const Plan& plan) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"Cluster", fmt::format("{} × {}", plural(plan.cluster.nodes, "node"), plural(plan.cluster.devices_per_node, "device"))},
      {"Schedule", plan.schedule},
      {"Microbatches", fmt::format("{}", plan.microbatches)},
      {"Loss", plan.loss},
      {"Optimizer", plan.optimizer},
      {"Precision", std::string(dataTypeName(plan.precision))}};
  for (const auto& [name, size] : plan.dimensions) {
    const bool cut = name == plan.batch_dimension && plan.microbatches > 1;
    facts.emplace_back(fmt::format("Dimension {}", name),
                       cut ? fmt::format("{}, cut into {}", size, plan.microbatches) : fmt::format("{}", size));
  }
  if (plan.last_batch > 0) facts.emplace_back("Last batch", fmt::format("{}, cut into {}", plan.last_batch, plan.last_microbatches));
  constexpr size_t kLong = 22;
  std::string html = "<dl class=\"facts\">\n";
  for (const auto& [name, value] : facts) {
    html += fmt::format("<div{}><dt>{}</dt><dd>{}</dd></div>\n", value.size() > kLong ? " class=\"wide\"" : "", escapeHtml(name),
                        breakable(value));
  }
  return html + "</dl>\n";
}

std::string renderCluster(const Plan& plan) {
  std::map<int, size_t> stage_of;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (int device : plan.stages[s].devices) stage_of[device] = s;
  }
  const int devices = plan.cluster.deviceCount();
  std::string html;
  if (static_cast<int>(stage_of.size()) < devices) {
    html += paragraph(fmt::format("{} of {} stay unused.", devices - static_cast<int>(stage_of.size()), plural(devices, "device")));
  }
  html += "<div class=\"nodes\">\n";
  int shown = 0;
  for (int node = 0; node < plan.cluster.nodes && node < kMostNodesShown && shown < kMostDevicesShown; ++node) {
    html += fmt::format("<div class=\"node\"><h3>node {}</h3><ul>", node);
    for (int d = 0; d < plan.cluster.devices_per_node && shown < kMostDevicesShown; ++d, ++shown) {
      const int rank = node * plan.cluster.devices_per_node + d;
      const auto stage = stage_of.find(rank);
      html += stage == stage_of.end() ? fmt::format("<li class=\"idle\">rank {}<b>unused</b></li>", rank)
                                      : fmt::format("<li>rank {}<b>stage {}</b></li>", rank, stage->second);
    }
    html += "</ul></div>\n";
  }
  html += "</div>\n";
  if (shown < devices)
    html += paragraph(fmt::format("And {} that are not drawn; the table of stages names their ranks.", plural(devices - shown, "device")));
  return section("cluster", "Cluster", html);
}

// The stage's work against the busiest stage's, forward and backward apart.
HtmlCell workCell(const StagePlan& stage, int64_t most, int64_t all) {
  const auto share = [](int64_t part, int64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0; };
  return {fmt::format("{} of all<span class=\"bar\" aria-hidden=\"true\"><i class=\"f\" style=\"width:{}\"></i><i class=\"b\" "
                      "style=\"width:{}\"></i></span>",
                      percent(share(stage.forward_flops + stage.backward_flops, all)), percent(share(stage.forward_flops, most)),
                      percent(share(stage.backward_flops, most))),
          false};
}

HtmlCell operatorsCell(const Plan& plan, const StagePlan& stage) {
  return {codeCell(plan.layers.at(static_cast<size_t>(stage.first_layer)).first_node).html +
              codeCell(plan.layers.at(static_cast<size_t>(stage.last_layer)).last_node).html,
          false};
}

std::string renderStages(const Plan& plan) {
  int64_t most = 0;
  int64_t all = 0;
  bool meshes = false;
  for (const StagePlan& stage : plan.stages) {
    most = std::max(most, stage.forward_flops + stage.backward_flops);
    all += stage.forward_flops + stage.backward_flops;
    meshes = meshes || stage.devices.size() > 1;
  }
  HtmlTable table{"Stages",
                  {numberCell("Stage"), textCell("Ranks"), textCell("Layers"), textCell("First and last operator"),
                   numberCell("Parameters"), numberCell("Forward"), numberCell("Backward"), textCell("Work"), numberCell("In flight")},
                  {}};
  if (meshes) table.head.push_back(textCell("Mesh"));
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    table.rows.push_back(
        {numberCell(fmt::format("{}", s)), textCell(fmt::format("{}", fmt::join(stage.devices, ", "))),
         textCell(stage.first_layer == stage.last_layer ? fmt::format("{}", stage.first_layer)
                                                        : fmt::format("{}\u00a0to\u00a0{}", stage.first_layer, stage.last_layer)),
         operatorsCell(plan, stage), numberCell(formatBytes(stage.parameter_bytes)), numberCell(formatFlops(stage.forward_flops)),
         numberCell(formatFlops(stage.backward_flops)), workCell(stage, most, all), numberCell(fmt::format("{}", stage.peak_activations))});
    if (meshes) table.rows.back().push_back(textCell(fmt::format("{}", fmt::join(stage.mesh_shape, " × "))));
  }
  return section("stages", "Stages",
                 renderTable(table) +
                     paragraph("FLOPs are of one microbatch. The bar compares a stage's forward (light) and backward (dark) work with the "
                               "busiest stage. In flight: microbatches whose activations are held at once, at most."));
}

std::string ordersAsText(const ScheduleOrders& orders) {
  std::string text;
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    text += fmt::format("{}:", rank);
    for (const Action& action : orders[rank]) text += " " + actionToString(action);
    text += "\n";
  }
  return text;
}

std::vector<HtmlCell> bubbleRow(std::string_view name, const Simulation& simulation) {
  return {textCell(name), numberCell(percent(simulation.bubbleOfMakespan())), numberCell(percent(simulation.bubbleOfUseful()))};
}

std::string renderSchedule(const Plan& plan, const Schedule& schedule) {
  const std::vector<PassTimes> times = stageTimes(plan);
  const std::vector<PassTimes> equal(plan.stages.size());
  const bool from_flops =
      std::any_of(times.begin(), times.end(), [](const PassTimes& t) { return t.forward != 1 || t.backward_input != 1; });
  const Simulation timeline = simulate({.schedule = schedule, .stages = times});
  std::vector<std::string> names;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<int>& devices = plan.stages[s].devices;
    names.push_back(devices.size() == 1 ? fmt::format("stage {} · rank {}", s, devices[0]) : fmt::format("stage {}", s));
  }
  std::string html = paragraph(fmt::format("{}, {}. Box widths: {}; transfers are drawn as free.", plan.schedule,
                                           plan.microbatches == 1 ? "one microbatch" : fmt::format("{} microbatches", plan.microbatches),
                                           from_flops ? "the stages' FLOPs on equal devices" : "forward 1, backward 2"));
  html += scrollBox("Schedule chart", fmt::format("<div class=\"chart\">{}</div>", renderScheduleSvg(timeline, names, SvgUse::kInPage)));
  HtmlTable bubbles{"Idle share", {textCell("Idle time (bubble)"), numberCell("of the step"), numberCell("of the useful work")}, {}};
  bubbles.rows.push_back(bubbleRow(from_flops ? "this plan" : "equal stages", timeline));
  if (from_flops) bubbles.rows.push_back(bubbleRow("equal stages", simulate({.schedule = schedule, .stages = equal})));
  html += renderTable(bubbles);
  html += paragraph("Equal stages: what the schedule alone costs, with a backward pass twice as long as a forward pass.");
  html += "<details><summary>The order of each stage as text</summary>\n" +
          scrollBox("Order of each stage", "<pre>" + escapeHtml(ordersAsText(schedule.orders)) + "</pre>") + "</details>\n";
  return section("schedule", "Schedule", html);
}

std::string renderLosses(const ValidationReport& validation) {
  HtmlTable table{"Losses", {numberCell("Step"), numberCell("Planned"), numberCell("One device"), numberCell("Difference")}, {}};
  for (size_t s = 0; s < std::min(validation.steps.size(), kMostStepsShown); ++s) {
    const StepComparison& step = validation.steps[s];
    table.rows.push_back({numberCell(fmt::format("{}", s + 1)), numberCell(fmt::format("{:.9g}", step.loss)),
                          numberCell(fmt::format("{:.9g}", step.reference_loss)),
                          numberCell(fmt::format("{:.1e}", step.loss - step.reference_loss))});
  }
  std::string html = renderTable(table);
  if (validation.steps.size() > kMostStepsShown)
    html += paragraph(fmt::format("The first {} of {} steps.", kMostStepsShown, validation.steps.size()));
  return section("losses", "Loss of each step", html);
}

std::string renderMemory(const JobResult& job) {
  HtmlTable table{
      "Memory of each rank",
      {numberCell("Rank"), numberCell("Parameters"), numberCell("States"), numberCell("Gradients"), numberCell("Activations"),
       numberCell("Workspace"), numberCell("Padding"), numberCell("Arena"), numberCell("Constants"), numberCell("Process, measured")},
      {}};
  for (size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const RankResult& result = job.ranks[rank];
    const MemoryParts& parts = result.memory;
    table.rows.push_back({numberCell(fmt::format("{}", rank))});
    for (int64_t bytes : {parts.parameters, parts.states, parts.gradients, parts.activations, parts.workspace, parts.padding,
                          result.arena_bytes, result.constant_bytes, result.peak_resident_bytes}) {
      table.rows.back().push_back(numberCell(formatBytes(bytes)));
    }
  }
  return section(
      "memory", "Memory of each rank",
      renderTable(table) +
          paragraph("Arena: the one allocation that holds all tensors of the rank, planned before the first step; the parts before it "
                    "are those of its fullest moment. Process: the largest resident size, with program and libraries."));
}

// The last step: earlier ones touch memory for the first time.
std::string renderTimes(const StepResult& step) {
  HtmlTable table{"Time of the last step", {numberCell("Rank"), numberCell("Computing"), numberCell("Transfers and waiting")}, {}};
  for (size_t rank = 0; rank < std::min(step.compute_seconds.size(), step.transfer_seconds.size()); ++rank) {
    table.rows.push_back({numberCell(fmt::format("{}", rank)), numberCell(fmt::format("{:.4f} s", step.compute_seconds[rank])),
                          numberCell(fmt::format("{:.4f} s", step.transfer_seconds[rank]))});
  }
  return section("times", "Time of the last step",
                 paragraph(fmt::format("Step {} took {:.4f} s on the slowest rank.", step.step, step.seconds)) + renderTable(table));
}

struct KindSummary {
  int64_t compared = 0;
  int64_t failed = 0;
  double worst = 0;
  double bound = 0;
};

std::string renderComparison(const ValidationReport& validation) {
  std::map<ComparedKind, KindSummary> kinds;
  for (const TensorComparison& tensor : validation.tensors) {
    KindSummary& kind = kinds[tensor.kind];
    ++kind.compared;
    kind.failed += tensor.passed() ? 0 : 1;
    kind.worst = std::max(kind.worst, std::isnan(tensor.error) ? INFINITY : tensor.error);
    kind.bound = std::max(kind.bound, tensor.bound);
  }
  HtmlTable summary{"Comparison by kind",
                    {textCell("Compared"), numberCell("Tensors"), numberCell("Worst error"), numberCell("Bound"), numberCell("Over bound")},
                    {}};
  for (const auto& [kind, sum] : kinds) {
    summary.rows.push_back({textCell(comparedKindName(kind)), numberCell(fmt::format("{}", sum.compared)), numberCell(errorText(sum.worst)),
                            numberCell(boundText(sum.bound)), numberCell(fmt::format("{}", sum.failed))});
  }
  HtmlTable worst{"Worst tensors",
                  {textCell("Kind"), textCell("Tensor"), numberCell("Step"), numberCell("Error"), numberCell("Bound"),
                   numberCell("Largest difference"), textCell("Verdict")},
                  {}};
  const size_t shown = std::min(validation.tensors.size(), kMostTensorsShown);
  for (size_t t = 0; t < shown; ++t) {
    const TensorComparison& tensor = validation.tensors[t];
    worst.rows.push_back({textCell(comparedKindName(tensor.kind)), codeCell(tensorName(tensor)), numberCell(fmt::format("{}", tensor.step)),
                          numberCell(errorText(tensor.error)), numberCell(boundText(tensor.bound)),
                          numberCell(errorText(tensor.largest_difference)), verdictCell(tensor)});
  }
  return section(
      "comparison", "Against one device",
      renderTable(summary) +
          paragraph(fmt::format("The {} nearest to their bound, or furthest over it:", plural(std::ssize(worst.rows), "tensor"))) +
          renderTable(worst) +
          paragraph("Error: the 2-norm of the difference over the 2-norm of the one-device tensor, which has a floor, so that a gradient "
                    "that is zero "
                    "up to rounding does not decide. Updates on identical gradients are compared element by element."));
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

std::string planCommand(const Plan& plan) {
  std::string command = "pipeshard plan " + shellWord(plan.model_path);
  const auto add = [&](const char* option, const std::string& value) { command += fmt::format(" \\\n  {} {}", option, shellWord(value)); };
  for (const auto& [name, size] : plan.dimensions) add("--dim", fmt::format("{}={}", name, size));
  if (!plan.batch_dimension.empty()) add("--batch-dim", plan.batch_dimension);
  add("--loss", plan.loss);
  add("--optimizer", plan.optimizer);
  add("--precision", std::string(dataTypeName(plan.precision)));
  add("--cluster", fmt::format("{}x{}", plan.cluster.nodes, plan.cluster.devices_per_node));
  if (std::ssize(plan.stages) != plan.cluster.deviceCount()) {
    if (plan.boundaries.empty()) add("--stages", fmt::format("uniform:{}", plan.stages.size()));
    std::vector<size_t> widths;
    for (const StagePlan& stage : plan.stages) widths.push_back(stage.devices.size());
    add("--stage-devices", fmt::format("{}", fmt::join(widths, ",")));
  }
  for (const std::string& value : plan.boundaries) add("--boundary", value);
  const auto sharded =
      std::find_if(plan.stages.begin(), plan.stages.end(), [](const StagePlan& stage) { return stage.sharding.has_value(); });
  if (sharded != plan.stages.end()) {
    add("--method", sharded->sharding->method);
    for (const std::string& constraint : sharded->sharding->constraints) add("--shard", constraint);
    if (sharded->sharding->memory_limit > 0) add("--memory", fmt::format("{}", sharded->sharding->memory_limit));
  }
  for (const std::string& pattern : plan.freeze) add("--freeze", pattern);
  for (const std::string& pattern : plan.train) add("--train", pattern);
  add("--schedule", plan.schedule);
  add("--microbatches", fmt::format("{}", plan.microbatches));
  if (plan.last_batch > 0) add("--last-batch", fmt::format("{}", plan.last_batch));
  add("-o", planDirectory(plan));
  return command;
}

std::string renderReproduction(const Plan& plan) {
  std::string html = paragraph("plan.json beside this page holds the exact cut; validating the directory solves nothing again:");
  html +=
      scrollBox("Command that validates", fmt::format("<pre>{}</pre>", escapeHtml("pipeshard validate " + shellWord(planDirectory(plan)))));
  html += paragraph("Planned anew (cuts chosen by --balance or a stage file have to be given again):");
  html += scrollBox("Command that plans", fmt::format("<pre>{}</pre>", escapeHtml(planCommand(plan))));
  return section("reproduce", "How to reproduce", html);
}

bool hasRanks(const ReportInput& input) { return input.validation != nullptr && !input.validation->planned.ranks.empty(); }
bool hasTimes(const ReportInput& input) { return input.validation != nullptr && !input.validation->planned.steps.empty(); }

std::string renderNavigation(const ReportInput& input) {
  std::vector<std::pair<const char*, const char*>> links = {{"cluster", "Cluster"}, {"stages", "Stages"}};
  if (hasShardedStage(input.plan)) links.emplace_back("sharding", "Sharding");
  links.emplace_back("schedule", "Schedule");
  if (input.validation != nullptr) links.insert(links.end(), {{"comparison", "Against one device"}, {"losses", "Loss"}});
  if (hasRanks(input)) links.emplace_back("memory", "Memory");
  if (hasTimes(input)) links.emplace_back("times", "Time");
  if (!input.plan.notes.empty()) links.emplace_back("notes", "Notes");
  links.emplace_back("reproduce", "Reproduce");
  std::string html = "<nav aria-label=\"Sections\"><ul>\n";
  for (const auto& [id, title] : links) html += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", id, title);
  return html + "</ul></nav>\n";
}

}  // namespace

std::string renderReport(const ReportInput& input) {
  const Plan& plan = input.plan;
  const Schedule schedule = input.schedule != nullptr ? *input.schedule : scheduleOf(plan);
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  html += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  html += "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n";
  html += fmt::format("<title>{}: pipeshard</title>\n<style>\n{}{}</style>\n</head>\n<body>\n", escapeHtml(headline(plan)),
                      std::string(kPageStyle) + (hasShardedStage(plan) ? kShardingStyle : ""), kScheduleStyle);
  html += fmt::format("<header><h1>{}</h1>\n{}{}</header>\n", escapeHtml(headline(plan)), renderVerdict(input), renderFacts(plan));
  html += renderNavigation(input) + "<main>\n";
  html += renderCluster(plan) + renderStages(plan);
  if (hasShardedStage(plan)) html += renderShardings(plan, input.parameters);
  html += renderSchedule(plan, schedule);
  if (input.validation != nullptr) html += renderComparison(*input.validation) + renderLosses(*input.validation);
  if (hasRanks(input)) html += renderMemory(input.validation->planned);
  if (hasTimes(input)) html += renderTimes(input.validation->planned.steps.back());
  if (!plan.notes.empty()) html += renderNotes(plan);
  html += renderReproduction(plan) + "</main>\n";
  html += fmt::format("<footer>Written by pipeshard. Model: {}</footer>\n</body>\n</html>\n", escapeHtml(plan.model_path));
  return html;
}

}  // namespace pipeshard
