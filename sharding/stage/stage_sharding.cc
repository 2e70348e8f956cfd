#include "sharding/stage/stage_sharding.h"

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {

namespace {

class Check {
 public:
  Check(const TrainingGraph& training, const std::vector<NodeId>& nodes, const StageSharding& sharding)
      : training_(training),
        graph_(training.graph),
        nodes_(nodes),
        sharding_(sharding),
        held_(graph_.values.size(), false) {}

  void run() {
    if (sharding_.strategies.size() != graph_.nodes.size() || sharding_.kept.size() != graph_.values.size()) {
      fail(ErrorCode::kInternal, "{} strategies and {} specs for {} nodes and {} values",
           sharding_.strategies.size(), sharding_.kept.size(), graph_.nodes.size(), graph_.values.size());
    }
    for (NodeId id : nodes_) checkNode(graph_.node(id));
    for (size_t v = 0; v < held_.size(); ++v) {
      if (held_[v]) checkSpec(ValueId(v));
    }
    for (ValueId input : graph_.inputs) notPartial(input, "an input");
    for (const Parameter& parameter : training_.parameters) checkParameter(parameter);
    for (const ForwardState& state : training_.forward_states) {
      notPartial(state.value, "a forward state");
      alike(state.value, state.updated, "a forward state and its next value");
    }
    for (const PrologueTotal& total : training_.totals) {
      whole(total.part, "a summand of a total");
      whole(total.total, "a total");
    }
    if (training_.step.valid()) whole(training_.step, "the step");
    if (training_.gradient_scale.valid()) whole(training_.gradient_scale, "what gradients are scaled with");
    if (training_.loss_scale.valid()) whole(training_.loss_scale, "what the loss is scaled with");
    checkPrologue();
  }

 private:
  const ShardingSpec& kept(ValueId value) const { return sharding_.kept[value.index()]; }
  bool holds(ValueId value) const { return value.valid() && held_[value.index()]; }
  std::string describe(ValueId value) const {
    return fmt::format("'{}' is kept as {} on mesh {}", graph_.value(value).name, printSpec(kept(value)),
                       printMesh(sharding_.mesh));
  }

  void checkNode(const Node& node) {
    const Strategy& strategy = sharding_.strategies[&node - graph_.nodes.data()];
    const auto expected = makeStrategy(graph_, node, sharding_.mesh, strategy.uses);
    if (!expected || expected->inputs != strategy.inputs || expected->outputs != strategy.outputs) {
      fail(ErrorCode::kInternal, "{} has no such strategy on mesh {}", describeNode(node),
           printMesh(sharding_.mesh));
    }
    for (const std::vector<ValueId>* values : {&node.inputs, &node.outputs}) {
      for (ValueId value : *values) {
        // each use of a constant takes its part
        if (value.valid() && graph_.constant(value) == nullptr) held_[value.index()] = true;
      }
    }
  }

  void checkSpec(ValueId value) const {
    const std::string fault = specFault(kept(value), graph_.shape(value), sharding_.mesh);
    if (!fault.empty()) fail(ErrorCode::kInternal, "{}, which it cannot: {}", describe(value), fault);
  }
  void notPartial(ValueId value, const char* role) const {
    if (holds(value) && !kept(value).partial.empty())
      fail(ErrorCode::kInternal, "{}: {} is no partial sum", describe(value), role);
  }
  void whole(ValueId value, const char* role) const {
    if (holds(value) && !kept(value).isReplicated())
      fail(ErrorCode::kInternal, "{}: {} is replicated", describe(value), role);
  }
  void alike(ValueId a, ValueId b, const char* roles) const {
    if (!holds(a) || !holds(b) || kept(a) == kept(b)) return;
    fail(ErrorCode::kInternal, "{}, but '{}' as {}: {} are kept alike", describe(a), graph_.value(b).name,
         printSpec(kept(b)), roles);
  }

  void checkParameter(const Parameter& parameter) const {
    notPartial(parameter.value, "a parameter");
    notPartial(parameter.gradient, "a gradient that the update reads");
    notPartial(parameter.updated, "an updated parameter");
    alike(parameter.value, parameter.updated, "a parameter and its next value");
    for (const OptimizerState& state : parameter.states) {
      notPartial(state.value, "an optimizer's state");
      alike(state.value, state.updated, "a state and its next value");
    }
    ValueId first;
    for (ValueId part : parameter.gradient_parts) {
      if (!holds(part)) continue;
      if (first.valid()) alike(first, part, "the parts of a gradient");
      first = part;
    }
  }

  void checkPrologue() const {
    for (NodeId id : nodes_) {
      if (training_.node_phase[id.index()] != Phase::kPrologue) continue;
      for (ValueId output : graph_.node(id).outputs) whole(output, "a value of the prologue");
    }
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  const std::vector<NodeId>& nodes_;
  const StageSharding& sharding_;
  std::vector<bool> held_;  // by value index: the stage's nodes read or give it
};

}  // namespace

void verifyStageSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                         const StageSharding& sharding) {
  Check(training, nodes, sharding).run();
}

}  // namespace pipeshard
