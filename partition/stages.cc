#include "partition/stages.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "ir/error.h"

namespace pipeshard {
namespace {

constexpr int64_t kImpossible = std::numeric_limits<int64_t>::max();

// least[s][i]: the objective of cutting layers i.. into s stages, or kImpossible.
using Table = std::vector<std::vector<int64_t>>;

Table impossibleTable(size_t stages, size_t layers) { return Table(stages + 1, std::vector<int64_t>(layers + 1, kImpossible)); }

// The least possible largest stage.
int64_t leastMaximum(const std::vector<int64_t>& before, size_t stages) {
  const size_t layers = before.size() - 1;
  Table least = impossibleTable(stages, layers);
  least[0][layers] = 0;
  for (size_t s = 1; s <= stages; ++s) {
    for (size_t i = 0; i < layers; ++i) {
      for (size_t next = i + 1; next <= layers; ++next) {
        if (least[s - 1][next] == kImpossible) continue;
        least[s][i] = std::min(least[s][i], std::max(before[next] - before[i], least[s - 1][next]));
      }
    }
  }
  return least[stages][0];
}

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

std::vector<int> assignStages(const std::vector<int64_t>& cost, const std::vector<int64_t>& cut_bytes, int stages) {
  const size_t layers = cost.size();
  const auto count = static_cast<size_t>(stages);
  PIPESHARD_CHECK(stages >= 1 && count <= layers && cut_bytes.size() == layers, "{} stages of {} layers", stages, layers);
  std::vector<int64_t> before(layers + 1);
  std::partial_sum(cost.begin(), cost.end(), before.begin() + 1);
  const int64_t limit = leastMaximum(before, count);
  Table bytes = impossibleTable(count, layers);
  std::vector<std::vector<size_t>> next_start(count + 1, std::vector<size_t>(layers + 1));
  bytes[0][layers] = 0;
  for (size_t s = 1; s <= count; ++s) {
    for (size_t i = 0; i < layers; ++i) {
      for (size_t next = i + 1; next <= layers && before[next] - before[i] <= limit; ++next) {
        if (bytes[s - 1][next] == kImpossible) continue;
        const int64_t candidate = bytes[s - 1][next] + (next < layers ? cut_bytes[next - 1] : 0);
        if (candidate >= bytes[s][i]) continue;
        bytes[s][i] = candidate;
        next_start[s][i] = next;
      }
    }
  }
  std::vector<int> last;
  size_t start = 0;
  for (size_t s = count; s > 0; --s) {
    start = next_start[s][start];
    last.push_back(static_cast<int>(start) - 1);
  }
  return last;
}

std::vector<std::string> nearMatches(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kMost = 3;
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const std::string& candidate : candidates) {
    const bool holds = !name.empty() && (candidate.find(name) != std::string::npos || name.find(candidate) != std::string_view::npos);
    const size_t distance = editDistance(name, candidate);
    if (holds || distance <= 2 + name.size() / 4) ranked.emplace_back(distance, candidate);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> result;
  for (size_t i = 0; i < std::min(kMost, ranked.size()); ++i) result.push_back(ranked[i].second);
  return result;
}

}  // namespace pipeshard
