// Extremes and norms over axes that are cut.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sharding/spmd/form_runner.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

FormProblem reduceProblem(const std::string& op_type, DataType type, const std::vector<int64_t>& axes,
                          bool keep) {
  std::mt19937_64 generator(7);
  const Shape shape{3, 7, 5};
  Shape reduced;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool folded = std::find(axes.begin(), axes.end(), static_cast<int64_t>(axis)) != axes.end();
    if (!folded) reduced.push_back(shape[axis]);
    if (folded && keep) reduced.push_back(1);
  }
  FormProblem problem;
  const ValueId x = problem.input("x", randomReals(generator, shape, type));
  const ValueId at = problem.constant("axes", makeConstant<int64_t>({std::ssize(axes)}, axes));
  problem.node("", op_type, {x, at}, {{type, reduced}}, {{"keepdims", int64_t{keep}}});
  return problem;
}

TEST(ExchangeReduction, ExtremesOverACutAxis) {
  for (const char* op : {"ReduceMax", "ReduceMin", "ReduceL2"}) {
    for (const DataType type : {DataType::kFloat64, DataType::kFloat32}) {
      for (const bool keep : {false, true}) {
        const FormProblem one = reduceProblem(op, type, {1}, keep);
        const FormProblem two = reduceProblem(op, type, {1, 2}, keep);
        const double tolerance = std::string(op) == "ReduceL2" ? toleranceOf(type) : 0;
        for (const auto& [mesh, factors] : cutsOf("a1")) {
          expectAsWhole(one, mesh, factors, tolerance);
          expectAsWhole(two, mesh, factors, tolerance);
        }
        expectAsWhole(one, {{2, 3}}, {"a1", "a0"}, tolerance);
        expectAsWhole(two, {{2, 3}}, {"a2", "a1"}, tolerance);
        expectAsWhole(one, {{1}}, {"a1"}, tolerance);
      }
    }
  }
}

TEST(ExchangeReduction, PlacesOfExtremesAlongACutAxis) {
  for (const char* op : {"ArgMax", "ArgMin"}) {
    for (const int64_t last : {0, 1}) {
      for (const int64_t keep : {0, 1}) {
        std::mt19937_64 generator(7);
        FormProblem problem;
        // Few different numbers: the extreme stands at several places, on several devices.
        const std::vector<int64_t> numbers = integerElements(randomIntegers(generator, {4, 9, 3}, -2, 2));
        const ValueId x = problem.input(
            "x", makeConstant<float>({4, 9, 3}, std::vector<float>(numbers.begin(), numbers.end())));
        problem.node("", op, {x}, {{DataType::kInt64, keep ? Shape{4, 1, 3} : Shape{4, 3}}},
                     {{"axis", int64_t{1}}, {"keepdims", keep}, {"select_last_index", last}});
        for (const auto& [mesh, factors] : cutsOf("a1")) expectAsWhole(problem, mesh, factors, 0);
        expectAsWhole(problem, {{2, 3}}, {"a0", "a1"}, 0);
      }
    }
  }
}

TEST(ExchangeReduction, RunningSumsAlongACutAxis) {
  for (const DataType type : {DataType::kFloat64, DataType::kFloat32, DataType::kInt64}) {
    for (const int64_t exclusive : {0, 1}) {
      for (const int64_t reverse : {0, 1}) {
        std::mt19937_64 generator(7);
        const Shape shape{2, 9, 3};
        FormProblem problem;
        const ValueId x =
            problem.input("x", type == DataType::kInt64 ? randomIntegers(generator, shape, -9, 9)
                                                        : randomReals(generator, shape, type));
        const ValueId axis = problem.constant("axis", makeScalar(DataType::kInt64, -2));
        problem.node("", "CumSum", {x, axis}, {{type, shape}},
                     {{"exclusive", exclusive}, {"reverse", reverse}});
        const double tolerance = type == DataType::kInt64 ? 0 : toleranceOf(type);
        for (const auto& [mesh, factors] : cutsOf("a1")) expectAsWhole(problem, mesh, factors, tolerance);
        expectAsWhole(problem, {{3, 2}}, {"a1", "a0"}, tolerance);
        expectAsWhole(problem, {{2, 1, 4}}, {"a1", "a1", "a1"}, tolerance);
      }
    }
  }
}

}  // namespace
}  // namespace pipeshard
