// Groups of operators that one pass does: the same bits as one by one, whatever is grouped, wherever it lies.
#include "runtime/kernels/chains/group_chains.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ir/graph/graph_print.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/execute/subgraph.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/kernels/base/cpu_kernels.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using Bytes = std::vector<std::byte>;

struct Sketch {
  Graph graph;
  GraphBuilder builder{graph};

  Sketch() {
    graph.opset_imports[""] = 18;
    graph.opset_imports["pipeshard"] = 1;
  }
  ValueId input(const char* name, DataType type, Shape shape) {
    const ValueId id = builder.addValue(name, type, std::move(shape));
    graph.inputs.push_back(id);
    return id;
  }
  ValueId call(const char* domain, const char* op, std::vector<ValueId> inputs, DataType type, Shape shape,
               std::map<std::string, Attribute> attributes = {}) {
    const ValueId id = builder.addValue(op, type, std::move(shape));
    builder.addNode(domain, op, std::move(inputs), {id}, std::move(attributes));
    return id;
  }
  // Of the first input's type and shape.
  ValueId like(const char* domain, const char* op, std::vector<ValueId> inputs,
               std::map<std::string, Attribute> attributes = {}) {
    const ValueId first = inputs.at(0);
    return call(domain, op, std::move(inputs), graph.dataType(first), graph.shape(first),
                std::move(attributes));
  }
};

void fillWithNumbers(const Value& value, std::mt19937& random, std::byte* to) {
  std::normal_distribution<float> normal;
  const int64_t count = elementCount(*value.shape);
  for (int64_t i = 0; i < count; ++i) {
    const float number = normal(random);
    if (value.data_type == DataType::kFloat32) {
      reinterpret_cast<float*>(to)[i] = number;
    } else if (value.data_type == DataType::kFloat64) {
      reinterpret_cast<double*>(to)[i] = number;
    } else if (value.data_type == DataType::kInt64) {
      reinterpret_cast<int64_t*>(to)[i] = 3;
    } else if (value.data_type == DataType::kBfloat16) {
      uint32_t bits = 0;
      std::memcpy(&bits, &number, sizeof(bits));
      reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(bits >> 16);
    } else {
      reinterpret_cast<uint8_t*>(to)[i] = number > 0 ? 1 : 0;
    }
  }
}

struct Ran {
  std::vector<Bytes> outputs;
  int chains = 0;
  int64_t workspace = 0;
};

// The outputs' bytes, after a run on inputs that follow from the seed.
Ran run(const Graph& graph, const CompiledSubgraph::Aliasing& aliasing, bool chains, unsigned seed) {
  CompiledSubgraph subgraph(graph, "test", cpuKernels(), cpuDevice(), nullptr, chains);
  std::mt19937 random(seed);
  std::map<int, AlignedMemory> buffers;
  const auto place = [&](int buffer, ValueId id) {
    auto& memory = buffers[buffer];
    if (memory.size() == 0) memory = AlignedMemory(std::max<int64_t>(1, graph.bytes(id)));
    return memory.data();
  };
  std::vector<std::byte*> inputs, outputs;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    inputs.push_back(place(aliasing.inputs[i], graph.inputs[i]));
    fillWithNumbers(graph.value(graph.inputs[i]), random, inputs.back());
  }
  for (size_t o = 0; o < graph.outputs.size(); ++o)
    outputs.push_back(place(aliasing.outputs[o], graph.outputs[o]));
  Ran ran;
  ran.workspace = subgraph.workspaceBytes(aliasing);
  AlignedMemory workspace(std::max<int64_t>(1, ran.workspace));
  std::atomic<uint64_t> progress{0};
  subgraph.bind(aliasing, inputs, outputs, workspace.data()).run(progress);
  for (size_t o = 0; o < outputs.size(); ++o)
    ran.outputs.emplace_back(outputs[o], outputs[o] + graph.bytes(graph.outputs[o]));
  for (const Node& node : subgraph.graph().nodes) ran.chains += kernels::isChain(node) ? 1 : 0;
  return ran;
}

// "": none.
std::string firstDifference(const std::vector<Bytes>& some, const std::vector<Bytes>& others) {
  for (size_t o = 0; o < some.size(); ++o) {
    const auto [at, other] = std::mismatch(some[o].begin(), some[o].end(), others.at(o).begin());
    if (at == some[o].end()) continue;
    return fmt::format("output {}, byte {} of {}: {:#x}, not {:#x}", o, at - some[o].begin(), some[o].size(),
                       static_cast<int>(*at), static_cast<int>(*other));
  }
  return "";
}

