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
  const bool known = rows_ > 0 && isPass(phase);
  std::map<std::string, Attribute> attributes;
  if (known && op_type == "ReduceSum") attributes["keepdims"] = int64_t{0};
  if (known && op_type == "Transpose") attributes["perm"] = std::vector<int64_t>{1, 0, 2};
  const NodeId id = builder.addNode(known ? "" : "test", op_type, inputs, {result}, std::move(attributes));
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

Shape TrainingBuilder::shapeOf(Kind kind) const {
  if (rows_ == 0) return kShape;
  return kind == Kind::kSplit ? Shape{rows_, kTokens, kOtherSize} : Shape{kOtherSize};
}

ValueId TrainingBuilder::integers(const std::string& name, const std::vector<int64_t>& elements) {
  return GraphBuilder(training_.graph)
      .addConstant(name, makeConstant<int64_t>({std::ssize(elements)}, elements));
}

ValueId TrainingBuilder::rowsConstant() {
  return GraphBuilder(training_.graph)
      .addConstant("rows", makeConstant<float>({}, {static_cast<float>(rows_)}));
}

ValueId TrainingBuilder::input(const std::string& name, int axis) {
  Shape shape = kShape;
  if (rows_ > 0)
    shape = axis < 0    ? Shape{kOtherSize}
            : axis == 0 ? Shape{rows_, kTokens, kOtherSize}
                        : Shape{kTokens, rows_, kOtherSize};
  const ValueId id = value(name, shape);
  if (axis >= 0) kinds_[id] = Kind::kSplit;
  training_.graph.inputs.push_back(id);
  training_.inputs.push_back({id, axis});
  if (rows_ == 0 || axis <= 0) return id;
  const ValueId rows_first = forward("Transpose", {id}, name + "_rows", Kind::kSplit);
  transposed_[rows_first] = id;
  return rows_first;
}

ValueId TrainingBuilder::weight(const std::string& name) {
  const Shape shape = shapeOf(Kind::kInvariant);
  const ValueId id = value(name, shape);
  training_.graph.initializers[id] =
      WeightReference{"weights.bin", 64 * id.index(), static_cast<uint64_t>(elementCount(shape)) * 4};
  return id;
}

ValueId TrainingBuilder::constant(const std::string& name) {
  const Shape shape = shapeOf(Kind::kInvariant);
  const ValueId id = value(name, shape);
  std::vector<float> elements(elementCount(shape));
  std::iota(elements.begin(), elements.end(), 1.0F);
  training_.graph.initializers[id] = makeConstant<float>(shape, elements);
  return id;
}

ValueId TrainingBuilder::growingConstant(const std::string& name) {
  const Shape shape = shapeOf(Kind::kSplit);
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
  const auto source = transposed_.find(input);  // prologues read inputs alone
  const ValueId counted = source == transposed_.end() ? input : source->second;
  const ValueId part = node(Phase::kPrologue, "Count", {counted}, name + "_part", {}, {});
  const ValueId id = value(name, {});
  training_.graph.inputs.push_back(id);
  training_.totals.push_back({part, id});
  return id;
}

ValueId TrainingBuilder::forward(const std::string& op_type, const std::vector<ValueId>& inputs,
                                 const std::string& name, Kind kind) {
  const ValueId output = rows_ > 0 ? lowered(Phase::kForward, op_type, inputs, name, kind, {})
                                   : node(Phase::kForward, op_type, inputs, name, shapeOf(kind), {});
  forward_.push_back({NodeId(training_.graph.nodes.size() - 1), inputs, op_type});
  kinds_[output] = kind;
  return output;
}

ValueId TrainingBuilder::summed(Phase phase, ValueId value, const std::string& name, const Shape& shape,
                                NodeId forward) {
  std::vector<int64_t> axes(training_.graph.shape(value).size() - shape.size());
  std::iota(axes.begin(), axes.end(), 0);
  return node(phase, "ReduceSum", {value, integers("axes", axes)}, name, shape, forward);
}

// Of sums, each times something of the others.
ValueId TrainingBuilder::linear(Phase phase, const std::vector<ValueId>& inputs, const std::string& name,
                                NodeId forward) {
  std::vector<ValueId> terms, others;
  for (ValueId input : inputs) (kind(input) == Kind::kSum ? terms : others).push_back(input);
  const Shape shape = shapeOf(Kind::kSum);
  if (!others.empty()) {
    const bool scalars = std::all_of(others.begin(), others.end(),
                                     [&](ValueId id) { return training_.graph.shape(id).empty(); });
    const ValueId factor = node(phase, "Max", others, name + "_factor", scalars ? Shape() : shape, forward);
    for (size_t i = 0; i < terms.size(); ++i)
      terms[i] = node(phase, "Mul", {terms[i], factor}, name + "_term" + std::to_string(i), shape, forward);
  }
  return node(phase, terms.size() > 1 ? "Sum" : "Neg", terms, name, shape, forward);
}

