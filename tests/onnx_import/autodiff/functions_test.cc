// Every pipeshard function: its kernel gives what its body in standard ONNX gives.
#include "onnx_import/autodiff/functions.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "onnx_import/prepare/inline_functions.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/function_calls.h"
#include "tests/onnx_import/autodiff/interpreter.h"
#include "tests/onnx_import/check_model.h"

namespace pipeshard::testing {
namespace {

std::string inputName(size_t position) { return "input_" + std::to_string(position); }
std::string outputName(size_t position) { return "output_" + std::to_string(position); }

Graph graphOf(const Call& call) {
  Graph graph;
  graph.opset_imports = {{"", 18}, {std::string(kPipeshardDomain), 1}};
  GraphBuilder builder(graph);
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Constant& content = call.inputs[i];
    if (call.constant_inputs.contains(i)) {
      inputs.push_back(builder.addConstant(inputName(i), content));
    } else {
      inputs.push_back(builder.addValue(inputName(i), content.data_type, content.shape));
      graph.inputs.push_back(inputs.back());
    }
  }
  for (size_t i = 0; i < call.outputs.size(); ++i)
    outputs.push_back(builder.addValue(outputName(i), DataType::kFloat64, call.outputs[i]));
  graph.outputs = outputs;
  const NodeId node = builder.addNode(kPipeshardDomain, call.name, inputs, outputs, call.attributes);
  graph.node(node).overload = call.overload;
  graph.node(node).name = "call";
  graph.functions.push_back(makePipeshardFunction(call.name, call.overload, 18));
  return graph;
}

Tensors tensorsOf(const Call& call) {
  Tensors tensors;
  for (size_t i = 0; i < call.inputs.size(); ++i) tensors[inputName(i)] = call.inputs[i];
  return tensors;
}

TEST(PipeshardFunction, OfEveryNameAndOverloadIsTestedHere) {
  std::set<std::pair<std::string, std::string>> tested;
  for (const Call& call : allCalls()) tested.emplace(call.name, call.overload);
  for (const auto& function : pipeshardFunctions())
    EXPECT_TRUE(tested.contains(function)) << function.first << " " << function.second;
}

// Where there is a kernel.
TEST(PipeshardFunction, KernelGivesWhatTheBodyGives) {
  for (const Call& call : allCalls()) {
    if (call.name == "Orthogonalized") continue;
    SCOPED_TRACE(call.name + " " + call.overload);
    const Graph graph = graphOf(call);
    Graph inlined = graph;
    inlineFunctions(inlined, 1000);
    for (const Node& node : inlined.nodes) ASSERT_EQ(node.domain, "") << node.op_type;
    inlined = prepareModel(std::move(inlined), {});
    const Tensors from_kernel = Interpreter(graph).run(tensorsOf(call));
    const Tensors from_body = Interpreter(inlined).run(tensorsOf(call));
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      EXPECT_LT(relativeError(from_kernel.at(outputName(i)), from_body.at(outputName(i))), 1e-13)
          << outputName(i);
    }
  }
}

using Matrix = std::vector<std::vector<double>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix result(a.size(), std::vector<double>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[0].size(); ++j) result[i][j] += a[i][k] * b[k][j];
    }
  }
  return result;
}

// a A + b B
Matrix mixed(double a, const Matrix& left, double b, const Matrix& right) {
  Matrix result = left;
  for (size_t i = 0; i < left.size(); ++i) {
    for (size_t j = 0; j < left[0].size(); ++j) result[i][j] = a * left[i][j] + b * right[i][j];
  }
  return result;
}

Matrix transposed(const Matrix& a) {
  Matrix result(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) result[j][i] = a[i][j];
  }
  return result;
}

// What torch.optim.Muon iterates.
Matrix iterated(Matrix x, int steps) {
  double squares = 0;
  for (const auto& row : x) {
    for (const double element : row) squares += element * element;
  }
  x = mixed(1 / std::sqrt(squares), x, 0, x);
  for (int step = 0; step < steps; ++step) {
    const Matrix gram = product(x, transposed(x));
    x = mixed(3.4445, x, 1, product(mixed(-4.7750, gram, 2.0315, product(gram, gram)), x));
  }
  return x;
}

TEST(PipeshardFunction, OrthogonalizesMatricesOfBothShapes) {
  for (const bool tall : {false, true}) {
    const size_t rows = tall ? 6 : 3, columns = tall ? 3 : 6;
    const Shape shape = {static_cast<int64_t>(rows), static_cast<int64_t>(columns)};
    const Call call{
        "Orthogonalized", tall ? "5_tall" : "5", {numbers(shape), makeTensor({}, {1e-7})}, {shape}};
    Graph graph = graphOf(call);
    inlineFunctions(graph, 1000);
    graph = prepareModel(std::move(graph), {});
    const Tensors results = Interpreter(graph).run(tensorsOf(call));
    const std::vector<double> y = numericElements(results.at(outputName(0)));
    const std::vector<double> x = numericElements(call.inputs[0]);
    Matrix matrix(rows);
    for (size_t i = 0; i < rows; ++i)
      matrix[i].assign(x.begin() + i * columns, x.begin() + (i + 1) * columns);
    const Matrix want = tall ? transposed(iterated(transposed(matrix), 5)) : iterated(matrix, 5);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) EXPECT_NEAR(y[i * columns + j], want[i][j], 1e-12);
    }
  }
}

TEST(PipeshardFunction, IsAcceptedByTheOnnxCheckerInEveryOpset) {
  for (const Call& call : allCalls()) {
    SCOPED_TRACE(call.name + " " + call.overload);
    for (int opset : {16, 17, 18, 19, 20, 21, 22, 23}) {
      Graph graph = graphOf(call);
      graph.ir_version = 10;
      graph.opset_imports[""] = opset;
      graph.functions = {makePipeshardFunction(call.name, call.overload, opset)};
      EXPECT_NO_THROW(checkModel(graph)) << opset;
    }
  }
}

}  // namespace
}  // namespace pipeshard::testing
