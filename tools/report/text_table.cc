#include "tools/report/text_table.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace pipeshard {
namespace {

bool looksNumeric(const std::string& cell) {
  return !cell.empty() &&
         (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 || (cell[0] == '-' && cell.size() > 1));
}

}  // namespace

std::string formatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      const bool right = &row != &rows[0] && looksNumeric(row[column]);
      line += right ? fmt::format("{:>{}}", row[column], widths[column])
                    : fmt::format("{:<{}}", row[column], widths[column]);
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace pipeshard
