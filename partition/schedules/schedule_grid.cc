#include "partition/schedules/schedule_grid.h"

#include <algorithm>

#include <fmt/format.h>

namespace pipeshard {

std::string markedGrid(const ScheduleOrders& orders, const std::vector<ScheduleMark>& marks) {
  constexpr size_t kRows = 16;
  constexpr size_t kAround = 5;
  if (marks.empty()) return "";
  const size_t middle_row = marks[0].rank.index();
  const size_t first_row =
      orders.size() <= kRows ? 0
                             : std::min(middle_row - std::min(middle_row, kRows / 2), orders.size() - kRows);
  const size_t end_row = std::min(first_row + kRows, orders.size());
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> firsts;
  size_t width = 0;
  for (const PipelineRankId rank : IdRange(PipelineRankId(first_row), PipelineRankId(end_row))) {
    const auto mark =
        std::find_if(marks.begin(), marks.end(), [&](const ScheduleMark& m) { return m.rank == rank; });
    const size_t center = mark == marks.end() ? marks[0].step : mark->step;
    const size_t first = center - std::min(center, kAround);
    std::vector<std::string>& row = rows.emplace_back();
    for (size_t step = first; step <= center + kAround && step <= orders[rank].size(); ++step) {
      const bool end = step == orders[rank].size();
      const bool marked = mark != marks.end() && step == mark->step;
      if (end && !marked) break;
      const std::string text = end ? "end" : actionToString(orders[rank][step]);
      width = std::max(width, row.emplace_back(marked ? ">" + text + "<" : " " + text + " ").size());
    }
    firsts.push_back(first);
  }
  const size_t rank_width = std::to_string(end_row - 1).size();
  const size_t step_width = std::to_string(*std::max_element(firsts.begin(), firsts.end())).size();
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    text += fmt::format("\n    rank {:>{}}, step {:>{}}:", first_row + i, rank_width, firsts[i], step_width);
    std::string cells;
    for (const std::string& cell : rows[i]) cells += fmt::format(" {:<{}}", cell, width);
    text += cells.substr(0, cells.find_last_not_of(' ') + 1);
  }
  return text;
}

}  // namespace pipeshard
