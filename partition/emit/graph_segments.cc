#include "partition/emit/graph_segments.h"

#include <algorithm>
#include <set>

#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

bool onlyShows(const Node& node) { return operatorFacts(node).view != View::kNone; }

// By value: the segments that need it.
using Needs = std::vector<std::set<size_t>>;

// By node: the segments that it is in.
std::vector<std::set<size_t>> placeNodes(const Graph& graph, const std::vector<size_t>& segment_of_output,
                                         size_t count) {
  Needs needs(graph.values.size());
  for (size_t o = 0; o < graph.outputs.size(); ++o)
    needs[graph.outputs[o].index()].insert(segment_of_output[o]);
  std::vector<std::set<size_t>> placed(graph.nodes.size());
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    std::set<size_t> segments;
    for (ValueId output : node.outputs) {
      if (output.valid()) segments.insert(needs[output.index()].begin(), needs[output.index()].end());
    }
    if (segments.empty()) segments = {count - 1};
    if (!onlyShows(node)) segments = {*segments.begin()};
    for (ValueId input : node.inputs) {
      if (input.valid()) needs[input.index()].insert(segments.begin(), segments.end());
    }
    placed[n] = std::move(segments);
  }
  return placed;
}

class SegmentCutter {
 public:
  SegmentCutter(const Graph& graph, const std::vector<size_t>& segment_of_output, size_t count)
      : graph_(graph),
        placed_(placeNodes(graph, segment_of_output, count)),
        segments_(count),
        made_(graph.values.size()) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      for (size_t segment : placed_[n]) segments_[segment].nodes.emplace_back(n);
      for (ValueId output : graph.nodes[n].outputs) {
        if (output.valid()) made_[output.index()].insert(placed_[n].begin(), placed_[n].end());
      }
    }
    for (size_t o = 0; o < graph.outputs.size(); ++o) giveAt(graph.outputs[o], segment_of_output[o]);
    for (size_t segment = 0; segment < count; ++segment) findInputs(segment);
  }

  std::vector<GraphSegment> take() && { return std::move(segments_); }

 private:
  static void addOnce(std::vector<ValueId>& values, ValueId id) {
    if (std::find(values.begin(), values.end(), id) == values.end()) values.push_back(id);
  }

  bool isInput(ValueId id) const {
    return std::find(graph_.inputs.begin(), graph_.inputs.end(), id) != graph_.inputs.end();
  }

  // The segment that makes it, up to this one, hands it out.
  void giveAt(ValueId id, size_t segment) {
    const std::set<size_t>& made = made_[id.index()];
    if (made.count(segment) > 0) return addOnce(segments_[segment].outputs, id);
    if (!made.empty()) return addOnce(segments_[*made.begin()].outputs, id);
    addOnce(segments_[segment].outputs, id);  // an input of the graph
    addOnce(segments_[segment].inputs, id);
  }

  void findInputs(size_t segment) {
    for (NodeId node : segments_[segment].nodes) {
      for (ValueId id : graph_.node(node).inputs) {
        if (!id.valid() || made_[id.index()].count(segment) > 0) continue;
        if (made_[id.index()].empty() && !isInput(id)) continue;  // a constant
        addOnce(segments_[segment].inputs, id);
        if (!made_[id.index()].empty()) addOnce(segments_[*made_[id.index()].begin()].outputs, id);
      }
    }
  }

  const Graph& graph_;
  const std::vector<std::set<size_t>> placed_;
  std::vector<GraphSegment> segments_;
  std::vector<std::set<size_t>> made_;  // by value: the segments that make it
};

}  // namespace

std::vector<GraphSegment> cutIntoSegments(const Graph& graph, const std::vector<size_t>& segment_of_output,
                                          size_t count) {
  return SegmentCutter(graph, segment_of_output, count).take();
}

}  // namespace pipeshard
