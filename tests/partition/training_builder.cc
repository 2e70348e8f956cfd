#include "tests/partition/training_builder.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "ir/plan/plan_json.h"
#include "partition/stages/partition_training.h"

namespace pipeshard {
namespace {

const Shape kShape = {2, 3};

}  // namespace

TrainingBuilder::TrainingBuilder(int64_t microbatches, int64_t rows) : rows_(rows) {
  training_.microbatches = microbatches;
  training_.graph.opset_imports = {{"", 20}, {"test", 1}};
  training_.graph.directory = "/models";
}

ValueId TrainingBuilder::node(Phase phase, const std::string& op_type, const std::vector<ValueId>& inputs,
                              const std::string& output, Shape shape, NodeId forward) {
  GraphBuilder builder(training_.graph);
  const ValueId result = builder.addValue(output, DataType::kFloat32, std::move(shape));
  const NodeId id = builder.addNode("test", op_type, inputs, {result});
  training_.graph.node(id).name = "node_" + training_.graph.value(result).name;
  training_.node_phase.push_back(phase);
  training_.forward_node.push_back(forward);
  return result;
}

TrainingBuilder::Kind TrainingBuilder::kind(ValueId id) const {
  const auto found = kinds_.find(id);
  return found == kinds_.end() ? Kind::kInvariant : found->second;
}

bool TrainingBuilder::any(const std::vector<ValueId>& values, Kind wanted) const {
  return std::any_of(values.begin(), values.end(),
                     [&](ValueId id) { return id.valid() && kind(id) == wanted; });
}

Shape TrainingBuilder::shapeOf(const std::string& name, Kind kind) const {
  if (rows_ == 0) return kShape;
  if (kind != Kind::kSplit) return {kOtherSize};
  return name.back() % 3 == 0 ? Shape{kOtherSize, 2 * rows_} : Shape{rows_, kOtherSize};
}

ValueId TrainingBuilder::shapeConstant(const Shape& shape) {
  return GraphBuilder(training_.graph)
      .addConstant("shape", makeConstant<int64_t>({std::ssize(shape)}, shape));
}

ValueId TrainingBuilder::rowsConstant() {
  return GraphBuilder(training_.graph)
      .addConstant("rows", makeConstant<float>({}, {static_cast<float>(rows_)}));
}

// A constant that says how many rows there are.
bool TrainingBuilder::isSize(ValueId id) const {
  const Constant* constant = training_.graph.constant(id);
  return constant != nullptr && (constant->data_type == DataType::kInt64 || constant->shape.empty());
}

ValueId TrainingBuilder::input(const std::string& name, int axis) {
  Shape shape = kShape;
  if (rows_ > 0)
    shape = axis < 0    ? Shape{kOtherSize}
            : axis == 0 ? Shape{rows_, kOtherSize}
                        : Shape{kOtherSize, 2 * rows_};
  const ValueId id = value(name, shape);
  if (axis >= 0) kinds_[id] = Kind::kSplit;
  training_.graph.inputs.push_back(id);
  training_.inputs.push_back({id, axis});
  return id;
}

ValueId TrainingBuilder::weight(const std::string& name) {
  const Shape shape = shapeOf(name, Kind::kInvariant);
  const ValueId id = value(name, shape);
  training_.graph.initializers[id] =
      WeightReference{"weights.bin", 64 * id.index(), static_cast<uint64_t>(elementCount(shape)) * 4};
  return id;
}

ValueId TrainingBuilder::constant(const std::string& name) {
  const Shape shape = shapeOf(name, Kind::kInvariant);
  const ValueId id = value(name, shape);
  std::vector<float> elements(elementCount(shape));
  std::iota(elements.begin(), elements.end(), 1.0F);
  training_.graph.initializers[id] = makeConstant<float>(shape, elements);
  return id;
}

ValueId TrainingBuilder::growingConstant(const std::string& name) {
  const Shape shape = shapeOf(name, Kind::kSplit);
  const ValueId id = value(name, shape);
  training_.graph.initializers[id] =
      makeConstant<float>(shape, std::vector<float>(elementCount(shape), 0.5F));
  kinds_[id] = Kind::kSplit;
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

ValueId TrainingBuilder::forward(const std::string& op_type, const std::vector<ValueId>& inputs,
                                 const std::string& name, Kind kind) {
  const ValueId output = node(Phase::kForward, op_type, inputs, name, shapeOf(name, kind), {});
  forward_.push_back({NodeId(training_.graph.nodes.size() - 1), op_type == "Bias"});
  kinds_[output] = kind;
  return output;
}

ValueId TrainingBuilder::op(const std::string& name, const std::vector<ValueId>& inputs, int64_t rows) {
  const bool split = any(inputs, Kind::kSplit);
  const ValueId output = forward("Op", inputs, name,
                                 split                     ? Kind::kSplit
                                 : any(inputs, Kind::kSum) ? Kind::kSum
                                                           : Kind::kInvariant);
  if (rows_ == 0) training_.graph.value(output).shape = {rows, 3};
  return output;
}

ValueId TrainingBuilder::bias(const std::string& name, ValueId input, ValueId parameter) {
  return forward("Bias", {input, parameter}, name, kind(input));
}

ValueId TrainingBuilder::reduce(const std::string& name, const std::vector<ValueId>& inputs) {
  return forward("Reduce", inputs, name, Kind::kSum);
}

ValueId TrainingBuilder::reshape(const std::string& name, const std::vector<ValueId>& inputs) {
  const ValueId output = op(name, inputs);
  training_.graph.nodes.back().inputs.push_back(shapeConstant(training_.graph.shape(output)));
  return output;
}

ValueId TrainingBuilder::expand(const std::string& name, const std::vector<ValueId>& inputs) {
  const ValueId output = forward("Expand", inputs, name, Kind::kSplit);
  training_.graph.nodes.back().inputs.push_back(shapeConstant(training_.graph.shape(output)));
  return output;
}

ValueId TrainingBuilder::share(const std::string& name, const std::vector<ValueId>& inputs) {
  const ValueId output = forward("Share", inputs, name, Kind::kSum);
  training_.graph.nodes.back().inputs.push_back(rowsConstant());
  return output;
}

ValueId TrainingBuilder::stateful(const std::string& name, const std::vector<ValueId>& inputs) {
  const ValueId output = op(name, inputs);
  const ValueId state = weight(name + "_state");
  const ValueId updated = value(name + "_state_new", training_.graph.shape(state));
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
  const ValueId sum = node(Phase::kBackwardInput, "Sum", parts, name, training_.graph.shape(of), producer);
  kinds_[sum] = kind(parts[0]);
  return sum;
}

std::vector<ValueId> TrainingBuilder::gradientReads(const Node& forward, ValueId in, ValueId gradient) {
  std::vector<ValueId> read = forward.inputs;
  std::erase_if(read, [&](ValueId id) { return isState(id); });
  read.push_back(forward.outputs[0]);
  read.push_back(gradient);
  if (rows_ == 0) return read;
  const bool shaped = training_.graph.constant(forward.inputs.back()) != nullptr &&
                      training_.graph.dataType(forward.inputs.back()) == DataType::kInt64;
  std::erase_if(read, [&](ValueId id) { return isSize(id) && id != gradient; });
  const bool is_share = forward.op_type == "Share";
  if (is_share || kind(in) == Kind::kSum || any(read, Kind::kSplit))
    std::erase_if(read, [&](ValueId id) { return kind(id) == Kind::kSum; });
  if (is_share) read.push_back(rowsConstant());
  if (shaped) read.push_back(shapeConstant(training_.graph.shape(in)));
  return read;
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
      const auto parameter = std::find_if(training_.parameters.begin(), training_.parameters.end(),
                                          [&](const Parameter& p) { return p.value == in; });
      const bool is_parameter = parameter != training_.parameters.end();
      const bool is_produced = std::any_of(forward_.begin(), forward_.begin() + i, [&](const Forward& f) {
        return training_.graph.node(f.node).outputs[0] == in;
      });
      if (!is_parameter && !is_produced) continue;
      ValueId part = gradient;
      if (!forward_[i].is_bias) {
        const std::string op_type =
            (rows_ > 0 && forward.op_type == "Share" ? "ShareGrad" : "Grad") + std::to_string(position);
        part = node(is_parameter ? Phase::kBackwardWeight : Phase::kBackwardInput, op_type,
                    gradientReads(forward, in, gradient),
                    "d_" + training_.graph.value(in).name + "_by_" + training_.graph.value(output).name,
                    training_.graph.shape(in), id);
        kinds_[part] = kind(in) == Kind::kSplit ? Kind::kSplit
                       : kind(in) == Kind::kSum ? Kind::kInvariant
                                                : Kind::kSum;
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
    const Shape shape = training_.graph.shape(parameter.value);
    parameter.gradient = value("grad_" + name, shape);
    training_.graph.inputs.push_back(parameter.gradient);
    std::vector<ValueId> read = {parameter.value, parameter.gradient, rate};
    for (int s = 0; s < states; ++s) {
      const std::string state_name = "moment" + std::to_string(s);
      const ValueId state = value(name + "_" + state_name, shape);
      training_.graph.inputs.push_back(state);
      const ValueId updated = node(Phase::kUpdate, "Moment", {state, parameter.gradient},
                                   name + "_" + state_name + "_new", shape, {});
      parameter.states.push_back({state_name, state, updated});
      read.push_back(updated);
    }
    parameter.updated = node(Phase::kUpdate, "Step", read, name + "_new", shape, {});
  }
}

TrainingGraph TrainingBuilder::finish(const std::vector<ValueId>& loss_inputs, int states) {
  training_.loss = node(Phase::kForward, "Loss", loss_inputs, "loss", {}, {});
  forward_.push_back({NodeId(training_.graph.nodes.size() - 1), false});
  kinds_[training_.loss] = Kind::kSum;
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

Plan planFor(const TrainingGraph& training, const PartitionOptions& options) {
  Plan plan;
  plan.microbatches = training.microbatches;
  plan.cluster = options.cluster;
  partitionTraining(training, options, plan);
  EXPECT_EQ(planToJson(planFromJson(planToJson(plan))), planToJson(plan));
  return plan;
}

}  // namespace pipeshard
