// Names that somebody may have meant: for messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

// Names among `candidates` that are close to `name` (edit distance, or one holds the other), best first, at
// most three.
std::vector<std::string> nearMatches(std::string_view name, const std::vector<std::string>& candidates);

// Ends a message that lists which arrays a file holds, where the array of an input is not among them:
//   " ('T' differs in case only: save it as 't', as the model calls the input)"
// "" where none differs in case only.
std::string hintOfCase(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace pipeshard
