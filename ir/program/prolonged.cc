#include "ir/program/prolonged.h"

#include <span>
#include <utility>

namespace pipeshard {
namespace {

// Loops of the list, and between them items that stand alone.
std::vector<Loop> partsOf(const NumberedList& list) {
  std::vector<Loop> parts;
  size_t at = 0;
  const auto addUntil = [&](size_t end) {
    for (; at < end; ++at) parts.push_back({at, 1, 1});
  };
  for (const Loop& loop : findLoops(list)) {
    addUntil(loop.first);
    parts.push_back(loop);
    at = loop.end();
  }
  addUntil(list.size());
  return parts;
}

// What follows, after `more` steps, when three equally long rows of numbers grow evenly.
std::optional<std::vector<int64_t>> prolongedNumbers(const std::array<std::span<const int64_t>, 3>& rows,
                                                     int64_t more) {
  std::vector<int64_t> numbers;
  for (size_t k = 0; k < rows[0].size(); ++k) {
    const int64_t step = rows[1][k] - rows[0][k];
    if (rows[2][k] - rows[1][k] != step) return std::nullopt;
    numbers.push_back(rows[0][k] + more * step);
  }
  return numbers;
}

std::optional<ProlongedPart> prolongedPart(const std::array<NumberedList, 3>& lists,
                                           const std::array<Loop, 3>& loops, int64_t more) {
  const size_t growth = loops[1].count - loops[0].count;
  if (loops[1].count < loops[0].count || loops[2].count - loops[1].count != growth) return std::nullopt;
  ProlongedPart part{
      loops[0].first, loops[0].period, loops[0].count + growth * static_cast<size_t>(more), {}, {}};
  for (size_t i = 0; i < part.period; ++i) {
    std::array<std::span<const int64_t>, 3> rows;
    for (size_t l = 0; l < lists.size(); ++l) {
      const size_t item = loops[l].first + i;
      if (lists[l].form(item) != lists[0].form(loops[0].first + i) ||
          stepsOf(lists[l], loops[l], item) != stepsOf(lists[0], loops[0], loops[0].first + i))
        return std::nullopt;
      rows[l] = lists[l].numbers(item);
    }
    std::optional<std::vector<int64_t>> numbers = prolongedNumbers(rows, more);
    if (!numbers) return std::nullopt;
    part.numbers.push_back(*std::move(numbers));
    part.steps.push_back(stepsOf(lists[0], loops[0], loops[0].first + i));
  }
  return part;
}

}  // namespace

std::optional<std::vector<ProlongedPart>> prolonged(const std::array<NumberedList, 3>& lists, int64_t more) {
  std::array<std::vector<Loop>, 3> parts;
  for (size_t l = 0; l < lists.size(); ++l) parts[l] = partsOf(lists[l]);
  if (parts[1].size() != parts[0].size() || parts[2].size() != parts[0].size()) return std::nullopt;
  std::vector<ProlongedPart> made;
  for (size_t p = 0; p < parts[0].size(); ++p) {
    const std::array<Loop, 3> loops = {parts[0][p], parts[1][p], parts[2][p]};
    if (loops[1].period != loops[0].period || loops[2].period != loops[0].period) return std::nullopt;
    std::optional<ProlongedPart> part = prolongedPart(lists, loops, more);
    if (!part) return std::nullopt;
    made.push_back(*std::move(part));
  }
  return made;
}

}  // namespace pipeshard
