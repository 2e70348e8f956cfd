// Which dimension is the batch, under which names, and how large where nobody says.
#include "planning/model/batch_dimension.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/format/writer.h"
#include "planning/model/forward_model.h"
#include "planning/model/microbatches.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Sizes = std::map<std::string, int64_t>;

// One input per list of dimensions: a name, or "" for a size of 6, or "?" for an open one without a name.
Graph graphOf(const std::vector<std::vector<std::string>>& inputs) {
  Graph graph;
  for (const std::vector<std::string>& symbols : inputs) {
    Value value;
    value.name = "in" + std::to_string(graph.values.size());
    value.data_type = DataType::kFloat32;
    value.shape.emplace();
    for (const std::string& symbol : symbols) {
      value.shape->push_back(symbol.empty() ? 6 : kUnknownSize);
      value.symbols.push_back(symbol == "?" ? "" : symbol);
    }
    graph.inputs.push_back(ValueId(graph.values.size()));
    graph.values.push_back(value);
  }
  return graph;
}

BatchDimension decide(Graph graph, PlanRequest request, AskedStages stages = {}) {
  return decideBatchDimension(request, stages, graph);
}

PlanRequest given(const Sizes& sizes) {
  PlanRequest request;
  request.dimensions = sizes;
  return request;
}

TEST(BatchDimension, OneNameOnAxis0IsTheBatch) {
  const BatchDimension batch = decide(graphOf({{"s77", ""}, {"s77"}}), given({{"s77", 8}}));
  EXPECT_EQ(batch.name, "s77");
  EXPECT_EQ(batch.dimensions, (Sizes{{"s77", 8}}));
  EXPECT_THAT(batch.notes, IsEmpty());
}

TEST(BatchDimension, ASizeForBatchIsTheBatchs) {
  const BatchDimension batch = decide(graphOf({{"s77", ""}, {"s77"}}), given({{"batch", 8}}));
  EXPECT_EQ(batch.dimensions, (Sizes{{"s77", 8}}));
  EXPECT_THAT(batch.notes, ElementsAre(HasSubstr("--dim batch is taken for s77")));
}

TEST(BatchDimension, NamesOnAxis0AloneBecomeOne) {
  Graph graph = graphOf({{"ids_batch", "seq"}, {"labels_batch", "seq"}, {"?"}});
  const BatchDimension batch = decideBatchDimension(given({{"labels_batch", 8}, {"seq", 5}}), {}, graph);
  EXPECT_EQ(batch.name, "ids_batch");
  EXPECT_EQ(batch.dimensions, (Sizes{{"ids_batch", 8}, {"seq", 5}}));
  for (ValueId input : graph.inputs) EXPECT_EQ(graph.value(input).symbols[0], "ids_batch");
  EXPECT_THAT(batch.notes, ElementsAre(HasSubstr("in2_axis0, labels_batch taken for other names")));
}

TEST(BatchDimension, ItsSizesAreKnownByTheNamesOfTheFile) {
  const Graph graph = graphOf({{"ids_batch", "seq"}, {"labels_batch", "seq"}, {"?"}});
  const AskedSizes asked = askedSizes(given({{"labels_batch", 8}, {"seq", 5}}), {}, graph);
  EXPECT_EQ(asked.sizes, (Sizes{{"ids_batch", 8}, {"in2_axis0", 8}, {"labels_batch", 8}, {"seq", 5}}));
  EXPECT_EQ(asked.batch, (std::set<std::string>{"ids_batch", "in2_axis0", "labels_batch"}));
  Plan plan;
  plan.dimensions = {{"ids_batch", 8}, {"seq", 5}};
  plan.batch_dimension = "ids_batch";
  EXPECT_EQ(askedSizes(plan, graph).sizes, asked.sizes);
  EXPECT_EQ(askedSizes(plan, graph).batch, asked.batch);
}

TEST(BatchDimension, WhatIsMadeOfItIsNoOtherNameOfIt) {
  Graph graph = graphOf({{"time", ""}, {"time - 4"}});
  const BatchDimension batch = decideBatchDimension(given({{"time", 30}}), {}, graph);
  EXPECT_EQ(batch.name, "time");
  EXPECT_EQ(graph.value(graph.inputs[1]).symbols[0], "time - 4");
}

