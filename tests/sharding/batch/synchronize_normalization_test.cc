// synchronizeBatchNormalization: devices that hold parts of a microbatch, in threads, against the original
// operators on the whole.
#include "sharding/batch/synchronize_normalization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <numeric>
#include <thread>

#include "ir/base/error.h"
#include "ir/graph/graph_print.h"
#include "tests/sharding/graph_runner.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;

// Devices in threads that meet at a barrier.
struct Meeting {
  explicit Meeting(size_t devices) : inputs(devices), barrier(devices) {}
  std::vector<const double*> inputs;
  std::barrier<> barrier;
};

class ThreadCollectives : public Collectives {
 public:
  ThreadCollectives(Meeting& meeting, size_t device) : meeting_(meeting), device_(device) {}
  void call(const CollectiveCall& call) override {
    groups.push_back(call.group);
    EXPECT_EQ(call.kind, CollectiveCall::Kind::kAllReduce);
    EXPECT_EQ(call.reduction, Reduction::kSum);
    EXPECT_EQ(call.type, DataType::kFloat64);
    meeting_.inputs[device_] = static_cast<const double*>(call.input);
    meeting_.barrier.arrive_and_wait();
    std::vector<double> sum(call.count);
    for (const double* part : meeting_.inputs) {
      for (size_t i = 0; i < call.count; ++i) sum[i] += part[i];
    }
    meeting_.barrier.arrive_and_wait();
    std::memcpy(call.output, sum.data(), call.count * sizeof(double));
  }
  std::vector<GroupId> groups;

 private:
  Meeting& meeting_;
  size_t device_;
};

constexpr GroupId kGroup(3);

// Two normalisations of one x with different parameters, with running statistics, and the gradients of the
// first. What comes before and after shows that other nodes stay. `shape`: of x.
struct Piece {
  Graph graph;
  GraphBuilder builder{graph};

  explicit Piece(const Shape& shape) {
    graph.opset_imports = {{"", 18}, {std::string(kPipeshardDomain), 1}};
    const Shape channel{shape.size() > 1 ? shape[1] : 1};
    const ValueId x0 = input("x0", shape), dy = input("dy", shape), scale = input("scale", channel),
                  bias = input("bias", channel);
    const ValueId mean = input("mean", channel), variance = input("variance", channel);
    const ValueId x = node("", "Tanh", {x0}, {"x"}, {shape})[0];
    const auto y = node("", "BatchNormalization", {x, scale, bias, mean, variance},
                        {"y", "mean_after", "variance_after"}, {shape, channel, channel},
                        {{"training_mode", int64_t{1}}, {"momentum", 0.7f}, {"epsilon", 1e-3f}});
    const ValueId z = node("", "Relu", {y[0]}, {"z"}, {shape})[0];
    const ValueId second = node("", "BatchNormalization", {x, bias, scale, mean, variance}, {"second"},
                                {shape}, {{"training_mode", int64_t{1}}})[0];
    const ValueId evaluated =
        node("", "BatchNormalization", {x, bias, scale, bias, variance}, {"evaluated"}, {shape})[0];
    const std::string ours(kPipeshardDomain);
    const ValueId dx =
        node(ours, "BatchNormalizationInputGrad", {dy, x, scale}, {"dx"}, {shape}, {{"epsilon", 1e-3f}})[0];
    const auto dw = node(ours, "BatchNormalizationWeightGrad", {dy, x}, {"dscale", "dbias"},
                         {channel, channel}, {{"epsilon", 1e-3f}});
    graph.outputs = {z, y[0], y[1], y[2], second, evaluated, dx, dw[0], dw[1]};
    for (const char* name : {"BatchNormalizationInputGrad", "BatchNormalizationWeightGrad", "ReluGrad"}) {
      Function function;
      function.domain = ours;
      function.name = name;
      function.body = std::make_shared<const Graph>();
      graph.functions.push_back(function);
    }
  }
  ValueId input(const char* name, const Shape& shape) {
    graph.inputs.push_back(builder.addValue(name, DataType::kFloat64, shape));
    return graph.inputs.back();
  }
  std::vector<ValueId> node(const std::string& domain, const char* op, std::vector<ValueId> inputs,
                            const std::vector<const char*>& names, const std::vector<Shape>& shapes,
                            std::map<std::string, Attribute> attributes = {}) {
    std::vector<ValueId> outputs;
    for (size_t i = 0; i < names.size(); ++i)
      outputs.push_back(builder.addValue(names[i], DataType::kFloat64, shapes[i]));
    builder.addNode(domain, op, std::move(inputs), outputs, std::move(attributes));
    return outputs;
  }
};