ValueId TrainingBuilder::lowered(Phase phase, const std::string& op_type, const std::vector<ValueId>& inputs,
                                 const std::string& name, Kind kind, NodeId forward) {
  const Shape rows = shapeOf(Kind::kSplit), other = shapeOf(Kind::kInvariant);
  const auto max = [&](const std::string& to, const Shape& shape) {
    return node(phase, "Max", inputs, to, shape, forward);
  };
  if (op_type == "Transpose") return node(phase, "Transpose", inputs, name, rows, forward);
  if (op_type == "Bias") return node(phase, "Add", inputs, name, other, forward);
  if (op_type == "Expand")
    return node(phase, "Expand", {max(name + "_in", other), integers("shape", rows)}, name, rows, forward);
  if (op_type == "Share")
    return node(phase, "Mul", {max(name + "_in", other), rowsConstant()}, name, other, forward);
  if (op_type == "Reshape") {
    const Shape tokens = {rows_ * kTokens, kOtherSize};
    ValueId merged = node(phase, "Reshape", {max(name + "_in", rows), integers("tokens", tokens)},
                          name + "_merged", tokens, forward);
    merged = node(phase, "Max", {merged}, name + "_tokens", tokens, forward);
    return node(phase, "Reshape", {merged, integers("shape", rows)}, name, rows, forward);
  }
  if (kind == Kind::kSplit) return max(name, rows);
  if (kind == Kind::kInvariant) return max(name, other);
  if (any(inputs, Kind::kSplit)) return summed(phase, max(name + "_in", rows), name, other, forward);
  return linear(phase, inputs, name, forward);
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
  return forward("Reshape", inputs, name, Kind::kSplit);
}

ValueId TrainingBuilder::expand(const std::string& name, const std::vector<ValueId>& inputs) {
  return forward("Expand", inputs, name, Kind::kSplit);
}

ValueId TrainingBuilder::share(const std::string& name, const std::vector<ValueId>& inputs) {
  return forward("Share", inputs, name, Kind::kSum);
}

ValueId TrainingBuilder::stateful(const std::string& name, const std::vector<ValueId>& inputs) {
  const ValueId state = weight(name + "_state");
  if (rows_ > 0) {
    const ValueId updated =
        node(Phase::kForward, "Max", {state}, name + "_state_new", shapeOf(Kind::kInvariant), {});
    training_.forward_states.push_back({state, updated});
    std::vector<ValueId> read = inputs;
    read.push_back(updated);
    return op(name, read);
  }
  const ValueId output = op(name, inputs);
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

std::vector<ValueId> TrainingBuilder::gradientReads(const Forward& forward, ValueId in, ValueId gradient) {
  std::vector<ValueId> read = forward.inputs;
  std::erase_if(read, [&](ValueId id) { return isState(id); });
  read.push_back(training_.graph.node(forward.node).outputs[0]);
  read.push_back(gradient);
  if (rows_ > 0 && (forward.op_type == "Share" || kind(in) == Kind::kSum || any(read, Kind::kSplit)))
    std::erase_if(read, [&](ValueId id) { return kind(id) == Kind::kSum; });
  return read;
}

void TrainingBuilder::differentiate(ValueId seed) {
  gradients_[training_.loss] = {seed};
  for (size_t i = forward_.size(); i-- > 0;) {
    const Forward forward = forward_[i];
    const NodeId id = forward.node;
    const ValueId output = training_.graph.node(id).outputs[0];
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
      if (forward.op_type != "Bias") {
        const Kind of_part = kind(in) == Kind::kSplit ? Kind::kSplit
                             : kind(in) == Kind::kSum ? Kind::kInvariant
                                                      : Kind::kSum;
        const Phase phase = is_parameter ? Phase::kBackwardWeight : Phase::kBackwardInput;
        const std::vector<ValueId> read = gradientReads(forward, in, gradient);
        const std::string name = "d_" + training_.graph.value(in).name + "_by_" +
                                 training_.graph.value(output).name + "_" + std::to_string(position);
        const bool share = of_part == Kind::kSum && forward.op_type == "Share";
        part = rows_ > 0
                   ? lowered(phase, share ? "Share" : "Grad", read, name, of_part, id)
                   : node(phase, "Grad" + std::to_string(position), read,
                          "d_" + training_.graph.value(in).name + "_by_" + training_.graph.value(output).name,
                          training_.graph.shape(in), id);
        kinds_[part] = of_part;
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
  const Shape shape = rows_ > 0 ? Shape{kOtherSize} : Shape();
  if (rows_ > 0) {
    std::vector<ValueId> parts;
    for (ValueId input : loss_inputs) {
      const std::string name = "loss_part" + std::to_string(parts.size());
      const Shape& shape = training_.graph.shape(input);
      if (kind(input) == Kind::kInvariant)  // counts once per row
        input = node(Phase::kForward, "Mul", {input, rowsConstant()}, name + "_share", shape, {});
      parts.push_back(
          training_.graph.shape(input).empty() ? input : summed(Phase::kForward, input, name, Shape(), {}));
    }
    training_.loss = node(Phase::kForward, "Sum", parts, "loss", {}, {});
  } else {
    training_.loss = node(Phase::kForward, "Loss", loss_inputs, "loss", {}, {});
  }
  forward_.push_back({NodeId(training_.graph.nodes.size() - 1), loss_inputs, "Loss"});
  kinds_[training_.loss] = Kind::kSum;
  const ValueId seed = value("seed", shape);
  training_.graph.initializers[seed] =
      makeConstant<float>(shape, std::vector<float>(elementCount(shape), 1.0F));
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
