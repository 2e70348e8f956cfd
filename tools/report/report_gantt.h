// The picture of a step: a row per rank, a box per pass, the shades of a colour for the chunks of a rank,
// idle time hatched.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/report/report_chart.h"

namespace pipeshard {

// Timelines one below the other on one axis ("predicted" above "measured"). Where only one of two has
// nanoseconds, the other is stretched so that both are busy for as long. Up to 1600 boxes have numbers and
// texts of their own; more are drawn as plain areas, so that a page stays light. At most 64 rows each.
Chart ganttChart(std::span<const Timeline> timelines);

// What the colours mean that occur.
std::vector<LegendEntry> ganttLegend(std::span<const Timeline> timelines);

// "f2": the class of a box. Chunk c of n.
std::string barClass(TraceWork work, size_t chunk, size_t chunks);

}  // namespace pipeshard