CompiledSubgraph::Aliasing apart(const Graph& graph) {
  CompiledSubgraph::Aliasing aliasing;
  int next = 0;
  for (size_t i = 0; i < graph.inputs.size(); ++i) aliasing.inputs.push_back(next++);
  for (size_t o = 0; o < graph.outputs.size(); ++o) aliasing.outputs.push_back(next++);
  return aliasing;
}

// A graph of operators in random order on tensors of a few shapes that broadcast to each other.
class RandomGraph {
 public:
  explicit RandomGraph(unsigned seed) : random_(seed) {
    const DataType types[] = {DataType::kFloat32, DataType::kFloat32, DataType::kFloat64,
                              DataType::kBfloat16};
    type_ = types[pick(4)];
    const Shape shapes[] = {{4, 37, 130}, {2, 64, 768}, {1, 300, 96}, {640, 1, 33}};
    whole_ = shapes[pick(4)];
    for (int i = 0; i < 3; ++i) wholes_.push_back(sketch_.input("x", type_, whole_));
    parts_.push_back(sketch_.input("row", type_, {whole_[2]}));
    parts_.push_back(sketch_.input("column", type_, {whole_[0], whole_[1], 1}));
    parts_.push_back(sketch_.input("plane", type_, {1, whole_[1], whole_[2]}));
    parts_.push_back(sketch_.input("number", type_, {}));
    parts_.push_back(sketch_.builder.addConstant("constant", makeScalar(type_, 0.75)));
    masks_.push_back(sketch_.input("mask", DataType::kBool, {whole_[1], whole_[2]}));
    for (size_t n = 0, count = 3 + pick(14); n < count; ++n) addNode();
    for (const ValueId id : wholes_) {
      const bool is_input =
          std::find(graph().inputs.begin(), graph().inputs.end(), id) != graph().inputs.end();
      if (!is_input && (pick(4) == 0 || id == wholes_.back())) sketch_.graph.outputs.push_back(id);
    }
  }
  const Graph& graph() const { return sketch_.graph; }

  // Some outputs in the place of inputs, some inputs that nobody reads later.
  CompiledSubgraph::Aliasing aliasing() {
    CompiledSubgraph::Aliasing aliasing = apart(graph());
    for (int& output : aliasing.outputs) {
      const size_t input = pick(3);
      const bool is_taken =
          std::count(aliasing.outputs.begin(), aliasing.outputs.end(), static_cast<int>(input)) > 0;
      if (pick(2) == 0 && !is_taken) output = static_cast<int>(input);
    }
    for (size_t i = 0; i < aliasing.inputs.size(); ++i) aliasing.ending.push_back(pick(3) == 0);
    return aliasing;
  }

 private:
  size_t pick(size_t count) { return random_() % count; }
  // Mostly what was made last.
  ValueId whole() { return pick(2) == 0 ? wholes_.back() : wholes_[pick(wholes_.size())]; }

  void addNode() {
    const char* const unary[] = {"Exp", "Tanh", "Sigmoid", "Relu", "Neg", "Sqrt", "Erf", "Abs"};
    const char* const binary[] = {"Add", "Sub", "Mul", "Div", "Max", "Min"};
    const ValueId x = whole();
    switch (pick(9)) {
      case 0: wholes_.push_back(sketch_.like("", unary[pick(8)], {x})); break;
      case 1:
      case 2: wholes_.push_back(sketch_.like("", binary[pick(6)], {x, whole()})); break;
      case 3:
      case 4: {
        const ValueId part = parts_[pick(parts_.size())];
        const char* op = binary[pick(6)];
        const bool swapped = pick(2) == 0;
        wholes_.push_back(sketch_.call("", op, {swapped ? part : x, swapped ? x : part}, type_, whole_));
        break;
      }
      case 5:
        masks_.push_back(sketch_.call("", "Less", {x, parts_[pick(parts_.size())]}, DataType::kBool, whole_));
        break;
      case 6:
        wholes_.push_back(
            sketch_.call("", "Where", {masks_[pick(masks_.size())], x, whole()}, type_, whole_));
        break;
      case 7:
        wholes_.push_back(pick(2) == 0 ? sketch_.like("", "Softmax", {x}, {{"axis", int64_t{2}}})
                                       : sketch_.like("pipeshard", "GeluGrad", {x, whole()}));
        break;
      case 8: addNormalization(x); break;
      default: break;
    }
  }

