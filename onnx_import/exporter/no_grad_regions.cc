#include "onnx_import/exporter/no_grad_regions.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/lost_calls.h"
#include "ir/graph/stopped_gradient.h"
#include "onnx_import/exporter/detached_values.h"
#include "onnx_import/exporter/lost_parameters.h"
#include "onnx_import/prepare/splice.h"

namespace pipeshard {
namespace {

class NoGradRegions {
 public:
  explicit NoGradRegions(Graph& graph)
      : graph_(graph), uses_(computeUseDef(graph)), lost_(lostCalls(graph)), of_(graph.nodes.size()) {
    std::set<std::string> under_autocast;
    for (size_t n = 0; n < of_.size(); ++n) {
      TracedRegion region = tracedRegion(graph.nodes[n]);
      if (region.numbers_arguments) under_autocast.insert(region.name);
      of_[n] = std::move(region.name);
    }
    for (std::string& region : of_) {
      if (under_autocast.contains(region)) region.clear();
    }
    std::vector<std::string> captured;
    for (const Node& node : graph.nodes) collectCaptures(node, captured);
    captured_.insert(captured.begin(), captured.end());
  }

  int run() {
    if (std::all_of(of_.begin(), of_.end(), [](const std::string& region) { return region.empty(); }))
      return 0;
    const std::vector<bool> trained = dependsOnParameters(graph_);
    std::map<ValueId, ValueId> stopped;
    GraphBuilder builder(graph_);
    std::vector<Node> nodes;
    for (size_t n = 0; n < of_.size(); ++n) {
      nodes.push_back(graph_.nodes[n]);
      if (of_[n].empty()) continue;
      for (const ValueId output : graph_.nodes[n].outputs) {
        if (!output.valid() || !trained[output.index()] || !leaves(output, n)) continue;
        nodes.push_back(stopOf(output, n, builder));
        stopped.emplace(output, nodes.back().outputs[0]);
      }
    }
    redirect(stopped, nodes);
    graph_.nodes = std::move(nodes);
    return static_cast<int>(stopped.size());
  }

 private:
  // Whether a graph output, or a node of another region or of none, is what node n of a region gives.
  bool leaves(ValueId output, size_t n) const {
    const auto& outputs = graph_.outputs;
    bool found = captured_.contains(graph_.value(output).name) ||
                 std::find(outputs.begin(), outputs.end(), output) != outputs.end();
    for (const NodeId reader : uses_.consumers[output.index()]) {
      if (of_[reader.index()] == of_[n]) continue;
      found = true;
      requireMeant(reader, graph_.nodes[n], output);
    }
    return found;
  }

  // The reader's own call names the maker's, for each operand, or the file does not say.
  void requireMeant(NodeId reader, const Node& maker, ValueId output) const {
    const Node& node = graph_.node(reader);
    const std::vector<std::string> arguments = exportedCall(node).arguments;
    const std::string name = mentionedAs(maker, graph_.value(output));
    const bool is_merged = std::any_of(lost_.begin(), lost_.end(), [&](const LostCall& lost) {
      return lost.is_merged && lost.reader == reader && lost.value == output;
    });
    const bool is_named = arguments.empty() || name.empty() ||
                          std::find(arguments.begin(), arguments.end(), name) != arguments.end();
    if (is_named && !is_merged) return;
    fail(
        ErrorCode::kBadModel,
        "{}: it reads '{}', which the module computes under torch.no_grad(), so that no gradient passes, but "
        "its own call does not name that: the exporter's optimizer has merged two equal values. Export the "
        "module without it: {}",
        describeNode(node), graph_.value(output).name, exportLine());
  }

  Node stopOf(ValueId output, size_t n, GraphBuilder& builder) {
    const Value like = graph_.value(output);
    const ValueId made = builder.addValue(like.name + "_no_grad", like.data_type, {});
    graph_.value(made).shape = like.shape;
    graph_.value(made).symbols = like.symbols;
    Node stop;
    stop.op_type = "Identity";
    stop.opset_version = graph_.nodes[n].opset_version;
    stop.name = graph_.value(made).name;
    stop.inputs = {output};
    stop.outputs = {made};
    stopGradientAt(stop);
    return stop;
  }

  // Inside their region nodes read what they read. All others get what is stopped, which has the value's
  // name: so do graph outputs, which a loss may be made of, and what branches and loops capture.
  void redirect(const std::map<ValueId, ValueId>& stopped, std::vector<Node>& nodes) {
    const auto stopOf = [&](ValueId id) {
      const auto found = stopped.find(id);
      return found == stopped.end() ? id : found->second;
    };
    size_t original = 0;
    for (Node& node : nodes) {
      if (stopsGradient(node) && stopOf(node.inputs[0]) == node.outputs[0]) continue;
      const std::string& own = of_[original++];
      for (ValueId& input : node.inputs) {
        if (stopped.contains(input) && own != of_[uses_.producer[input.index()].index()])
          input = stopOf(input);
      }
    }
    for (ValueId& output : graph_.outputs) output = stopOf(output);
    for (const auto& [value, stop] : stopped) std::swap(graph_.value(value).name, graph_.value(stop).name);
  }

  Graph& graph_;
  const UseDef uses_;  // of the graph as given
  const std::vector<LostCall> lost_;
  std::set<std::string> captured_;  // what branches and loops read from outside
  std::vector<std::string> of_;     // by node: its region under torch.no_grad(), or ""
};

}  // namespace

int stopAfterNoGrad(Graph& graph) { return NoGradRegions(graph).run(); }

}  // namespace pipeshard
