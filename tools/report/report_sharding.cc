#include "tools/report/report_sharding.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/ids_format.h"
#include "ir/base/sharding_spec.h"
#include "tools/report/report_html.h"

namespace pipeshard {
namespace {

constexpr size_t kMostTensorsShown = 400;
constexpr size_t kColours = 8;  // of kShardingStyle

std::string milliseconds(int64_t ns) { return fmt::format("{:.3f} ms", static_cast<double>(ns) / 1e6); }

bool isWhole(const std::string& spec) { return parseSpec(spec).isReplicated(); }

// Specs by their texts; the most frequent ones have colours of their own.
class Colours {
 public:
  explicit Colours(const Plan& plan) {
    std::map<std::string, int64_t> counts;
    for (const StagePlan& stage : plan.stages) {
      if (!stage.sharding) continue;
      for (const auto& [value, spec] : stage.sharding->specs) ++counts[spec];
    }
    std::vector<std::pair<int64_t, std::string>> order;
    for (const auto& [spec, count] : counts) order.emplace_back(-count, spec);
    std::sort(order.begin(), order.end());
    for (const auto& [count, spec] : order) {
      if (!isWhole(spec)) classes_[spec] = fmt::format("c{}", classes_.size() % kColours);
    }
  }

  std::string chip(const std::string& spec) const {
    const auto found = classes_.find(spec);
    return fmt::format("<span class=\"spec {}\">{}</span>", found == classes_.end() ? "whole" : found->second,
                       escapeHtml(spec));
  }

 private:
  std::map<std::string, std::string> classes_;
};

std::string renderPrediction(const StagePlan& stage, const ShardingPlan& sharding) {
  const int64_t cost = sharding.compute_ns + sharding.communication_ns;
  const std::vector<std::pair<const char*, std::string>> facts = {
      {"Mesh", fmt::format("{} of {} devices", meshText(stage), stage.devices.size())},
      {"Method", shardingMethodToString(sharding.method)},
      {"Compute, predicted", milliseconds(sharding.compute_ns)},
      {"Communication, predicted", milliseconds(sharding.communication_ns)},
      {"Memory per device, predicted", formatBytes(sharding.memory_bytes)},
      {"Together at least", milliseconds(sharding.lower_bound_ns) + (sharding.optimal ? " (optimal)" : "")}};
  std::string html = "<dl class=\"facts\">\n";
  for (const auto& [name, value] : facts)
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", name, escapeHtml(value));
  html += "</dl>\n";
  if (cost > 0) {
    html += fmt::format(
        "<span class=\"bar\" aria-hidden=\"true\"><i class=\"f\" style=\"width:{0:.1f}%\"></i><i class=\"t\" "
        "style=\"width:{1:.1f}%\"></i></span>\n",
        100.0 * static_cast<double>(sharding.compute_ns) / static_cast<double>(cost),
        100.0 * static_cast<double>(sharding.communication_ns) / static_cast<double>(cost));
  }
  return html;
}

// "S0,R of 12 tensors", the most frequent first.
std::string renderLegend(const ShardingPlan& sharding, const Colours& colours) {
  std::map<std::string, int64_t> counts;
  for (const auto& [value, spec] : sharding.specs) ++counts[spec];
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [spec, count] : counts) order.emplace_back(-count, spec);
  std::sort(order.begin(), order.end());
  std::string html = "<ul class=\"specs\">\n";
  for (const auto& [count, spec] : order)
    html += fmt::format("<li>{} × {}</li>\n", colours.chip(spec), -count);
  return html + "</ul>\n";
}

std::string moreThan(size_t shown, size_t all) {
  return all <= shown ? "" : paragraph(fmt::format("And {} more; plan.json names them all.", all - shown));
}

std::string renderParameters(StageId s, const ShardingPlan& sharding,
                             const std::vector<const ReportedParameter*>& parameters,
                             const Colours& colours) {
  HtmlTable table{fmt::format("Parameters of stage {}", s),
                  {textCell("Parameter"), textCell("Shape"), numberCell("Bytes"), textCell("Sharding"),
                   textCell("First device holds"), numberCell("Bytes")},
                  {}};
  for (size_t p = 0; p < std::min(parameters.size(), kMostTensorsShown); ++p) {
    const ReportedParameter& parameter = *parameters[p];
    const auto spec = sharding.specs.find(parameter.name);
    const std::string text =
        spec != sharding.specs.end() ? spec->second : printSpec(replicated(parameter.whole.size()));
    table.rows.push_back({codeCell(parameter.name), textCell(shapeToString(parameter.whole)),
                          numberCell(formatBytes(byteCount(parameter.data_type, parameter.whole))),
                          HtmlCell{colours.chip(text), false}, textCell(shapeToString(parameter.held)),
                          numberCell(formatBytes(byteCount(parameter.data_type, parameter.held)))});
  }
  return renderTable(table) + moreThan(kMostTensorsShown, parameters.size());
}

std::string renderOthers(StageId s, const std::vector<std::pair<std::string, std::string>>& specs,
                         const Colours& colours) {
  HtmlTable table{
      fmt::format("Other tensors of stage {}", s), {textCell("Tensor"), textCell("Sharding")}, {}};
  for (size_t i = 0; i < std::min(specs.size(), kMostTensorsShown); ++i)
    table.rows.push_back({codeCell(specs[i].first), HtmlCell{colours.chip(specs[i].second), false}});
  return fmt::format(
      "<details><summary>{} other tensor{} that {} not whole on every device</summary>\n{}{}</details>\n",
      specs.size(), specs.size() == 1 ? "" : "s", specs.size() == 1 ? "is" : "are", renderTable(table),
      moreThan(kMostTensorsShown, specs.size()));
}

}  // namespace

