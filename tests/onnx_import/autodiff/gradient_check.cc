#include "tests/onnx_import/autodiff/gradient_check.h"

#include <gtest/gtest.h>

#include "ir/graph/weight_role.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/prepare/inference.h"

namespace pipeshard::testing {
namespace {

constexpr double kStep = 1e-5;

void addInto(Constant& sum, const Constant& term) {
  std::vector<double> elements = elementsOf(sum);
  const std::vector<double> more = elementsOf(term);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] += more[i];
  sum = makeTensor(sum.shape, elements);
}

double runLoss(const Interpreter& interpreter, const Tensors& contents, const std::string& loss) {
  return elementsOf(interpreter.run(contents).at(loss)).at(0);
}

Constant centralDifferences(const Interpreter& forward, Tensors contents, const std::string& parameter,
                            const std::string& loss) {
  const Constant original = contents.at(parameter);
  const std::vector<double> elements = elementsOf(original);
  std::vector<double> slopes;
  for (size_t i = 0; i < elements.size(); ++i) {
    std::vector<double> moved = elements;
    moved[i] = elements[i] + kStep;
    contents[parameter] = makeTensor(original.shape, moved);
    const double above = runLoss(forward, contents, loss);
    moved[i] = elements[i] - kStep;
    contents[parameter] = makeTensor(original.shape, moved);
    slopes.push_back((above - runLoss(forward, contents, loss)) / (2 * kStep));
  }
  return makeTensor(original.shape, slopes);
}

}  // namespace

TestGraph::TestGraph() : builder_(graph_) { graph_.opset_imports[""] = 20; }

ValueId TestGraph::parameter(const std::string& name, const Shape& shape, double low, double high) {
  return parameter(name, randomTensor(shape, seed_++, low, high));
}

ValueId TestGraph::parameter(const std::string& name, Constant content) {
  const ValueId id = builder_.addValue(name, DataType::kFloat64, content.shape);
  graph_.initializers[id] = WeightReference{"none", 0, content.bytes.size()};
  graph_.value(id).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
  contents_[name] = std::move(content);
  return id;
}

ValueId TestGraph::input(const std::string& name, Constant content) {
  const ValueId id = builder_.addValue(name, content.data_type, content.shape);
  graph_.inputs.push_back(id);
  contents_[name] = std::move(content);
  return id;
}

ValueId TestGraph::constant(const Constant& constant) { return builder_.addConstant("constant", constant); }

ValueId TestGraph::integers(const std::vector<int64_t>& elements) {
  return constant(makeConstant<int64_t>({std::ssize(elements)}, elements));
}

std::vector<ValueId> TestGraph::ops(std::string_view op_type, std::vector<ValueId> inputs, size_t outputs,
                                    std::map<std::string, Attribute> attributes) {
  std::vector<ValueId> results;
  for (size_t i = 0; i < outputs; ++i) {
    results.push_back(builder_.addValue(op_type, DataType::kUndefined, {}));
    graph_.value(results.back()).shape.reset();
  }
  const NodeId node = builder_.addNode("", op_type, std::move(inputs), results, std::move(attributes));
  graph_.node(node).name = graph_.value(results[0]).name;
  inferShapes(graph_);
  return results;
}

ValueId TestGraph::op(std::string_view op_type, std::vector<ValueId> inputs,
                      std::map<std::string, Attribute> attributes) {
  return ops(op_type, std::move(inputs), 1, std::move(attributes))[0];
}

ValueId TestGraph::weightedSum(const std::vector<ValueId>& values) {
  std::vector<ValueId> sums;
  for (ValueId value : values) {
    const Constant weights = randomTensor(graph_.shape(value), seed_++, 0.5, 1.5);
    sums.push_back(op("ReduceSum", {op("Mul", {value, constant(weights)})}, {{"keepdims", int64_t{0}}}));
  }
  return sums.size() == 1 ? sums[0] : op("Sum", sums);
}

void giveDivided(TestGraph& test) {
  for (const auto& [id, initializer] : test.graph().initializers) {
    const Value& value = test.graph().value(id);
    if (!dividedAxis(value)) continue;
    Constant content = test.contents().at(value.name);
    EXPECT_EQ(content.shape, storedShape(value));
    content.shape = *value.shape;
    test.giveContent(value.name, content);
  }
}

CheckedTraining trainAndRun(TestGraph& test, ValueId loss) {
  ForwardGraph forward;
  forward.graph = test.graph();
  forward.loss = loss;
  for (ValueId id : forward.graph.inputs) forward.inputs.push_back({id, 0});
  CheckedTraining result;
  result.training = buildTrainingGraph(std::move(forward), {});
  const Graph& graph = result.training.graph;
  std::vector<NodeId> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (result.training.node_phase[n] != Phase::kUpdate) nodes.push_back(NodeId(n));
  }
  const Tensors computed = Interpreter(graph, nodes).run(test.contents());
  for (const Parameter& parameter : result.training.parameters) {
    Constant sum = makeTensor(graph.shape(parameter.value),
                              std::vector<double>(elementCount(graph.shape(parameter.value))));
    for (ValueId part : parameter.gradient_parts) addInto(sum, computed.at(graph.value(part).name));
    result.gradients[graph.value(parameter.value).name] = sum;
  }
  return result;
}

void checkGradients(TestGraph& test, const std::vector<ValueId>& outputs) {
  checkLossGradients(test, test.weightedSum(outputs));
}

void checkLossGradients(TestGraph& test, ValueId loss) {
  const std::string loss_name = test.graph().value(loss).name;
  test.graph().outputs = {loss};
  verifyGraph(test.graph());
  const Interpreter forward(test.graph());
  const CheckedTraining checked = trainAndRun(test, loss);
  ASSERT_FALSE(checked.gradients.empty());
  for (const auto& [name, gradient] : checked.gradients) {
    const Constant want = centralDifferences(forward, test.contents(), name, loss_name);
    EXPECT_LT(relativeError(gradient, want), 1e-6) << "parameter " << name;
  }
}

}  // namespace pipeshard::testing
