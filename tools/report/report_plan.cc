#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/counted.h"
#include "ir/base/ids_format.h"
#include "tools/report/report_html.h"
#include "tools/report/report_pictures.h"
#include "tools/report/report_sections.h"

namespace pipeshard {
namespace {

constexpr int kMostNodesShown = 64;
constexpr int kMostDevicesShown = 512;
constexpr size_t kMostRibbonStages = 64;
constexpr size_t kMostLayersShown = 400;

int64_t work(const StagePlan& stage) { return stage.forward_flops + stage.backward_flops; }

double shareOf(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// The stage's work against the busiest stage's, forward and backward apart.
HtmlCell workCell(const StagePlan& stage, int64_t most, int64_t all) {
  return {fmt::format("<span>{} of all<span class=\"bar\" aria-hidden=\"true\"><i class=\"f\" "
                      "style=\"width:{}\"></i><i class=\"b\" style=\"width:{}\"></i></span></span>",
                      percent(shareOf(work(stage), all)), percent(shareOf(stage.forward_flops, most)),
                      percent(shareOf(stage.backward_flops, most))),
          false};
}

HtmlCell operatorsCell(const Plan& plan, const StagePlan& stage) {
  return {fmt::format("<span>{}{}</span>", codeCell(plan.layers.at(stage.first_layer).first_node).html,
                      codeCell(plan.layers.at(stage.last_layer).last_node).html),
          false};
}

// The stages in a row, each as wide as its work.
std::string ribbon(const Plan& plan, int64_t all) {
  if (plan.stages.size() > kMostRibbonStages || all <= 0) return "";
  std::string html = "<ul class=\"ribbon\" aria-label=\"Work of the stages\">\n";
  for (const StageId s : plan.stages.ids()) {
    const double share = shareOf(work(plan.stages[s]), all);
    html += fmt::format("<li style=\"flex-grow:{:.0f}\" title=\"stage {}: {} of the work\">{}</li>\n",
                        std::max(1.0, 1000 * share), s, percent(share),
                        share >= 0.03 ? fmt::format("{}", s) : "");
  }
  return html + "</ul>\n";
}

std::string layersTable(const Plan& plan) {
  HtmlTable table{
      "Layers",
      {numberCell("Layer"), numberCell("Stage"), textCell("First and last operator"), numberCell("Forward")},
      {}};
  StageId stage(0);
  for (const LayerId l : idsBelow<LayerId>(std::min(plan.layers.size(), kMostLayersShown))) {
    while (plan.stages.has(stage.next()) && l > plan.stages[stage].last_layer) ++stage;
    const LayerPlan& layer = plan.layers[l];
    table.rows.push_back({numberCell(fmt::format("{}", l)), numberCell(fmt::format("{}", stage)),
                          HtmlCell{codeCell(layer.first_node).html + codeCell(layer.last_node).html, false},
                          numberCell(formatFlops(layer.flops))});
  }
  return fmt::format("<details><summary>The {} that stages are made of</summary>\n{}{}</details>\n",
                     counted(std::ssize(plan.layers), "layer"), renderTable(table),
                     plan.layers.size() > kMostLayersShown
                         ? paragraph(fmt::format("And {} more; plan.json names them all.",
                                                 plan.layers.size() - kMostLayersShown))
                         : "");
}

// The best plans that a search has found.
std::string searchTable(const Plan& plan) {
  if (!plan.search || plan.search->alternatives.empty()) return "";
  HtmlTable table{
      "Best plans found",
      {textCell(""), numberCell("Predicted step"), numberCell("Memory"), numberCell("Microbatches"),
       textCell("Schedule"), textCell("Layers of each stage, on how many devices")},
      {}};
  for (size_t i = 0; i < plan.search->alternatives.size(); ++i) {
    const SearchedPlan& other = plan.search->alternatives[i];
    std::vector<std::string> stages;
    for (const SearchedStage& stage : other.stages)
      stages.push_back(fmt::format("{}–{} on {}", stage.first_layer, stage.last_layer,
                                   stage.nodes * stage.devices_per_node));
    table.rows.push_back({textCell(i == plan.search->chosen ? "chosen" : ""),
                          numberCell(fmt::format("{:.3f} ms", static_cast<double>(other.step_ns) / 1e6)),
                          numberCell(formatBytes(other.memory_bytes)),
                          numberCell(fmt::format("{}", other.microbatches)),
                          textCell(scheduleSpecToString(other.schedule)),
                          textCell(fmt::format("{}", fmt::join(stages, ", ")))});
  }
  return fmt::format("<details><summary>The {} that the search found{}</summary>\n{}</details>\n",
                     counted(std::ssize(plan.search->alternatives), "best plan"),
                     plan.search->complete ? "" : " before it was cut short", renderTable(table));
}

std::string rankText(const std::vector<RankId>& devices) {
  if (devices.size() <= 8) return fmt::format("{}", fmt::join(devices, ", "));
  const bool consecutive = devices.back().index() - devices.front().index() + 1 == devices.size();
  return consecutive ? fmt::format("{}–{}", devices.front(), devices.back())
                     : fmt::format("{} ranks from {} on", devices.size(), devices.front());
}

}  // namespace

std::string percent(double part) { return fmt::format("{:.1f}%", 100 * part); }

std::string renderCluster(const Plan& plan) {
  const std::vector<std::string> texts = seats(plan);
  const int devices = plan.cluster.deviceCount();
  const auto unused = std::count(texts.begin(), texts.end(), "");
  const int per_node = plan.cluster.devicesPerNode();
  const bool equal = plan.cluster.nodeCount() * per_node == devices;
  std::string html = paragraph(fmt::format(
      "{} of {}{}, {} in all.{}", counted(plan.cluster.nodeCount(), "node"), equal ? "" : "up to ",
      counted(per_node, "device"), counted(devices, "rank"),
      unused > 0 ? fmt::format(" {} of {} stay unused.", unused, counted(devices, "device")) : ""));
  html += "<div class=\"nodes\">\n";
  int shown = 0;
  for (int node = 0; node < plan.cluster.nodeCount() && node < kMostNodesShown && shown < kMostDevicesShown;
       ++node) {
    html += fmt::format("<div class=\"node\"><h3>node {}</h3><ul>", node);
    const int first = plan.cluster.firstDeviceOf(node);
    for (int d = 0; d < plan.cluster.nodes[node].devices && shown < kMostDevicesShown; ++d, ++shown) {
      const int rank = first + d;
      const std::string& seat = texts[rank];
      html += seat.empty() ? fmt::format("<li class=\"idle\">rank {}<b>unused</b></li>", rank)
                           : fmt::format("<li>rank {}<b>{}</b></li>", rank, seat);
    }
    html += "</ul></div>\n";
  }
  html += "</div>\n";
  if (shown < devices)
    html += paragraph(fmt::format("And {} that are not drawn; the table of stages names their ranks.",
                                  counted(devices - shown, "device")));
  return section("cluster", "Cluster", html);
}

std::string renderStages(const Plan& plan) {
  int64_t most = 0, all = 0;
  bool meshes = false, recomputes = false;
  for (const StagePlan& stage : plan.stages) {
    most = std::max(most, work(stage));
    all += work(stage);
    meshes = meshes || stage.devices.size() > 1;
    recomputes = recomputes || stage.recomputation != Recomputation::kNever;
  }
  HtmlTable table{"Stages",
                  {numberCell("Stage"), textCell("Ranks"), textCell("Layers"),
                   textCell("First and last operator"), numberCell("Parameters"), numberCell("Forward"),
                   numberCell("Backward"), textCell("Work"), numberCell("In flight")},
                  {},
                  true};
  if (meshes) table.head.push_back(textCell("Mesh"));
  if (recomputes) table.head.push_back(textCell("Recomputation"));
  for (const StageId s : plan.stages.ids()) {
    const StagePlan& stage = plan.stages[s];
    table.rows.push_back(
        {numberCell(fmt::format("{}", s)), textCell(rankText(stage.devices)),
         textCell(stage.first_layer == stage.last_layer
                      ? fmt::format("{}", stage.first_layer)
                      : fmt::format("{}\u00a0to\u00a0{}", stage.first_layer, stage.last_layer)),
         operatorsCell(plan, stage), numberCell(formatBytes(stage.parameter_bytes)),
         numberCell(formatFlops(stage.forward_flops)), numberCell(formatFlops(stage.backward_flops)),
         workCell(stage, most, all), numberCell(fmt::format("{}", stage.peak_activations))});
    if (meshes) table.rows.back().push_back(textCell(meshText(stage)));
    if (recomputes)
      table.rows.back().push_back(textCell(std::string(recomputationName(stage.recomputation))));
  }
  return section("stages", "Stages",
                 paragraph("The model from its inputs (left) to its loss (right), cut into stages; the width "
                           "of each is its work.") +
                     ribbon(plan, all) + renderTable(table) +
                     paragraph("FLOPs are of one microbatch. The bar compares a stage's forward (blue) and "
                               "backward (green) work with the busiest stage. In flight: microbatches whose "
                               "activations are held at once, at most.") +
                     layersTable(plan) + searchTable(plan));
}

}  // namespace pipeshard
