#include "partition/layers/layer_clustering.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "ir/base/error.h"
#include "partition/layers/automatic_layers.h"
#include "partition/layers/layer_kinds.h"
#include "partition/layers/layers.h"

namespace pipeshard {
namespace {

__extension__ using Wide = unsigned __int128;

struct FlopsBounds {
  int64_t least = 0;
  int64_t most = INT64_MAX;
};

// The places where layers may end, and FLOPs in front of each.
class Places {
 public:
  explicit Places(const ClusteringProblem& problem) : problem_(problem), before_(problem.flops.size() + 1) {
    for (size_t i = 0; i < problem.flops.size(); ++i) before_[i + 1] = before_[i] + problem.flops[i];
  }

  int64_t total() const { return before_.back(); }
  int64_t flops(int64_t first, int64_t last) const { return before_[last + 1] - before_[first]; }
  int64_t cutBytes(int64_t position) const { return problem_.cut_bytes[position]; }

  // Where at most so many bytes cross, and the end.
  std::vector<int64_t> upTo(int64_t bytes) const {
    std::vector<int64_t> places;
    const auto count = std::ssize(problem_.flops);
    for (int64_t i = 0; i + 1 < count; ++i) {
      if ((problem_.may_end.empty() || problem_.may_end[i]) && cutBytes(i) <= bytes) places.push_back(i);
    }
    places.push_back(count - 1);
    return places;
  }

  // Whether layers within the bounds can end at these places. By number of layers, by place: whether so many
  // can end there.
  bool feasible(const std::vector<int64_t>& places, const FlopsBounds& bounds) const {
    const size_t count = places.size();
    std::vector<bool> reached(count + 1);  // place p is number p + 1; number 0 is the beginning
    reached[0] = true;
    std::vector<int64_t> reached_before(count + 2);
    for (int layer = 0; layer < problem_.layers; ++layer) {
      for (size_t p = 0; p <= count; ++p) reached_before[p + 1] = reached_before[p] + (reached[p] ? 1 : 0);
      reached.assign(count + 1, false);
      // layers that begin behind [low, high) and end at place p are within the bounds
      size_t low = 0, high = 0;
      for (size_t p = 0; p < count; ++p) {
        const auto flopsFrom = [&](size_t begin) {
          return flops(begin == 0 ? 0 : places[begin - 1] + 1, places[p]);
        };
        while (low <= p && flopsFrom(low) > bounds.most) ++low;
        while (high <= p && flopsFrom(high) >= bounds.least) ++high;
        reached[p + 1] = low < high && reached_before[high] > reached_before[low];
      }
    }
    return reached[count];
  }

