// Tables of text, for terminals.
#pragma once

#include <string>
#include <vector>

namespace pipeshard {

// Columns padded to their widest cell; the first row is the heading. Numbers are right-aligned.
std::string formatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace pipeshard
