// The section of the report page about memory.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/report/report.h"
#include "tools/report/report_timeline.h"

namespace pipeshard {

// By rank: what its memory is for at its fullest moment, as its program says; without workspace and padding,
// which kernels decide.
std::vector<MemoryParts> memoryOf(const std::vector<Program>& programs);

// What the ranks hold over time, and what for. "" when neither is known.
std::string renderMemory(const ReportInput& input, std::span<const Timeline> timelines);

}  // namespace pipeshard