TEST(BatchDimension, AnotherSizeIsAnotherDimension) {
  Graph graph = graphOf({{"batch", ""}, {"nodes", ""}});
  const BatchDimension batch = decideBatchDimension(given({{"batch", 8}, {"nodes", 20}}), {}, graph);
  EXPECT_EQ(batch.name, "batch");
  EXPECT_EQ(graph.value(graph.inputs[1]).symbols[0], "nodes");
  PlanRequest cut = given({{"a", 8}, {"b", 20}});
  cut.microbatches = 4;
  EXPECT_ERROR(decide(graphOf({{"a"}, {"b"}}), cut), ErrorCode::kUsage, "--batch-dim a, or --batch-dim b");
}

// A length that another input has inside is no batch.
TEST(BatchDimension, ANameThatStandsElsewhereIsNoBatch) {
  Graph graph = graphOf({{"batch", "seq"}, {"seq"}});
  decideBatchDimension(given({{"batch", 2}, {"seq", 5}}), {}, graph);
  EXPECT_EQ(graph.value(graph.inputs[1]).symbols[0], "seq");
}

TEST(BatchDimension, WithoutASizeEachDeviceHasARowOfEveryMicrobatch) {
  PlanRequest request;
  request.microbatches = 6;
  AskedStages stages;
  stages.widest = 3;
  const BatchDimension batch = decide(graphOf({{"batch", ""}}), request, stages);
  EXPECT_EQ(batch.dimensions, (Sizes{{"batch", 18}}));
  EXPECT_THAT(batch.notes, ElementsAre(HasSubstr("a batch of 18 was chosen (--dim batch=N sets it)")));
  EXPECT_EQ(decide(graphOf({{"batch", "seq"}}), request).dimensions.count("seq"), 0u);
  request.any_sizes = true;
  EXPECT_EQ(decide(graphOf({{"batch", "seq"}}), request).dimensions.count("seq"), 1u);
}

// The microbatches that are asked for, with as many rows as they need.
TEST(BatchDimension, HasTheFewestRowsOfAMicrobatch) {
  PlanRequest request;
  request.microbatches = 8;
  request.fewest_rows = 2;
  request.uncut = "node 'n'";
  AskedStages stages;
  stages.widest = 2;
  ForwardModel model;
  model.dimensions = decide(graphOf({{"batch", ""}}), request, stages).dimensions;
  EXPECT_EQ(model.dimensions, (Sizes{{"batch", 16}}));
  model.batch_dimension = "batch";
  decideMicrobatches(request, stages, model);
  EXPECT_EQ(model.microbatches, 8);
  EXPECT_THAT(model.notes, ElementsAre(HasSubstr("microbatches have at least 2 rows")));
}

// Groups of two rows beside rows that are merged behind another axis: every size at which the model is looked
// at has whole groups.
TEST(ForwardModel, GroupsOfRowsStayWhole) {
  Graph graph = graphOf({{"batch", "", ""}});
  graph.value(graph.inputs[0]).name = "x";
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const auto value = [&](const char* name) {
    const ValueId id = builder.addValue(name, DataType::kFloat32, {});
    graph.value(id).shape.reset();
    return id;
  };
  const ValueId w =
      builder.addConstant("fc.weight", makeConstant<float>({6, 6}, std::vector<float>(36, 0.5F)));
  const ValueId merged = builder.addConstant("merged", makeConstant<int64_t>({2}, {-1, 6}));
  const ValueId groups = builder.addConstant("groups", makeConstant<int64_t>({3}, {-1, 12, 6}));
  const ValueId t = value("t"), r = value("r"), m = value("m"), g = value("g"), s = value("s"),
                l = value("l"), n = value("n"), loss = value("loss");
  builder.addNode("", "Reshape", {graph.inputs[0], groups}, {g});
  builder.addNode("", "Transpose", {graph.inputs[0]}, {t}, {{"perm", std::vector<int64_t>{1, 0, 2}}});
  builder.addNode("", "Reshape", {t, merged}, {r});
  builder.addNode("", "MatMul", {r, w}, {m});
  builder.addNode("", "ReduceMean", {m}, {s}, {{"keepdims", int64_t{0}}});
  builder.addNode("", "ReduceMean", {g}, {n}, {{"keepdims", int64_t{0}}});
  builder.addNode("", "Add", {s, n}, {l});
  builder.addNode("", "Identity", {l}, {loss});
  graph.outputs = {loss};
  const TemporaryFolder folder;
  writeModel(graph, folder.file("groups.onnx"));
  PlanRequest request = given({{"batch", 8}});
  request.model_path = folder.file("groups.onnx");
  request.microbatches = 2;
  const ForwardModel model = loadForward(request, {}, [](const std::string&) {});
  EXPECT_EQ(model.graph.shape(findValue(model.graph, "g")), (Shape{2, 12, 6}));
}

}  // namespace
}  // namespace pipeshard
