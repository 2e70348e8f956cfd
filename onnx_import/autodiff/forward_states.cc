#include "onnx_import/autodiff/forward_states.h"

#include <algorithm>
#include <set>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

// inputs of a BatchNormalization; the updated ones are outputs 1 and 2
constexpr size_t kStatistics[] = {3, 4};

bool keepsStatistics(const Node& node) {
  return normalizesByBatch(node) && node.opset_version >= 14 && node.inputs.size() == 5;
}

class StateFinder {
 public:
  StateFinder(Graph& graph, size_t first_forward)
      : graph_(graph), builder_(graph), first_forward_(first_forward) {}

  std::vector<ForwardState> run() {
    for (size_t n = first_forward_; n < graph_.nodes.size(); ++n) {
      if (keepsStatistics(graph_.nodes[n])) visit(NodeId(n));
    }
    const UseDef uses = computeUseDef(graph_);
    for (const State& state : states_) requireOneReader(uses, state);
    std::vector<ForwardState> result;
    for (const State& state : states_) result.push_back({state.value, state.updated});
    return result;
  }

 private:
  struct State {
    ValueId value;
    ValueId updated;  // by the readers so far
    NodeId first;     // reads value
  };

  void visit(NodeId id) {
    const bool repeats = repeatsModule(id);
    for (size_t position : kStatistics) {
      const ValueId input = graph_.node(id).inputs[position];
      State* state = find(input, &State::updated);
      State* again = find(input, &State::value);
      if (again != nullptr && repeats) {
        state = again;
        graph_.node(id).inputs[position] = state->updated;
      } else if (state == nullptr && again == nullptr && isState(input)) {
        state = &states_.emplace_back(State{input, {}, id});
      }
      if (state == nullptr) {
        if (overtaken_.contains(input)) refuseOvertaken(id, input);
        continue;
      }
      if (state->updated.valid()) overtaken_.insert(state->updated);
      state->updated = output(id, position - 2, state->value);
    }
  }

  State* find(ValueId id, ValueId State::*member) {
    const auto found =
        std::find_if(states_.begin(), states_.end(), [&](const State& state) { return state.*member == id; });
    return found == states_.end() ? nullptr : &*found;
  }

  bool isState(ValueId id) const {
    return id.valid() && graph_.initializers.contains(id) && !isFolded(graph_.value(id));
  }

  // Is the node another application of a module whose statistics are known: with the same scale, bias, mean
  // and variance?
  bool repeatsModule(NodeId id) {
    const std::vector<ValueId>& inputs = graph_.node(id).inputs;
    const State* mean = find(inputs[kStatistics[0]], &State::value);
    return mean != nullptr &&
           std::equal(inputs.begin() + 1, inputs.end(), graph_.node(mean->first).inputs.begin() + 1);
  }

  ValueId output(NodeId id, size_t position, ValueId state) {
    std::vector<ValueId>& outputs = graph_.node(id).outputs;
    if (outputs.size() <= position) outputs.resize(position + 1);
    if (!outputs[position].valid())
      outputs[position] = builder_.addValue(graph_.value(state).name + ".updated", graph_.dataType(state),
                                            graph_.shape(state));
    return outputs[position];
  }

  void requireOneReader(const UseDef& uses, const State& state) const {
    const std::vector<NodeId>& readers = uses.consumers[state.value.index()];
    for (NodeId reader : readers) {
      if (reader != state.first) refuse(state, reader);
    }
    const std::vector<ValueId>& inputs = graph_.node(state.first).inputs;
    if (std::count(inputs.begin(), inputs.end(), state.value) != 1) refuse(state, state.first);
  }

  [[noreturn]] void refuse(const State& state, NodeId reader) const {
    fail(ErrorCode::kBadModel,
         "'{}' holds running statistics of {}, which change with every microbatch, but {} reads it too; give "
         "each its own initializer (a tool may have merged equal ones: export the model without removing "
         "duplicates)",
         graph_.value(state.value).name, describeNode(graph_.node(state.first)),
         describeNode(graph_.node(reader)));
  }

  [[noreturn]] void refuseOvertaken(NodeId id, ValueId updated) const {
    fail(ErrorCode::kBadModel,
         "{} reads the running statistics '{}', which another batch normalization has updated since: nothing "
         "says which of the two is kept; export the model so that each call follows the one before",
         describeNode(graph_.node(id)), graph_.value(updated).name);
  }

  Graph& graph_;
  GraphBuilder builder_;
  const size_t first_forward_;
  std::vector<State> states_;
  std::set<ValueId> overtaken_;  // updated statistics that a later call has updated again
};

// What nodes between make the value of, in the same type and shape; the value itself where there is none.
ValueId sameNumbers(const Graph& graph, const std::vector<NodeId>& producer, ValueId value) {
  ValueId source = value, same = value;
  while (producer[source.index()].valid()) {
    const Node& maker = graph.node(producer[source.index()]);
    if (!isView(maker) || !maker.inputs.at(0).valid()) break;
    source = maker.inputs[0];
    if (graph.dataType(source) == graph.dataType(value) && graph.shape(source) == graph.shape(value))
      same = source;
  }
  return same;
}

}  // namespace

std::vector<ForwardState> findForwardStates(Graph& graph, size_t first_forward) {
  return StateFinder(graph, first_forward).run();
}

void readStatisticsAtOnce(Graph& graph) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(), keepsStatistics)) return;
  const std::vector<NodeId> producer = computeUseDef(graph).producer;
  for (Node& node : graph.nodes) {
    if (!keepsStatistics(node)) continue;
    for (const size_t position : kStatistics) {
      ValueId& statistic = node.inputs[position];
      if (statistic.valid()) statistic = sameNumbers(graph, producer, statistic);
    }
  }
}

}  // namespace pipeshard
