// Spans of time, [start, end): what several of them cover together.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace pipeshard {

using TimeSpan = std::pair<int64_t, int64_t>;

// Ascending, disjoint, none empty:  {5,9} {1,3} {2,4} {7,7}  ->  {1,4} {5,9}
std::vector<TimeSpan> unitedSpans(std::vector<TimeSpan> spans);

// Of spans that are united.
int64_t totalLength(const std::vector<TimeSpan>& spans);

}  // namespace pipeshard