std::vector<std::string> names(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<std::string> result;
  for (const ValueId id : ids) result.push_back(graph.value(id).name + shapeToString(graph.shape(id)));
  return result;
}

const std::vector<std::string> kRows{"z", "y", "second", "evaluated", "dx"};
const std::vector<std::string> kStatistics{"mean_after", "variance_after"};
const std::vector<std::string> kPartial{"dscale", "dbias"};

Tensors randomInputs(const Shape& shape) {
  std::mt19937_64 generator(5);
  Tensors given;
  for (const char* name : {"x0", "dy"}) given[name] = randomReals(generator, shape);
  for (const char* name : {"scale", "bias", "mean", "variance"})
    given[name] = randomReals(generator, {shape.size() > 1 ? shape[1] : 1});
  auto* variance = reinterpret_cast<double*>(given["variance"].bytes.data());
  for (size_t c = 0; c < given["variance"].bytes.size() / sizeof(double); ++c)
    variance[c] = 1 + variance[c] * variance[c];
  return given;
}

void expectAsOnOneDevice(const Shape& shape, const std::vector<int64_t>& cuts) {
  SCOPED_TRACE(shapeToString(shape) + " in " + shapeToString(cuts));
  const Tensors given = randomInputs(shape);
  std::vector<std::string> wanted = kRows;
  for (const auto* more : {&kStatistics, &kPartial}) wanted.insert(wanted.end(), more->begin(), more->end());
  const Tensors whole = runGraph(Piece(shape).graph, given, wanted);

  Meeting meeting(cuts.size());
  std::vector<Tensors> results(cuts.size());
  std::vector<std::vector<int64_t>> rows(cuts.size());
  std::vector<std::thread> devices;
  int64_t first = 0;
  for (size_t d = 0; d < cuts.size(); ++d) {
    rows[d].resize(cuts[d]);
    std::iota(rows[d].begin(), rows[d].end(), first);
    first += cuts[d];
    devices.emplace_back([&, d] {
      Shape part = shape;
      part[0] = cuts[d];
      Piece piece(part);
      const std::vector<GroupId> groups =
          synchronizeBatchNormalization(piece.graph, cuts[d], shape[0], kGroup);
      EXPECT_NO_THROW(verifyGraph(piece.graph));
      Tensors mine = given;
      for (const char* name : {"x0", "dy"}) mine[name] = selectAlong(given.at(name), 0, rows[d]);
      ThreadCollectives collectives(meeting, d);
      results[d] = runGraph(piece.graph, mine, wanted, &collectives);
      EXPECT_EQ(collectives.groups, groups);
    });
  }
  for (std::thread& device : devices) device.join();

  for (const std::string& name : kRows) {
    Constant joined = whole.at(name);
    std::fill(joined.bytes.begin(), joined.bytes.end(), std::byte{0});
    for (size_t d = 0; d < cuts.size(); ++d) placeAlong(joined, results[d].at(name), 0, rows[d]);
    EXPECT_LT(distance(joined, whole.at(name)), 1e-12) << name;
  }
  for (const std::string& name : kStatistics) {
    for (const Tensors& result : results) {
      EXPECT_LT(distance(result.at(name), whole.at(name)), 1e-12) << name;
      EXPECT_EQ(result.at(name), results[0].at(name)) << name;
    }
  }
  for (const std::string& name : kPartial) {
    std::vector<double> sum(whole.at(name).bytes.size() / sizeof(double));
    for (const Tensors& result : results) {
      const std::vector<double> part = numericElements(result.at(name));
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += part[c];
    }
    EXPECT_LT(distance(makeConstant<double>(whole.at(name).shape, sum), whole.at(name)), 1e-12) << name;
  }
}

TEST(SynchronizeBatchNormalization, GivesWhatOneDeviceGivesForTheWholeMicrobatch) {
  for (const Shape& shape : {Shape{6, 3, 4, 5}, Shape{6, 2}, Shape{6, 4, 3}, Shape{6, 1, 2, 2, 2}}) {
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{3, 3}, {5, 1}, {2, 2, 2}, {1, 3, 2}})
      expectAsOnOneDevice(shape, cuts);
  }
}

