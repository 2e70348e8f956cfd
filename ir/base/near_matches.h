// Names that somebody may have meant: for messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

// Names among `candidates` that are close to `name` (edit distance, or one holds the other), best first, at
// most three.
std::vector<std::string> nearMatches(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace pipeshard
