#include "tools/report/report_memory.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "runtime/execute/accumulation.h"
#include "runtime/validation/validate.h"
#include "tools/report/report_html.h"
#include "tools/report/report_pictures.h"
#include "tools/report/report_sections.h"

namespace pipeshard {
namespace {

constexpr size_t kMostMemoryRows = 256;

MemoryParts fullestMoment(const Program& program) {
  const Accumulation none = findAccumulation(program, [](const Instruction&, size_t) { return false; });
  const std::vector<LiveBlock> blocks = bufferIntervals(program, none);
  std::vector<int64_t> change(program.instructions.size() + 2, 0);
  for (const LiveBlock& block : blocks) {
    change[block.begin] += block.bytes;
    change[std::min(change.size() - 1, static_cast<size_t>(block.end))] -= block.bytes;
  }
  int64_t held = 0, most = -1, moment = 0;
  for (size_t i = 0; i < change.size(); ++i) {
    held += change[i];
    if (held > most) {
      most = held;
      moment = i;
    }
  }
  MemoryParts parts;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].begin <= moment && moment < blocks[b].end)
      partOf(parts, program.buffer(BufferId(b)).kind) += blocks[b].bytes;
  }
  return parts;
}

std::string measuredTable(const JobResult& job) {
  HtmlTable table{
      "Memory of each rank",
      {numberCell("Rank"), numberCell("Parameters"), numberCell("States"), numberCell("Gradients"),
       numberCell("Activations"), numberCell("Workspace"), numberCell("Padding"), numberCell("Arena"),
       numberCell("Constants"), numberCell("Process, measured")},
      {}};
  const bool has_devices =
      std::ranges::any_of(job.ranks, [](const RankResult& r) { return !r.device.empty(); });
  if (has_devices) {
    table.head.insert(table.head.begin() + 1, textCell("Device"));
    table.head.insert(table.head.end() - 1, numberCell("GPU, measured"));
  }
  for (RankId rank : idsBelow<RankId>(std::min(job.ranks.size(), kMostMemoryRows))) {
    const RankResult& result = job.ranks[rank];
    const MemoryParts& parts = result.memory;
    table.rows.push_back({numberCell(fmt::format("{}", rank))});
    if (has_devices) table.rows.back().push_back(textCell(result.device));
    std::vector<int64_t> columns = {parts.parameters,   parts.states,         parts.gradients,
                                    parts.activations,  parts.workspace,      parts.padding,
                                    result.arena_bytes, result.constant_bytes};
    if (has_devices) columns.push_back(result.peak_device_bytes);
    columns.push_back(result.peak_resident_bytes);
    for (const int64_t bytes : columns) table.rows.back().push_back(numberCell(formatBytes(bytes)));
  }
  return renderTable(table) +
         paragraph(
             "Arena: the one allocation that holds all tensors of the rank, planned "
             "before the first step; the parts before it are those of its fullest "
             "moment. Process: the largest resident size, with program and libraries; on a GPU "
             "arena and constants are the device's, beside them what was held of its memory at most, and the "
             "process is what the host has.");
}

std::string plannedTable(const std::vector<MemoryParts>& memory, const RankSample* sample) {
  HtmlTable table{"Memory of each rank",
                  {numberCell("Rank"), numberCell("Parameters"), numberCell("States"),
                   numberCell("Gradients"), numberCell("Activations"), numberCell("Together")},
                  {}};
  for (size_t rank = 0; rank < std::min(memory.size(), kMostMemoryRows); ++rank) {
    const MemoryParts& parts = memory[rank];
    const bool stands_for_others = sample != nullptr && sample->counts.at(rank) > 1;
    table.rows.push_back({numberCell(
        stands_for_others ? fmt::format("{} ×{}", sample->ranks.at(rank), sample->counts.at(rank))
                          : fmt::format("{}", sample != nullptr ? sample->ranks.at(rank).index() : rank))});
    for (int64_t bytes : {parts.parameters, parts.states, parts.gradients, parts.activations, parts.total()})
      table.rows.back().push_back(numberCell(formatBytes(bytes)));
  }
  return renderTable(table) + paragraph(
                                  "At the fullest moment of a step, as planned. Temporaries inside operators "
                                  "come on top; `validate` measures them.");
}

std::string chart(std::span<const Timeline> timelines) {
  const std::vector<Timeline> drawn = withMemory(timelines);
  if (drawn.empty()) return "";
  bool limited = false;
  for (const TimelineRank& rank : drawn[0].ranks) limited = limited || rank.memory_limit > 0;
  std::string text =
      drawn[0].memory_in_bytes
          ? "What each rank holds over the step"
          : "How many microbatches' activations each rank holds over the step, all its stages together";
  text += drawn.size() > 1
              ? fmt::format(": the area is {}, the line is {}.", drawn[0].source, drawn[1].source)
              : fmt::format(", {}.", drawn[0].source);
  if (limited) text += " The dashed line is the limit that was given with --memory.";
  return paragraph(text) + scrollBox("Memory chart", renderChart(memoryChart(drawn), SvgUse::kInPage));
}

}  // namespace

std::vector<MemoryParts> memoryOf(const std::vector<Program>& programs) {
  std::vector<MemoryParts> memory(programs.size());
  parallelFor(processorCount(), static_cast<int32_t>(programs.size()),
              [&](int32_t rank) { memory[rank] = fullestMoment(programs[rank]); });
  return memory;
}

std::string renderMemory(const ReportInput& input, std::span<const Timeline> timelines) {
  std::string html = chart(timelines);
  if (input.validation != nullptr && !input.validation->planned.ranks.empty()) {
    html += measuredTable(input.validation->planned);
  } else if (!input.memory.empty()) {
    html += plannedTable(input.memory, input.sample);
  }
  return html.empty() ? html : section("memory", "Memory", html);
}

}  // namespace pipeshard
