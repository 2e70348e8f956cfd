#include "ir/base/near_matches.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace pipeshard {

namespace {

size_t editDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> nearMatches(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kMost = 3;
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const std::string& candidate : candidates) {
    const bool holds = !name.empty() && (candidate.find(name) != std::string::npos ||
                                         name.find(candidate) != std::string_view::npos);
    const size_t distance = editDistance(name, candidate);
    if (holds || distance <= 2 + name.size() / 4) ranked.emplace_back(distance, candidate);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> result;
  for (size_t i = 0; i < std::min(kMost, ranked.size()); ++i) result.push_back(ranked[i].second);
  return result;
}

std::string hintOfCase(std::string_view name, const std::vector<std::string>& candidates) {
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  const auto found = std::ranges::find_if(candidates, [&](const std::string& candidate) {
    return std::ranges::equal(name, candidate, {}, small, small);
  });
  if (found == candidates.end()) return "";
  return fmt::format(" ('{}' differs in case only: save it as '{}', as the model calls the input)", *found,
                     name);
}

}  // namespace pipeshard