  void addNormalization(ValueId x) {
    if (pick(4) == 0) {  // ends a chain
      const Shape moved{whole_[1], whole_[0], whole_[2]};
      const std::vector<int64_t> there{1, 0, 2};
      const ValueId turned = sketch_.call("", "Transpose", {x}, type_, moved, {{"perm", there}});
      wholes_.push_back(sketch_.call("", "Transpose", {turned}, type_, whole_, {{"perm", there}}));
      return;
    }
    if (type_ == DataType::kFloat32) {
      const Shape column{whole_[0], whole_[1], 1};
      const ValueId y = sketch_.builder.addValue("y", type_, whole_);
      const ValueId mean = sketch_.builder.addValue("mean", type_, column);
      const ValueId inverse = sketch_.builder.addValue("inverse", type_, column);
      sketch_.builder.addNode("", "LayerNormalization", {x, parts_[0]}, {y, mean, inverse},
                              {{"axis", int64_t{2}}});
      wholes_.push_back(y);
      parts_.push_back(mean);
      parts_.push_back(inverse);
      return;
    }
    wholes_.push_back(sketch_.like("", "LogSoftmax", {x}));
  }

  std::mt19937 random_;
  Sketch sketch_;
  DataType type_ = DataType::kFloat32;
  Shape whole_;
  std::vector<ValueId> wholes_, parts_, masks_;
};

TEST(Chains, GiveTheSameBitsAsTheirOperatorsOneByOne) {
  int chains = 0;
  for (unsigned seed = 0; seed < 48; ++seed) {
    RandomGraph random(seed);
    for (const CompiledSubgraph::Aliasing& aliasing : {apart(random.graph()), random.aliasing()}) {
      const Ran alone = run(random.graph(), aliasing, false, seed);
      for (const int threads : {1, 3}) {
        const WorkerThreads limited(threads);
        const Ran together = run(random.graph(), aliasing, true, seed);
        chains += together.chains;
        ASSERT_EQ(firstDifference(together.outputs, alone.outputs), "")
            << "seed " << seed << ", " << threads << " threads\n"
            << printGraph(random.graph());
      }
    }
  }
  EXPECT_GT(chains, 150);
}

TEST(Chains, KeepWhatNobodyElseReadsOutOfMemory) {
  Sketch sketch;
  const ValueId x = sketch.input("x", DataType::kFloat32, {512, 768});
  ValueId made = x;
  for (int i = 0; i < 4; ++i) made = sketch.like("", "Abs", {sketch.like("", "Mul", {made, x})});
  sketch.graph.outputs = {made};
  const int64_t tensor = sketch.graph.bytes(x);
  const Ran alone = run(sketch.graph, apart(sketch.graph), false, 1);
  const WorkerThreads limited(2);
  const Ran together = run(sketch.graph, apart(sketch.graph), true, 1);
  EXPECT_EQ(together.chains, 1);
  EXPECT_GE(alone.workspace, tensor);
  EXPECT_LT(together.workspace, tensor / 4);
}

TEST(Chains, AreRunBeforeOthersReadWhatTheyMake) {
  Sketch sketch;
  const ValueId x = sketch.input("x", DataType::kFloat32, {64, 512});
  const ValueId w = sketch.input("w", DataType::kFloat32, {512, 512});
  const ValueId a = sketch.like("", "Relu", {sketch.like("", "Exp", {x})});
  const ValueId product = sketch.like("", "MatMul", {a, w});
  const ValueId b = sketch.like("", "Add", {a, product});
  sketch.graph.outputs = {sketch.like("", "Tanh", {b})};
  const Ran together = run(sketch.graph, apart(sketch.graph), true, 1);
  EXPECT_EQ(together.chains, 2);
  EXPECT_EQ(together.outputs, run(sketch.graph, apart(sketch.graph), false, 1).outputs);
}

TEST(Chains, LeaveAloneWhatHasOtherRows) {
  Sketch sketch;
  const ValueId x = sketch.input("x", DataType::kFloat32, {128, 256});
  const ValueId y = sketch.input("y", DataType::kFloat32, {256, 128, 256});
  const ValueId a = sketch.like("", "Exp", {x});
  sketch.graph.outputs = {sketch.call("", "Add", {a, y}, DataType::kFloat32, {256, 128, 256})};
  EXPECT_EQ(run(sketch.graph, apart(sketch.graph), true, 1).chains, 0) << "every plane of y reads all of a";
}

TEST(Chains, SayWhatAnOperatorOfThemFinds) {
  Sketch sketch;
  const Shape shape{1 << 16};
  const ValueId a = sketch.input("a", DataType::kInt64, shape);
  const ValueId zero = sketch.builder.addConstant("zero", makeScalar(DataType::kInt64, 0));
  const ValueId none = sketch.like("", "Mul", {a, zero});
  sketch.graph.outputs = {sketch.like("", "Div", {a, none})};
  const WorkerThreads limited(2);
  EXPECT_ERROR(run(sketch.graph, apart(sketch.graph), true, 1), ErrorCode::kBadModel,
               "integer division by zero");
}

}  // namespace
}  // namespace pipeshard
