#include "tests/partition/training_builder.h"

#include <algorithm>

namespace pipeshard {
namespace {

const Shape kShape = {2, 3};

}  // namespace

TrainingBuilder::TrainingBuilder(int64_t microbatches) {
  training_.microbatches = microbatches;
  training_.graph.opset_imports = {{"", 20}, {"test", 1}};
  training_.graph.directory = "/models";
}

ValueId TrainingBuilder::node(Phase phase, const std::string& op_type, const std::vector<ValueId>& inputs, const std::string& output,
                              Shape shape, NodeId forward) {
  GraphBuilder builder(training_.graph);
  const ValueId result = builder.addValue(output, DataType::kFloat32, std::move(shape));
  const NodeId id = builder.addNode("test", op_type, inputs, {result});
  training_.graph.node(id).name = "node_" + training_.graph.value(result).name;
  training_.node_phase.push_back(phase);
  training_.forward_node.push_back(forward);
  return result;
}

ValueId TrainingBuilder::input(const std::string& name, int axis) {
  const ValueId id = value(name, kShape);
  training_.graph.inputs.push_back(id);
  training_.inputs.push_back({id, axis});
  return id;
}

ValueId TrainingBuilder::weight(const std::string& name) {
  const ValueId id = value(name, kShape);
  training_.graph.initializers[id] = WeightReference{"weights.bin", 64 * id.index(), 24};
  return id;
}

ValueId TrainingBuilder::constant(const std::string& name) {
  const ValueId id = value(name, kShape);
  training_.graph.initializers[id] = makeConstant<float>(kShape, {1, 2, 3, 4, 5, 6});
  return id;
}

ValueId TrainingBuilder::parameter(const std::string& name) {
  const ValueId id = weight(name);
  training_.parameters.push_back({id, {}, {}, {}, {}});
  return id;
}

ValueId TrainingBuilder::smallParameter(const std::string& name) {
  const ValueId id = constant(name);
  training_.parameters.push_back({id, {}, {}, {}, {}});
  return id;
}

ValueId TrainingBuilder::total(const std::string& name, ValueId input) {
  const ValueId part = node(Phase::kPrologue, "Count", {input}, name + "_part", {}, {});
  const ValueId id = value(name, {});
  training_.graph.inputs.push_back(id);
  training_.totals.push_back({part, id});
  return id;
}

ValueId TrainingBuilder::op(const std::string& name, const std::vector<ValueId>& inputs, int64_t rows) {
  const ValueId output = node(Phase::kForward, "Op", inputs, name, {rows, 3}, {});
  forward_.push_back({NodeId(training_.graph.nodes.size() - 1), false});
  return output;
}

ValueId TrainingBuilder::bias(const std::string& name, ValueId input, ValueId parameter) {
  const ValueId output = node(Phase::kForward, "Bias", {input, parameter}, name, kShape, {});
  forward_.push_back({NodeId(training_.graph.nodes.size() - 1), true});
  return output;
}

ValueId TrainingBuilder::stateful(const std::string& name, const std::vector<ValueId>& inputs) {
  const ValueId output = op(name, inputs);
  const ValueId state = weight(name + "_state");
  const ValueId updated = value(name + "_state_new", kShape);
  Node& forward = training_.graph.nodes.back();
  forward.inputs.push_back(state);
  forward.outputs.push_back(updated);
  training_.forward_states.push_back({state, updated});
  return output;
}

bool TrainingBuilder::isState(ValueId id) const {
  return std::any_of(training_.forward_states.begin(), training_.forward_states.end(),
                     [&](const ForwardState& s) { return s.value == id; });
}

ValueId TrainingBuilder::gradientOf(ValueId of, NodeId producer) {
  const std::vector<ValueId>& parts = gradients_[of];
  if (parts.size() <= 1) return parts.empty() ? ValueId() : parts[0];
  const std::string name = "d_" + training_.graph.value(of).name;
  return node(Phase::kBackwardInput, "Sum", parts, name, training_.graph.shape(of), producer);
}

void TrainingBuilder::differentiate(ValueId seed) {
  gradients_[training_.loss] = {seed};
  for (size_t i = forward_.size(); i-- > 0;) {
    const NodeId id = forward_[i].node;
    const Node forward = training_.graph.node(id);
    const ValueId output = forward.outputs[0];
    const ValueId gradient = gradientOf(output, id);
    if (!gradient.valid()) continue;
    for (size_t position = 0; position < forward.inputs.size(); ++position) {
      const ValueId in = forward.inputs[position];
      const auto parameter =
          std::find_if(training_.parameters.begin(), training_.parameters.end(), [&](const Parameter& p) { return p.value == in; });
      const bool is_parameter = parameter != training_.parameters.end();
      const bool is_produced = std::any_of(forward_.begin(), forward_.begin() + static_cast<std::ptrdiff_t>(i),
                                           [&](const Forward& f) { return training_.graph.node(f.node).outputs[0] == in; });
      if (!is_parameter && !is_produced) continue;
      ValueId part = gradient;
      if (!forward_[i].is_bias) {
        std::vector<ValueId> read = forward.inputs;
        std::erase_if(read, [&](ValueId id) { return isState(id); });
        read.push_back(output);
        read.push_back(gradient);
        part = node(is_parameter ? Phase::kBackwardWeight : Phase::kBackwardInput, "Grad" + std::to_string(position), read,
                    "d_" + training_.graph.value(in).name + "_by_" + training_.graph.value(output).name, training_.graph.shape(in), id);
      }
      if (is_parameter) parameter->gradient_parts.push_back(part);
      if (is_produced) gradients_[in].push_back(part);
    }
  }
}

void TrainingBuilder::addUpdates(int states) {
  const ValueId step = GraphBuilder(training_.graph).addValue("step", DataType::kInt64, {});
  training_.graph.inputs.push_back(step);
  training_.step = step;
  const ValueId rate = node(Phase::kUpdate, "Rate", {step}, "rate", {}, {});
  for (Parameter& parameter : training_.parameters) {
    if (parameter.gradient_parts.empty()) continue;
    const std::string name = training_.graph.value(parameter.value).name;
    parameter.gradient = value("grad_" + name, kShape);
    training_.graph.inputs.push_back(parameter.gradient);
    std::vector<ValueId> read = {parameter.value, parameter.gradient, rate};
    for (int s = 0; s < states; ++s) {
      const std::string state_name = "moment" + std::to_string(s);
      const ValueId state = value(name + "_" + state_name, kShape);
      training_.graph.inputs.push_back(state);
      const ValueId updated = node(Phase::kUpdate, "Moment", {state, parameter.gradient}, name + "_" + state_name + "_new", kShape, {});
      parameter.states.push_back({state_name, state, updated});
      read.push_back(updated);
    }
    parameter.updated = node(Phase::kUpdate, "Step", read, name + "_new", kShape, {});
  }
}

TrainingGraph TrainingBuilder::finish(const std::vector<ValueId>& loss_inputs, int states) {
  training_.loss = node(Phase::kForward, "Loss", loss_inputs, "loss", {}, {});
  forward_.push_back({NodeId(training_.graph.nodes.size() - 1), false});
  const ValueId seed = value("seed", {});
  training_.graph.initializers[seed] = makeConstant<float>({}, {1});
  differentiate(seed);
  addUpdates(states);
  training_.graph.outputs = {training_.loss};
  verifyTrainingGraph(training_);
  return training_;
}

TrainingGraph chainTraining(int length, int64_t microbatches) {
  TrainingBuilder builder(microbatches);
  ValueId last = builder.input("x");
  for (int i = 0; i < length; ++i) {
    const std::string number = std::to_string(i);
    last = builder.op("h" + number, {last, builder.parameter("w" + number)});
  }
  return builder.finish({last});
}

}  // namespace pipeshard
