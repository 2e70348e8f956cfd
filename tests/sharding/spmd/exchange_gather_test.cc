// Indexing into an axis that is cut.
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "tests/sharding/spmd/form_runner.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

Constant indicesFor(const Shape& shape, int64_t size, DataType type = DataType::kInt64) {
  std::mt19937_64 generator(3);
  Constant indices = randomIntegers(generator, shape, -size, size);  // negative ones count from the end
  if (type == DataType::kInt64) return indices;
  std::vector<int32_t> narrow;
  for (const int64_t index : integerElements(indices)) narrow.push_back(index);
  return makeConstant<int32_t>(shape, narrow);
}

FormProblem gatherProblem(const Shape& data, const Shape& indices, int64_t axis, DataType type,
                          DataType index_type = DataType::kInt64) {
  std::mt19937_64 generator(7);
  FormProblem problem;
  const ValueId table = problem.input("data", randomReals(generator, data, type));
  const ValueId where = problem.input("indices", indicesFor(indices, data[axis], index_type));
  Shape shape(data.begin(), data.begin() + axis);
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), data.begin() + axis + 1, data.end());
  problem.node("", "Gather", {table, where}, {{type, shape}}, {{"axis", axis}});
  return problem;
}

// The other way: gradients of what was gathered, added up where they came from.
FormProblem gradProblem(const FormProblem& forward, const std::string& op_type) {
  std::mt19937_64 generator(9);
  const Graph& graph = forward.graph;
  const Node& node = forward.theNode();
  const DataType type = graph.dataType(node.outputs[0]);
  const Shape data = graph.shape(node.inputs[0]);
  FormProblem problem;
  const ValueId dy = problem.input("dy", randomReals(generator, graph.shape(node.outputs[0]), type));
  const ValueId indices = problem.input("indices", forward.given.at("indices"));
  const ValueId shape = problem.constant("shape", makeConstant<int64_t>({std::ssize(data)}, data));
  problem.node(std::string(kPipeshardDomain), op_type, {dy, indices, shape}, {{type, data}}, node.attributes);
  return problem;
}

TEST(ExchangeGather, FromAPartOfTheTableGivesPartialSums) {
  for (const DataType type : {DataType::kFloat64, DataType::kFloat32}) {
    for (const DataType index : {DataType::kInt64, DataType::kInt32}) {
      const FormProblem embedding = gatherProblem({11, 3}, {2, 5}, 0, type, index);
      const FormProblem inside = gatherProblem({3, 7, 2}, {4}, 1, type, index);
      const FormProblem scalar = gatherProblem({5}, {}, 0, type, index);
      for (const auto& [mesh, factors] : cutsOf("d0")) expectAsWhole(embedding, mesh, factors, 0);
      for (const auto& [mesh, factors] : cutsOf("d1")) expectAsWhole(inside, mesh, factors, 0);
      expectAsWhole(scalar, {{3}}, {"d0"}, 0);
      expectAsWhole(embedding, {{2, 2, 2}}, {"i1", "d0", "d1"}, 0);
      expectAsWhole(inside, {{3, 2}}, {"d1", "i0"}, 0);
    }
  }
}

TEST(ExchangeGather, GradientOfAPartOfTheTableNeedsNobodyElse) {
  for (const DataType type : {DataType::kFloat64, DataType::kFloat32}) {
    const FormProblem embedding = gradProblem(gatherProblem({11, 3}, {2, 25}, 0, type), "GatherGrad");
    const FormProblem inside = gradProblem(gatherProblem({3, 7, 2}, {20}, 1, type), "GatherGrad");
    for (const auto& [mesh, factors] : cutsOf("d0")) expectAsWhole(embedding, mesh, factors, 0);
    for (const auto& [mesh, factors] : cutsOf("d1")) expectAsWhole(inside, mesh, factors, 0);
    expectAsWhole(embedding, {{2, 2, 2}}, {"i1", "d0", "d1"}, toleranceOf(type));
    const FormResult result = runForm(embedding, {{4}}, strategyOf(embedding, {{4}}, {"d0"}));
    EXPECT_EQ(countNodes(result.graphs[0], "AllReduce"), 0);
  }
}

TEST(ExchangeGather, ElementsAlongACutAxis) {
  for (const DataType type : {DataType::kFloat64, DataType::kFloat32}) {
    std::mt19937_64 generator(7);
    FormProblem forward;
    const ValueId data = forward.input("data", randomReals(generator, {3, 9, 2}, type));
    const ValueId indices = forward.input("indices", indicesFor({3, 6, 2}, 9));
    forward.node("", "GatherElements", {data, indices}, {{type, {3, 6, 2}}}, {{"axis", int64_t{1}}});
    const FormProblem backward = gradProblem(forward, "GatherElementsGrad");
    for (const auto& [mesh, factors] : cutsOf("d1")) {
      expectAsWhole(forward, mesh, factors, 0);
      expectAsWhole(backward, mesh, factors, 0);
    }
    expectAsWhole(forward, {{2, 3}}, {"d1", "d0"}, 0);
    expectAsWhole(backward, {{2, 3}}, {"d1", "i1"}, toleranceOf(type));
  }
}

TEST(ExchangeGather, OneHotOfAPartOfTheClasses) {
  for (const int64_t axis : {-1, 0}) {
    FormProblem problem;
    // Negative ones count from the end; what is out of range is nobody's.
    const ValueId indices =
        problem.input("indices", makeConstant<int64_t>({2, 5}, {0, 6, -1, -7, 3, 2, 7, -8, 100, 4}));
    const ValueId depth = problem.constant("depth", makeScalar(DataType::kInt64, 7));
    const ValueId values = problem.input("values", makeConstant<float>({2}, {-1, 3}));
    problem.node("", "OneHot", {indices, depth, values},
                 {{DataType::kFloat32, axis == 0 ? Shape{7, 2, 5} : Shape{2, 5, 7}}}, {{"axis", axis}});
    for (const auto& [mesh, factors] : cutsOf("depth")) expectAsWhole(problem, mesh, factors, 0);
    expectAsWhole(problem, {{2, 3}}, {"i1", "depth"}, 0);
  }
}

TEST(ExchangeGather, RefusesAnIndexBeyondTheWholeTableAsOneDeviceDoes) {
  for (const int64_t bad : {int64_t{11}, int64_t{-12}, int64_t{100}}) {
    FormProblem problem = gatherProblem({11, 3}, {2}, 0, DataType::kFloat32);
    problem.given["indices"] = makeConstant<int64_t>({2}, {5, bad});
    EXPECT_THROW(runForm(problem, {{2}}, strategyOf(problem, {{2}}, {"d0"})), Error) << bad;
  }
}

TEST(ExchangeGather, WhatNoCollectiveAddsIsNotCut) {
  for (const DataType type : {DataType::kInt64, DataType::kBool}) {
    FormProblem problem;
    const ValueId data =
        problem.input("data", Constant{type, {4}, std::vector<std::byte>(4 * dataTypeSize(type))});
    const ValueId indices = problem.input("indices", makeConstant<int64_t>({2}, {1, 2}));
    problem.node("", "Gather", {data, indices}, {{type, {2}}}, {{"axis", int64_t{0}}});
    const auto rule = factorRule(problem.graph, problem.theNode());
    EXPECT_EQ(exchangeForm(problem.graph, problem.theNode(), *rule, 0) != nullptr, type == DataType::kInt64);
  }
}

}  // namespace
}  // namespace pipeshard
