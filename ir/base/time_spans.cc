#include "ir/base/time_spans.h"

#include <algorithm>

namespace pipeshard {

std::vector<TimeSpan> unitedSpans(std::vector<TimeSpan> spans) {
  std::sort(spans.begin(), spans.end());
  std::vector<TimeSpan> result;
  for (const TimeSpan& span : spans) {
    if (span.first >= span.second) continue;
    if (!result.empty() && span.first <= result.back().second) {
      result.back().second = std::max(result.back().second, span.second);
    } else {
      result.push_back(span);
    }
  }
  return result;
}

int64_t totalLength(const std::vector<TimeSpan>& spans) {
  int64_t sum = 0;
  for (const auto& [start, end] : spans) sum += end - start;
  return sum;
}

}  // namespace pipeshard
