// The window of a schedule's orders that an error message shows. Internal to partition/.
#pragma once

#include <string>
#include <vector>

#include "partition/schedules/schedule.h"

namespace pipeshard {

struct ScheduleMark {
  PipelineRankId rank;
  size_t step = 0;  // position in the rank's order; its length: the end
};

// A line per pipeline rank (16 of them, around the first mark) with eleven steps around its mark, or around
// the first mark's step where it has none. Marked steps stand in > <. Empty without marks.
//     rank 0, step 0:   0F0   0F1   0B0   0B1
//     rank 1, step 0:  >1B0<  1F0   1F1   1B1
std::string markedGrid(const ScheduleOrders& orders, const std::vector<ScheduleMark>& marks);

}  // namespace pipeshard
