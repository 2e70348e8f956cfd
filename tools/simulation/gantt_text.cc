#include "tools/simulation/gantt_text.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pipeshard {
namespace {

struct KindText {
  char kind;
  const char* meaning;
  const char* colour;
};
constexpr std::array<KindText, 7> kKinds = {{{'f', "forward", "34"},
                                             {'b', "backward", "32"},
                                             {'i', "input gradients", "32"},
                                             {'w', "weight gradients", "36"},
                                             {'r', "recomputation", "35"},
                                             {'u', "update", "33"},
                                             {'-', "other work", "2"}}};

// Per column the bar that fills most of it, or none.
std::vector<const GanttBar*> columnsOf(const std::vector<GanttBar>& row, int64_t makespan, int64_t column) {
  std::vector<const GanttBar*> columns;
  size_t first = 0;
  for (int64_t begin = 0; begin < makespan; begin += column) {
    const int64_t end = std::min(begin + column, makespan);
    while (first < row.size() && row[first].end <= begin) ++first;
    const GanttBar* most = nullptr;
    int64_t filled = 0, covered = 0;
    for (size_t b = first; b < row.size() && row[b].start < end; ++b) {
      const int64_t part = std::min(end, row[b].end) - std::max(begin, row[b].start);
      covered += part;
      if (part <= filled) continue;
      filled = part;
      most = &row[b];
    }
    columns.push_back(end - begin - covered > filled ? nullptr : most);
  }
  return columns;
}

std::string paint(const std::string& text, const GanttBar* bar, const GanttStyle& style) {
  if (!style.colours || bar == nullptr) return text;
  const auto kind =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const KindText& k) { return k.kind == bar->kind; });
  return fmt::format("\033[{}{}m{}\033[0m", bar->marked ? "4;" : "",
                     kind == kKinds.end() ? "0" : kind->colour, text);
}

std::string barText(const GanttBar* bar, size_t width) {
  if (bar == nullptr) return std::string(width, '.');
  std::string text(width, bar->kind);
  if (bar->microbatch < 0 || bar->kind == '-') return text;
  const std::string number = std::to_string(bar->microbatch);
  const std::string shown = number.size() <= width ? number : number.substr(number.size() - 1);
  return text.replace(0, shown.size(), shown);
}

}  // namespace

int64_t ganttColumn(const std::vector<std::vector<GanttBar>>& rows, int64_t makespan,
                    const GanttStyle& style) {
  int64_t unit = makespan;
  for (const std::vector<GanttBar>& row : rows) {
    for (const GanttBar& bar : row) unit = std::gcd(unit, std::gcd(bar.start, bar.end));
  }
  const int64_t width = std::max(style.width, 1);
  if (unit > 0 && makespan / unit <= width) return unit;
  return std::max<int64_t>((makespan + width - 1) / width, 1);
}

std::string ganttText(const std::vector<std::vector<GanttBar>>& rows, int64_t makespan,
                      const GanttStyle& style) {
  const int64_t column = ganttColumn(rows, makespan, style);
  const size_t label = fmt::format("d{}", rows.empty() ? 0 : rows.size() - 1).size();
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    text += fmt::format("{:<{}} ", fmt::format("d{}", r), label);
    const std::vector<const GanttBar*> columns = columnsOf(rows[r], makespan, column);
    for (size_t c = 0; c < columns.size();) {
      size_t end = c;
      while (end < columns.size() && columns[end] == columns[c]) ++end;
      text += paint(barText(columns[c], end - c), columns[c], style);
      c = end;
    }
    text += "\n";
  }
  return text;
}

std::string ganttLegend(const std::vector<std::vector<GanttBar>>& rows) {
  std::set<char> used;
  for (const auto& row : rows) {
    for (const GanttBar& bar : row) used.insert(bar.kind);
  }
  std::vector<std::string> parts;
  for (const KindText& kind : kKinds) {
    if (used.count(kind.kind) > 0) parts.push_back(fmt::format("{} {}", kind.kind, kind.meaning));
  }
  return fmt::format("a digit: a pass begins, of the microbatch that ends in it; then {}; . idle",
                     fmt::join(parts, ", "));
}

}  // namespace pipeshard