TEST(SynchronizeBatchNormalization, KeepsTheInterfaceAndComputesMomentsOfOneTensorOnce) {
  Piece piece({2, 3, 4});
  const Graph before = piece.graph;
  const std::vector<GroupId> groups = synchronizeBatchNormalization(piece.graph, 2, 5, kGroup);
  // mean, variance; sum of dY and of dY x_hat
  EXPECT_EQ(groups, (std::vector<GroupId>{kGroup, kGroup, kGroup, kGroup}));
  EXPECT_EQ(names(piece.graph, piece.graph.inputs), names(before, before.inputs));
  EXPECT_EQ(names(piece.graph, piece.graph.outputs), names(before, before.outputs));
  ASSERT_EQ(piece.graph.functions.size(), 1u);
  EXPECT_EQ(piece.graph.functions[0].name, "ReluGrad");
  for (const Node& node : piece.graph.nodes) {
    EXPECT_EQ(node.intAttribute("training_mode", 0), 0) << describeNode(node);
    EXPECT_TRUE(node.domain.empty() || node.op_type == "AllReduce") << describeNode(node);
  }
}

TEST(SynchronizeBatchNormalization, TakesTheSameStepsWhateverTheRows) {
  Piece small({1, 3, 4}), large({4, 3, 4});
  synchronizeBatchNormalization(small.graph, 1, 5, kGroup);
  synchronizeBatchNormalization(large.graph, 4, 5, kGroup);
  ASSERT_EQ(small.graph.nodes.size(), large.graph.nodes.size());
  for (size_t n = 0; n < small.graph.nodes.size(); ++n) {
    EXPECT_EQ(small.graph.nodes[n].op_type, large.graph.nodes[n].op_type);
    EXPECT_EQ(small.graph.nodes[n].inputs, large.graph.nodes[n].inputs);
  }
}

TEST(SynchronizeBatchNormalization, LeavesAloneWhatIsWholeOrNotNormalised) {
  Piece whole({5, 3, 4});
  const std::string before = printGraph(whole.graph);
  EXPECT_TRUE(synchronizeBatchNormalization(whole.graph, 5, 5, kGroup).empty());
  EXPECT_EQ(printGraph(whole.graph), before);
  EXPECT_EQ(whole.graph.functions.size(), 3u);
  Piece evaluation({2, 3, 4});
  std::erase_if(evaluation.graph.nodes,
                [](const Node& node) { return node.outputs.size() > 1 || !node.domain.empty(); });
  for (Node& node : evaluation.graph.nodes) node.attributes.erase("training_mode");
  const size_t nodes = evaluation.graph.nodes.size();
  EXPECT_TRUE(synchronizeBatchNormalization(evaluation.graph, 2, 5, kGroup).empty());
  EXPECT_EQ(evaluation.graph.nodes.size(), nodes);
}

TEST(SynchronizeBatchNormalization, SumsOnlyWhatAWeightGradientNeeds) {
  Piece piece({2, 3, 4});
  std::erase_if(piece.graph.nodes, [](const Node& node) {
    return node.op_type != "BatchNormalizationWeightGrad" && node.op_type != "Tanh";
  });
  piece.graph.nodes.back().outputs[0] = ValueId();
  piece.graph.outputs = {findValue(piece.graph, "dbias")};
  EXPECT_TRUE(synchronizeBatchNormalization(piece.graph, 2, 5, kGroup).empty());
  ASSERT_EQ(piece.graph.nodes.size(), 3u);
  EXPECT_EQ(piece.graph.nodes[1].op_type, "ReduceSum");
  EXPECT_EQ(piece.graph.nodes[2].op_type, "Reshape");
}

TEST(SynchronizeBatchNormalization, RefusesRowsThatDoNotFit) {
  Piece piece({2, 3});
  EXPECT_THROW(synchronizeBatchNormalization(piece.graph, 0, 5, kGroup), Error);
  EXPECT_THROW(synchronizeBatchNormalization(piece.graph, 6, 5, kGroup), Error);
  // 2 elements per channel are not 3 rows
  EXPECT_THROW(synchronizeBatchNormalization(piece.graph, 3, 5, kGroup), Error);
}

}  // namespace
}  // namespace pipeshard
