// The report's other pictures: memory over time, the cluster.
#pragma once

#include <span>
#include <string>

#include "tools/report/report_chart.h"

namespace pipeshard {

// What each rank holds over the step: an area for the first timeline, a line for the second, which must be in
// the same unit; the limit dashed. A rank without memory points is left out. Only what differs by a pixel is
// drawn, peaks are kept.
Chart memoryChart(std::span<const Timeline> timelines);
// Those that can be drawn together: they have memory points, in bytes if any has bytes.
std::vector<Timeline> withMemory(std::span<const Timeline> timelines);
// "3.2 MiB", or "4 microbatches": in the timeline's unit.
std::string memoryText(const Timeline& timeline, int64_t held);

// Nodes, their devices, and who sits where.
std::string clusterSvg(const Plan& plan);
// By device: "stages 0, 4"; "" for one that is not used.
std::vector<std::string> seats(const Plan& plan);

}  // namespace pipeshard
