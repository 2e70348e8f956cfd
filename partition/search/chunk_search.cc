#include "partition/search/chunk_search.h"

#include <algorithm>
#include <optional>
#include <set>

namespace pipeshard {
namespace {

// p submeshes of one shape, one behind the other from device 0 on.
std::vector<std::vector<Submesh>> equalSubmeshes(const ChunkRequest& request) {
  std::vector<std::vector<Submesh>> found;
  for (const Submesh& first : submeshesAt(request.cluster, 0)) {
    std::vector<Submesh> row;
    int next = 0;
    for (int rank = 0; rank < request.ranks && next < request.cluster.deviceCount(); ++rank) {
      const Submesh wanted{next, first.nodes, first.devices_per_node};
      const std::vector<Submesh> here = submeshesAt(request.cluster, next);
      if (std::find(here.begin(), here.end(), wanted) == here.end()) break;
      if (request.allowed && !request.allowed(wanted)) break;
      row.push_back(wanted);
      next += wanted.deviceCount();
    }
    if (std::ssize(row) == request.ranks) found.push_back(std::move(row));
  }
  return found;
}

// The best cut for one shape and one config, by dynamic programming over (chunk, its last layer).
class ChunkCut {
 public:
  ChunkCut(const ChunkRequest& request, const std::vector<Submesh>& submeshes, int config)
      : request_(request), submeshes_(submeshes), config_(config), layers_(request.costs.layers()) {}

  std::optional<std::vector<AssignedStage>> run() {
    const int chunks = request_.rank_of_stage.size();
    if (chunks > layers_) return std::nullopt;
    best_.assign(chunks, std::vector<Cell>(layers_));
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int last = chunk; last <= layers_ - (chunks - chunk); ++last) fill(chunk, last);
    }
    if (!best_.back().back().reached) return std::nullopt;
    std::vector<AssignedStage> stages(chunks);
    int last = layers_ - 1;
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      const int first = best_[chunk][last].first;
      stages[chunk] = {first, last, submeshOf(chunk), *optionOf(chunk, first, last), 0};
      last = first - 1;
    }
    return stages;
  }

 private:
  struct Cell {
    bool reached = false;
    int64_t longest = 0;
    int64_t sum = 0;
    int first = 0;
  };

  const Submesh& submeshOf(int chunk) const {
    return submeshes_[request_.rank_of_stage[StageId(chunk)].index()];
  }
  const StageOption* optionOf(int chunk, int first, int last) const {
    const std::vector<StageOption>& options = request_.costs.options(first, last, submeshOf(chunk));
    const auto found = std::find_if(options.begin(), options.end(),
                                    [&](const StageOption& option) { return option.config == config_; });
    return found == options.end() ? nullptr : &*found;
  }

  void fill(int chunk, int last) {
    Cell& cell = best_[chunk][last];
    for (int first = chunk == 0 ? 0 : chunk; first <= last; ++first) {
      if (chunk == 0 && first > 0) break;
      const Cell before = chunk == 0 ? Cell{true} : best_[chunk - 1][first - 1];
      if (!before.reached) continue;
      const StageOption* option = optionOf(chunk, first, last);
      if (option == nullptr) continue;
      const int64_t longest = std::max(before.longest, option->pass_ns);
      const int64_t sum = before.sum + option->pass_ns;
      if (cell.reached && std::pair(longest, sum) >= std::pair(cell.longest, cell.sum)) continue;
      cell = {true, longest, sum, first};
    }
  }

  const ChunkRequest& request_;
  const std::vector<Submesh>& submeshes_;
  int config_;
  int layers_;
  std::vector<std::vector<Cell>> best_;  // by chunk and last layer
};

}  // namespace

std::vector<std::vector<AssignedStage>> chunkAssignments(const ChunkRequest& request) {
  std::vector<std::vector<AssignedStage>> found;
  for (const std::vector<Submesh>& submeshes : equalSubmeshes(request)) {
    std::set<int> configs;
    for (const StageOption& option : request.costs.options(0, 0, submeshes.front()))
      configs.insert(option.config);
    for (const int config : configs) {
      if (auto stages = ChunkCut(request, submeshes, config).run()) found.push_back(std::move(*stages));
    }
  }
  return found;
}

}  // namespace pipeshard
