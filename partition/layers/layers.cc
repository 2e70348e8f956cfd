#include "partition/layers/layers.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "ir/base/error.h"
#include "ir/graph/weight_copies.h"
#include "ir/operators/operator_facts.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {
namespace {

// total * part / parts without overflow.
int64_t share(int64_t total, int64_t part, int64_t parts) {
  return total / parts * part + total % parts * part / parts;
}

// Where so many layers may end among so many positions.
std::vector<int64_t> placesFor(int layers, int64_t count, const std::vector<bool>& may_end) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < count; ++i) {
    if (may_end.empty() || may_end[i] || i + 1 == count) places.push_back(i);
  }
  return std::ssize(places) < layers ? placesFor(layers, count, {}) : places;
}

}  // namespace

std::vector<int64_t> forwardFlops(const TrainingGraph& training, const std::vector<NodeId>& forward) {
  const Graph& graph = training.graph;
  // Weights, and what is the same numbers in other places or another type.
  std::vector<bool> of_weights(graph.values.size());
  for (const auto& [value, initializer] : graph.initializers) of_weights[value.index()] = true;
  std::vector<int64_t> flops;
  for (const NodeId id : forward) {
    const Node& node = graph.node(id);
    // A weight that is cast or transposed belongs to its reader; work of its own would draw a cut between the
    // two, over which the weight goes in every microbatch.
    const bool computes = operatorFacts(node).work != WorkClass::kMovement && !node.is("Cast");
    const bool is_weight = !computes && !node.inputs.empty() &&
                           std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
                             return !input.valid() || of_weights[input.index()];
                           });
    flops.push_back(is_weight ? 0 : nodeFlops(graph, id));
    if (!is_weight) continue;
    for (const ValueId output : node.outputs) {
      if (output.valid()) of_weights[output.index()] = true;
    }
  }
  return flops;
}

std::vector<int64_t> cutBytes(const TrainingGraph& training, const std::vector<NodeId>& forward) {
  const Graph& graph = training.graph;
  constexpr size_t kNone = ~size_t{0};
  std::vector<size_t> made(graph.values.size(), kNone), last_read(graph.values.size());
  for (size_t i = 0; i < forward.size(); ++i) {
    for (ValueId input : graph.node(forward[i]).inputs) {
      if (input.valid()) last_read[input.index()] = i;
    }
    for (ValueId output : graph.node(forward[i]).outputs) {
      if (output.valid()) made[output.index()] = i;
    }
  }
  std::vector<int64_t> change(forward.size() + 1);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (made[v] == kNone || last_read[v] <= made[v]) continue;
    const int64_t bytes = graph.bytes(ValueId(v));
    change[made[v]] += bytes;
    change[last_read[v]] -= bytes;
  }
  std::vector<int64_t> result(forward.size());
  std::partial_sum(change.begin(), change.end() - 1, result.begin());
  return result;
}

std::vector<size_t> countingPositions(const TrainingGraph& training, const std::vector<NodeId>& forward) {
  const Graph& graph = training.graph;
  constexpr size_t kNone = ~size_t{0};
  std::vector<size_t> first_reader(graph.values.size(), kNone);
  for (size_t i = forward.size(); i-- > 0;) {
    for (const ValueId input : graph.node(forward[i]).inputs) {
      if (input.valid()) first_reader[input.index()] = i;
    }
  }
  std::vector<size_t> positions(forward.size());
  for (size_t i = 0; i < forward.size(); ++i) {
    positions[i] = i;
    if (!isWeightCopy(training, forward[i])) continue;
    const size_t reader = first_reader[graph.node(forward[i]).outputs[0].index()];
    if (reader != kNone) positions[i] = reader;
  }
  return positions;
}

std::vector<bool> possibleEnds(const std::vector<size_t>& counting_positions) {
  std::vector<bool> possible(counting_positions.size(), true);
  for (size_t i = 0; i < counting_positions.size(); ++i)
    std::fill(possible.begin() + i, possible.begin() + counting_positions[i], false);
  return possible;
}

std::vector<bool> endsBesideStatistics(const TrainingGraph& training, const std::vector<NodeId>& forward) {
  std::vector<bool> may_end(forward.size(), true);
  if (training.forward_states.empty()) return may_end;
  const UseDef uses = computeUseDef(training.graph);
  std::vector<int64_t> position(training.graph.nodes.size(), -1);
  for (size_t i = 0; i < forward.size(); ++i) position[forward[i].index()] = static_cast<int64_t>(i);
  for (const ForwardState& state : training.forward_states) {
    const NodeId updater = uses.producer[state.updated.index()];
    const int64_t last = updater.valid() ? position[updater.index()] : -1;
    int64_t first = last;
    for (const NodeId reader : uses.consumers[state.value.index()]) {
      if (position[reader.index()] >= 0) first = std::min(first, position[reader.index()]);
    }
    for (int64_t i = std::max<int64_t>(first, 0); i < last; ++i) may_end[i] = false;
  }
  return may_end;
}

LayerEnds formLayers(const std::vector<int64_t>& flops, const std::vector<int64_t>& cut_bytes, int layers,
                     const std::vector<bool>& may_end) {
  const int64_t count = flops.size();
  PIPESHARD_CHECK(layers >= 1 && layers <= count && cut_bytes.size() == flops.size(), "{} layers of {} nodes",
                  layers, count);
  std::vector<int64_t> cumulative(flops.size());
  std::partial_sum(flops.begin(), flops.end(), cumulative.begin());
  const int64_t total = cumulative.back();
  const int64_t half = total / (2 * static_cast<int64_t>(layers));
  const std::vector<int64_t> places = placesFor(layers, count, may_end);
  int64_t from = 0;  // of places
  LayerEnds last;
  for (int layer = 1; layer < layers; ++layer) {
    const int64_t aim = share(total, layer, layers);
    const int64_t to = std::ssize(places) - 1 - (layers - layer);
    using Rank = std::tuple<bool, int64_t, int64_t>;  // outside of the window, cut bytes, distance
    Rank best_rank;
    int64_t best = -1;
    for (int64_t place = from; place <= to; ++place) {
      const size_t i = places[place];
      const int64_t distance = std::abs(cumulative[i] - aim);
      const bool outside = distance >= half && distance > 0;
      const Rank rank{outside, outside ? 0 : cut_bytes[i], distance};
      if (best < 0 || rank < best_rank) {
        best_rank = rank;
        best = place;
      }
    }
    last.push_back(places[best]);
    from = best + 1;
  }
  last.push_back(count - 1);
  return last;
}

}  // namespace pipeshard