 private:
  const ClusteringProblem& problem_;
  std::vector<int64_t> before_;
};

// (1 - tolerance) of the average, rounded up, to (1 + tolerance), rounded down.
FlopsBounds boundsOf(const ClusteringProblem& problem, int64_t total) {
  constexpr int64_t kMillion = 1'000'000;
  const int64_t tolerance = std::llround(problem.tolerance * kMillion);
  const Wide average_parts = static_cast<Wide>(kMillion) * static_cast<Wide>(problem.layers);
  const Wide most = static_cast<Wide>(total) * static_cast<Wide>(kMillion + tolerance) / average_parts;
  const Wide least =
      (static_cast<Wide>(total) * static_cast<Wide>(std::max<int64_t>(0, kMillion - tolerance)) +
       average_parts - 1) /
      average_parts;
  return {static_cast<int64_t>(least),
          most > static_cast<Wide>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(most)};
}

// The least number of bytes so that layers exist whose cuts cost no more.
int64_t leastLargestCut(const Places& places, const FlopsBounds& bounds) {
  std::vector<int64_t> bytes = {0};
  for (int64_t place : places.upTo(INT64_MAX)) bytes.push_back(places.cutBytes(place));
  std::sort(bytes.begin(), bytes.end());
  return *std::partition_point(bytes.begin(), bytes.end() - 1,
                               [&](int64_t most) { return !places.feasible(places.upTo(most), bounds); });
}

// What is minimised once the largest cut is: its sum, then FLOPs' squares, whose sum orders partitions as
// their variance does.
struct Score {
  int64_t bytes = 0;
  Wide squares = 0;
  friend bool operator<(const Score& a, const Score& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.squares < b.squares;
  }
};

// best[p]: of the nodes behind place p-1, in so many layers. From the back, so that the first of equal
// choices gives the earliest cuts.
LayerEnds bestEnds(const Places& places, const std::vector<int64_t>& ends, int layers,
                   const FlopsBounds& bounds) {
  const size_t count = ends.size();
  const auto square = [](int64_t flops) { return static_cast<Wide>(flops) * static_cast<Wide>(flops); };
  const auto firstOf = [&](size_t p) { return p == 0 ? 0 : ends[p - 1] + 1; };
  std::vector<std::optional<Score>> best(count);
  for (size_t p = 0; p < count; ++p) {
    const int64_t flops = places.flops(firstOf(p), ends.back());
    if (flops >= bounds.least && flops <= bounds.most) best[p] = Score{0, square(flops)};
  }
  std::vector<std::vector<size_t>> choice(layers, std::vector<size_t>(count));
  for (size_t left = 2; left <= static_cast<size_t>(layers); ++left) {
    std::vector<std::optional<Score>> with(count);
    const size_t earliest = static_cast<size_t>(layers) - left;
    const size_t latest = left == static_cast<size_t>(layers) ? 0 : count - left;
    for (size_t p = earliest; p <= latest; ++p) {
      for (size_t end = p; end + left <= count; ++end) {
        const int64_t flops = places.flops(firstOf(p), ends[end]);
        if (flops > bounds.most) break;
        if (flops < bounds.least || !best[end + 1]) continue;
        const Score score{best[end + 1]->bytes + places.cutBytes(ends[end]),
                          best[end + 1]->squares + square(flops)};
        if (with[p] && !(score < *with[p])) continue;
        with[p] = score;
        choice[left - 1][p] = end;
      }
    }
    best = std::move(with);
  }
  LayerEnds result;
  size_t next = 0;
  for (size_t left = layers; left > 1; --left) {
    const size_t end = choice[left - 1][next];
    result.push_back(ends[end]);
    next = end + 1;
  }
  result.push_back(ends.back());
  return result;
}

LayerEnds clusterWithin(const Places& places, int layers, const FlopsBounds& bounds) {
  if (!places.feasible(places.upTo(INT64_MAX), bounds)) return {};
  return bestEnds(places, places.upTo(leastLargestCut(places, bounds)), layers, bounds);
}

void checkProblem(const ClusteringProblem& problem) {
  const size_t count = problem.flops.size();
  PIPESHARD_CHECK(count > 0 && problem.layers > 0 && problem.cut_bytes.size() == count &&
                      (problem.may_end.empty() || problem.may_end.size() == count),
                  "{} layers of {} nodes", problem.layers, count);
}

// The first of [low, high) for which `holds` does, as it does for all that follow; `high` for none.
template <typename Predicate>
int64_t firstThat(int64_t low, int64_t high, Predicate holds) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The bounds, or those next to them that layers can keep: first a higher upper one, where an operator is
// larger, with room for what stands beside it; then the highest lower one. (Without that room what follows
// the largest operator, a loss, would be a layer of next to nothing; without a lower bound so would many
// others.)
FlopsBounds bestBounds(const ClusteringProblem& problem, const Places& places) {
  const std::vector<int64_t> all = places.upTo(INT64_MAX);
  FlopsBounds bounds = boundsOf(problem, places.total());
  if (places.feasible(all, bounds)) return bounds;
  const int64_t most = firstThat(places.total() / problem.layers, places.total(), [&](int64_t flops) {
    return places.feasible(all, {0, flops});
  });
  const int64_t room = (bounds.most - bounds.least) / 2;
  bounds.most = std::max(bounds.most, most + std::min(room, INT64_MAX - most));
  bounds.least = firstThat(0, bounds.least, [&](int64_t flops) {
    return !places.feasible(all, {flops + 1, bounds.most});
  });
  return bounds;
}

}  // namespace

LayerEnds clusterLayers(const ClusteringProblem& problem) {
  checkProblem(problem);
  const Places places(problem);
  return clusterWithin(places, problem.layers, boundsOf(problem, places.total()));
}

LayerEnds clusterAsEvenlyAsPossible(const ClusteringProblem& problem) {
  checkProblem(problem);
  const Places places(problem);
  if (std::ssize(places.upTo(INT64_MAX)) < problem.layers) return {};
  return clusterWithin(places, problem.layers, bestBounds(problem, places));
}

namespace {

// By position: not inside a block.
std::vector<bool> bordersOf(const LayerMaterial& material, const std::vector<RepeatedBlocks>& repeats) {
  std::vector<bool> borders(material.keys.size(), true);
  for (const RepeatedBlocks& run : repeats) {
    for (int64_t i = 0; i < run.blocks * run.length; ++i) borders[run.first + i] = (i + 1) % run.length == 0;
  }
  return borders;
}

// Whole blocks, if that lets the layers be as even as they must be.
LayerEnds endsOfGivenNumber(const LayerMaterial& material, const std::vector<bool>& borders,
                            const ClusteringOptions& options) {
  const ClusteringProblem anywhere{material.flops, material.cut_bytes, {}, options.layers, options.tolerance};
  ClusteringProblem whole = anywhere;
  whole.may_end = borders;
  const Places places(anywhere);
  const FlopsBounds bounds = bestBounds(anywhere, places);
  LayerEnds ends = clusterWithin(Places(whole), options.layers, bounds);
  return ends.empty() ? clusterWithin(places, options.layers, bounds) : ends;
}

// Without the ends where no stage may end.
LayerEnds keepingTogether(const TrainingGraph& training, const std::vector<NodeId>& order,
                          const LayerEnds& ends) {
  const std::vector<bool> beside_copies = possibleEnds(countingPositions(training, order));
  const std::vector<bool> beside_statistics = endsBesideStatistics(training, order);
  LayerEnds kept;
  for (const int64_t end : ends) {
    if (beside_copies[end] && beside_statistics[end]) kept.push_back(end);
  }
  return kept;
}

}  // namespace

Clustering clusterTraining(const TrainingGraph& training, const ClusteringOptions& options) {
  const std::vector<NodeId> order = forwardNodes(training);
  if (order.empty())
    fail(ErrorCode::kConfiguration, "the model has no forward nodes; there is nothing to partition");
  if (options.layers > std::ssize(order)) {
    fail(ErrorCode::kConfiguration,
         "--layers {}: found {} forward nodes in the model; expected at most as many layers", options.layers,
         order.size());
  }
  const LayerMaterial material = layerMaterial(training, order);
  const std::vector<RepeatedBlocks> repeats = allRepeats(material);
  const std::vector<bool> borders = bordersOf(material, repeats);
  Clustering result;
  result.blocks = repeatsWithin(material, 0, material.count());
  result.ends = options.layers > 0 ? endsOfGivenNumber(material, borders, options)
                                   : automaticEnds(material, repeats, options.most_layers, options.tolerance);
  result.ends = keepingTogether(training, order, result.ends);
  result.kinds = layerKinds(training, order, result.ends);
  const auto inside =
      std::count_if(result.ends.begin(), result.ends.end(), [&](int64_t end) { return !borders[end]; });
  if (options.layers > 0 && inside > 0) {
    result.notes.push_back(
        fmt::format("{} of {} layers end inside of repeated blocks (of {} operators, {} times)", inside,
                    result.ends.size(), result.blocks.length, result.blocks.blocks));
  }
  return result;
}

}  // namespace pipeshard
