#include "runtime/profiling.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ir/error.h"

namespace pipeshard {
namespace {

OperatorSample product(int64_t size) {
  OperatorSample sample;
  Graph& graph = sample.graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  for (int operand = 0; operand < 2; ++operand) graph.inputs.push_back(builder.addValue("x", DataType::kFloat32, {size, size}));
  graph.outputs = {builder.addValue("y", DataType::kFloat32, {size, size})};
  builder.addNode("", "MatMul", graph.inputs, graph.outputs);
  return sample;
}

ProfilingOptions quick(int workers = 1) {
  ProfilingOptions options;
  options.workers = workers;
  options.budget_ns = 200'000;
  return options;
}

TEST(Profiling, LargerProductsTakeLonger) {
  const std::vector<OperatorSample> samples = {product(16), product(64), product(256), product(512)};
  size_t told = 0;
  const std::vector<OperatorTime> times = measureOperators(samples, quick(), [&](size_t done, size_t all) {
    EXPECT_EQ(all, samples.size());
    EXPECT_EQ(done, ++told);
  });
  ASSERT_EQ(times.size(), samples.size());
  EXPECT_EQ(told, samples.size());
  for (size_t i = 0; i < times.size(); ++i) {
    EXPECT_GT(times[i].ns, i == 0 ? 0 : times[i - 1].ns);  // each is eight times the work of the one before, or more
    EXPECT_EQ(times[i].busy_ns, 0);
  }
}

TEST(Profiling, MeasuresBesideASecondWorker) {
  const std::vector<OperatorSample> samples = {product(32), product(128)};
  for (const OperatorTime& time : measureOperators(samples, quick(2))) {
    EXPECT_GT(time.ns, 0);
    EXPECT_GT(time.busy_ns, 0);
  }
}

TEST(Profiling, AnOperatorWithoutKernelIsAnError) {
  OperatorSample sample = product(4);
  sample.graph.nodes[0].domain = "nobody";
  sample.graph.opset_imports["nobody"] = 1;
  EXPECT_THROW(measureOperators({&sample, 1}, quick()), Error);
}

// Indices must be valid in whatever they index.
TEST(Profiling, IndicesAreBelowTheSmallestAxis) {
  OperatorSample sample;
  Graph& graph = sample.graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  graph.inputs = {builder.addValue("table", DataType::kFloat32, {5, 7}), builder.addValue("rows", DataType::kInt64, {100})};
  graph.outputs = {builder.addValue("y", DataType::kFloat32, {100, 7})};
  builder.addNode("", "Gather", graph.inputs, graph.outputs);
  EXPECT_GT(measureOperators({&sample, 1}, quick())[0].ns, 0);
}

// An update in place: output 0 is the memory of input 0.
TEST(Profiling, RunsInPlace) {
  OperatorSample sample = product(8);
  sample.graph.nodes[0].op_type = "Add";
  sample.in_place = {0};
  sample.footprint_bytes = 1 << 16;
  EXPECT_GT(measureOperators({&sample, 1}, quick())[0].ns, 0);
}

// Its first step is 1, whatever the smallest axis is.
TEST(Profiling, UpdatesAreGivenAStep) {
  OperatorSample sample;
  Graph& graph = sample.graph;
  graph.opset_imports = {{"", 18}, {"pipeshard", 1}};
  GraphBuilder builder(graph);
  for (int tensor = 0; tensor < 4; ++tensor) graph.inputs.push_back(builder.addValue("x", DataType::kFloat32, {1}));
  graph.inputs.push_back(builder.addValue("step", DataType::kInt64, {}));
  std::vector<ValueId> inputs = graph.inputs;
  for (const double number : {1e-3, 0.9, 0.99, 1e-8, 0.01})
    inputs.push_back(builder.addConstant("c", makeScalar(DataType::kFloat32, number)));
  for (int tensor = 0; tensor < 3; ++tensor) graph.outputs.push_back(builder.addValue("y", DataType::kFloat32, {1}));
  builder.addNode("pipeshard", "AdamW", inputs, graph.outputs);
  sample.in_place = {0, 2, 3};
  EXPECT_GT(measureOperators({&sample, 1}, quick())[0].ns, 0);
}

TEST(Profiling, CurvesOfLinksAndMemoryAscend) {
  const LinkTimes inside = measureInside(1 << 16);
  for (const CostCurve* curve : {&inside.send, &inside.all_reduce, &inside.all_gather, &inside.reduce_scatter, &inside.all_to_all}) {
    ASSERT_EQ(curve->points.size(), 5U);
    EXPECT_EQ(curve->points.front().amount, 256);
    EXPECT_GT(curve->points.front().ns, 0);
    for (size_t i = 1; i < curve->points.size(); ++i) EXPECT_GE(curve->points[i].ns, curve->points[i - 1].ns);
  }
  const CostCurve between = measureBetween(1 << 10);
  ASSERT_EQ(between.points.size(), 2U);
  EXPECT_GT(between.points[0].ns, inside.send.points[0].ns);
  const CostCurve memory = measureMemory(quick());
  EXPECT_GT(memory.points.back().ns, memory.points.front().ns);
}

}  // namespace
}  // namespace pipeshard
