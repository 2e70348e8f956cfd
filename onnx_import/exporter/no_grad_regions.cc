#include "onnx_import/exporter/no_grad_regions.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/stopped_gradient.h"
#include "ir/graph/weight_role.h"

namespace pipeshard {
namespace {

class NoGradRegions {
 public:
  explicit NoGradRegions(Graph& graph) : graph_(graph), of_(graph.nodes.size()) {
    std::set<std::string> under_autocast;
    for (size_t n = 0; n < of_.size(); ++n) {
      TracedRegion region = tracedRegion(graph.nodes[n]);
      if (region.numbers_arguments) under_autocast.insert(region.name);
      of_[n] = std::move(region.name);
    }
    for (std::string& region : of_) {
      if (under_autocast.contains(region)) region.clear();
    }
  }

  int run() {
    if (std::all_of(of_.begin(), of_.end(), [](const std::string& region) { return region.empty(); }))
      return 0;
    const std::vector<bool> trained = dependsOnParameters();
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
  // By value: a parameter goes into it, also one that the exporter has folded into a constant.
  std::vector<bool> dependsOnParameters() const {
    std::vector<bool> depends(graph_.values.size(), false);
    for (const auto& [id, initializer] : graph_.initializers) {
      const Value& value = graph_.value(id);
      depends[id.index()] = isMarkedParameter(value) || !foldedFrom(value).empty();
    }
    for (const Node& node : graph_.nodes) {
      const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId id) { return id.valid() && depends[id.index()]; });
      for (ValueId output : node.outputs) {
        if (output.valid()) depends[output.index()] = any;
      }
    }
    return depends;
  }

  // Whether a node of another region, or of none, reads what node n of a region gives.
  bool leaves(ValueId output, size_t n) const {
    bool found = std::find(graph_.outputs.begin(), graph_.outputs.end(), output) != graph_.outputs.end();
    const ExportedCall maker = exportedCall(graph_.nodes[n]);
    for (size_t r = n + 1; r < of_.size(); ++r) {
      const Node& reader = graph_.nodes[r];
      if (of_[r] == of_[n] ||
          std::find(reader.inputs.begin(), reader.inputs.end(), output) == reader.inputs.end())
        continue;
      found = true;
      const std::vector<std::string> arguments = exportedCall(reader).arguments;
      const bool means = arguments.empty() || maker.name.empty() ||
                         std::find(arguments.begin(), arguments.end(), maker.name) != arguments.end();
      if (means) continue;
      fail(ErrorCode::kBadModel,
           "{}: it reads '{}', which the module computes under torch.no_grad(), so that no gradient passes, "
           "but "
           "its own call does not name that: the exporter's optimizer has merged two values that are equal "
           "but "
           "for that. Export the module without it: torch.onnx.export(module, args, \"model.onnx\", "
           "optimize=False, ...)",
           describeNode(reader), graph_.value(output).name);
    }
    return found;
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

  // Inside their region values stay what they are. So do graph outputs: nothing trains on them.
  void redirect(const std::map<ValueId, ValueId>& stopped, std::vector<Node>& nodes) const {
    std::map<ValueId, std::string> regions;
    for (size_t n = 0; n < of_.size(); ++n) {
      for (ValueId output : graph_.nodes[n].outputs) regions[output] = of_[n];
    }
    size_t original = 0;
    for (Node& node : nodes) {
      if (stopsGradient(node) && stopped.contains(node.inputs[0]) &&
          stopped.at(node.inputs[0]) == node.outputs[0])
        continue;
      const std::string& own = of_[original++];
      for (ValueId& input : node.inputs) {
        const auto found = stopped.find(input);
        if (found != stopped.end() && own != regions.at(input)) input = found->second;
      }
    }
  }

  Graph& graph_;
  std::vector<std::string> of_;  // by node: its region under torch.no_grad(), or ""
};

}  // namespace

int stopAfterNoGrad(Graph& graph) { return NoGradRegions(graph).run(); }

}  // namespace pipeshard