std::vector<ReportedParameter> parametersOf(const Plan& plan, const IdVector<RankId, Program>& programs,
                                            const RankSample& sample) {
  std::vector<ReportedParameter> parameters;
  for (const StageId s : plan.stages.ids()) {
    if (!plan.stages[s].sharding) continue;
    const Program& program = programs.at(RankId(sample.place.at(plan.stages[s].devices.at(0))));
    for (const Buffer& buffer : program.buffers) {
      if (buffer.kind != BufferKind::kParameter) continue;
      parameters.push_back({s, buffer.value.empty() ? buffer.name : buffer.value, buffer.data_type,
                            wholeShape(buffer), buffer.shape});
    }
  }
  return parameters;
}

std::string renderShardings(const Plan& plan, const std::vector<ReportedParameter>& parameters) {
  const Colours colours(plan);
  std::string html;
  for (const StageId s : plan.stages.ids()) {
    if (!plan.stages[s].sharding) continue;
    const ShardingPlan& sharding = *plan.stages[s].sharding;
    html += fmt::format("<h3>stage {}</h3>\n", s) + renderPrediction(plan.stages[s], sharding) +
            renderLegend(sharding, colours);
    std::vector<const ReportedParameter*> of_stage;
    for (const ReportedParameter& parameter : parameters) {
      if (parameter.stage == s) of_stage.push_back(&parameter);
    }
    if (!of_stage.empty()) html += renderParameters(s, sharding, of_stage, colours);
    std::vector<std::pair<std::string, std::string>> others;
    for (const auto& [value, spec] : sharding.specs) {
      const bool is_parameter = std::any_of(of_stage.begin(), of_stage.end(),
                                            [&, &name = value](const auto* p) { return p->name == name; });
      if (!is_parameter) others.emplace_back(value, spec);
    }
    if (!others.empty()) html += renderOthers(s, others, colours);
  }
  html += paragraph(
      "S and the numbers of mesh axes: the tensor's axis is cut over these axes of the mesh, R: it is whole. "
      "P: the devices along that axis of the mesh hold summands. The bar: predicted compute (blue) and "
      "communication (red).");
  return section("sharding", "Sharding inside stages", html);
}

}  // namespace pipeshard
